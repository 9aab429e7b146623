#!/usr/bin/python3
"""Real checkpoints: a program with registrations, dumped and restored by Debian 13's CRIU.

  checkpoint_test.py PROGRAM RDMALLOC LIBRARY --dumps N --heap-mib N

CRIU and its libraries are those of the lab's trixie root, run on this machine by that root's loader.
The program (programs/checkpointed.cc) has an io_uring, locked memory, a registered heap, a pool, four
threads, and compares all its bytes in each round.

Seen to fail: without the wait for the ring's own threads in rdmalloc_quiesce(), which CRIU can't stop; with
no resume left at post-dump; without the heap's NUMA node bound again.
The first two tests are the control: no quiesce, no checkpoint.
"""
import argparse
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from lab_folder import lab_folder  # noqa: E402
LAB = os.path.join(HERE, "..", "..", "tools", "lab")
GIVEN = argparse.Namespace()
# Generous: for a machine that is busy with other things. Nothing is judged by time.
PATIENCE_S = 120
# FI_NO_BREAKPOINTS of CRIU's fault-injection.h: it leaves a program by tracing its system calls, as it does
# where there are no hardware breakpoints. In a virtual machine one was missed, and CRIU waited for ever
# (compel_stop_on_syscall) for a program that had long gone on.
NO_BREAKPOINTS = "130"


def criu_command():
    root = lab_folder() + "/roots/trixie"
    return [root + "/lib64/ld-linux-x86-64.so.2", "--library-path",
            root + "/usr/lib/x86_64-linux-gnu", root + "/usr/sbin/criu"]


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run([LAB, "-q", "--release", "trixie", "fetch"], check=True)
        cls.criu = criu_command()
        # What CRIU restores becomes a child of this process, whose end can be waited for.
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
        done = subprocess.run([*cls.criu, "check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        if done.returncode != 0:
            print("SKIP: CRIU does not work on this kernel, or without root:", done.stdout)
            raise unittest.SkipTest("no CRIU")

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="checkpoint.", dir="/var/tmp")
        self.process = 0

    def tearDown(self):
        if self.process and os.path.exists(f"/proc/{self.process}"):
            os.kill(self.process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)
        self.started.returncode = 0  # waited for above
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, **environment):
        # A session of its own, with files that CRIU takes: no terminal, no pipe.
        with open(self.folder + "/out", "w", encoding="utf-8") as out:
            self.started = subprocess.Popen(  # pylint: disable=consider-using-with
                [GIVEN.program, self.folder, str(GIVEN.heap_mib)], stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True, close_fds=True,
                env={"LD_PRELOAD": GIVEN.library, "PATH": os.environ["PATH"], **environment})
        self.process = self.started.pid
        self.wait_for_rounds()

    def rounds(self):
        found = re.fullmatch(r"rounds (\d+) wrong (\d+)\n", read(self.folder + "/state"))
        self.assertTrue(found is None or found.group(2) == "0", read(self.folder + "/out"))
        return int(found.group(1)) if found else -1

    def wait_until(self, is_so, what):
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            self.assertLess(time.monotonic(), end, f"{what}: {read(self.folder + '/out')}")
            time.sleep(0.01)

    def wait_for_rounds(self):
        """More rounds, the last of which began after this call."""
        before = self.rounds()
        self.wait_until(lambda: self.rounds() > before + 70, "the program does not go on")

    def run_criu(self, action, images, *arguments):
        os.makedirs(images, exist_ok=True)
        try:
            done = subprocess.run([*self.criu, action, "-D", images, "-o", "log", "-v4", *arguments],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, check=False, timeout=PATIENCE_S,
                                  env={**os.environ, "CRIU_FAULT": NO_BREAKPOINTS})
        except subprocess.TimeoutExpired:
            # It was killed, and with it went its hold on the program.
            self.fail(f"CRIU does not end:\n{read(images + '/log')[-3000:]}")
        return done.returncode, done.stdout, read(images + "/log")

    def errors(self, log):
        return "\n".join(line for line in log.splitlines() if "Error" in line)

    def test_a_process_that_is_not_quiesced_is_refused_and_goes_on(self):
        self.start(RDMALLOC_CHECKPOINT="on")
        status, _, log = self.run_criu("dump", self.folder + "/images", "-t", str(self.process))
        self.assertNotEqual(status, 0)
        self.assertIn("io_uring", log)
        self.wait_for_rounds()

    def test_without_the_setting_the_tool_says_so_and_criu_stops(self):
        self.start()
        status, output, log = self.run_criu("dump", self.folder + "/images", "-t",
                                            str(self.process), "--action-script", GIVEN.rdmalloc)
        self.assertNotEqual(status, 0)
        self.assertIn("RDMALLOC_CHECKPOINT=on", output + log)
        self.wait_for_rounds()

    def test_dumped_and_restored_again_and_again_all_bytes_are_right(self):
        self.start(RDMALLOC_CHECKPOINT="on")
        wiped = self.wiped()
        self.assertGreater(wiped, 3)
        for turn in range(GIVEN.dumps):
            images = f"{self.folder}/images{turn}"
            status, output, log = self.run_criu("dump", images, "-t", str(self.process),
                                                "--action-script", GIVEN.rdmalloc)
            self.assertEqual(status, 0, output + self.errors(log))
            os.waitpid(self.process, 0)  # the dump has ended it; its id must be free
            status, output, log = self.run_criu("restore", images, "--restore-detached",
                                                "--action-script", GIVEN.rdmalloc)
            self.assertEqual(status, 0, output + self.errors(log))
            shutil.rmtree(images)
            self.assertNotIn("(deleted)", read(f"/proc/{self.process}/maps"))
            self.wait_for_rounds()
            maps = read(f"/proc/{self.process}/maps")
            self.assertNotIn("SYSV", maps)
            # Or more: the cache may have mapped more records.
            self.assertGreaterEqual(self.wiped(), wiped, "MADV_WIPEONFORK is not back")
        with open(self.folder + "/stop", "w", encoding="utf-8"):
            pass
        self.wait_until(lambda: read(self.folder + "/ended"), "the program does not end")
        self.assertRegex(read(self.folder + "/ended"), r"rounds \d+ wrong 0")
        self.assertEqual(read(self.folder + "/out"), "")
        print(f"{GIVEN.dumps} times dumped and restored: {read(self.folder + '/ended').strip()}")

    def wiped(self):
        return len(re.findall(r"^VmFlags:.* wf\b", read(f"/proc/{self.process}/smaps"), re.M))

    def test_a_process_that_goes_on_after_the_dump_resumes_by_itself(self):
        self.start(RDMALLOC_CHECKPOINT="on")
        for turn in range(2):
            status, output, log = self.run_criu("dump", f"{self.folder}/images{turn}", "-t", str(self.process),
                                                "--leave-running", "--action-script", GIVEN.rdmalloc)
            self.assertEqual(status, 0, output + self.errors(log))
            self.wait_until(lambda: "anon_inode:[io_uring]" in self.open_files(), "it does not resume")
            self.wait_for_rounds()
        # What was dumped is as good as any other.
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        status, output, log = self.run_criu("restore", f"{self.folder}/images1", "--restore-detached",
                                            "--action-script", GIVEN.rdmalloc)
        self.assertEqual(status, 0, output + self.errors(log))
        self.wait_until(lambda: "anon_inode:[io_uring]" in self.open_files(), "it does not resume")
        self.wait_for_rounds()
        self.assertEqual(read(self.folder + "/out"), "")

    def open_files(self):
        folder = f"/proc/{self.process}/fd"
        names = set()
        for file in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                names.add(os.readlink(f"{folder}/{file}"))
        return names

    def test_quiesced_and_resumed_by_hand(self):
        self.start(RDMALLOC_CHECKPOINT="on")
        for _ in range(3):
            for action in ("quiesce", "resume"):
                done = subprocess.run([GIVEN.rdmalloc, "checkpoint", action, str(self.process)],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      check=False)
                self.assertEqual((done.returncode, done.stdout), (0, ""))
                self.assertEqual("anon_inode:[io_uring]" in self.open_files(), action == "resume")
            self.wait_for_rounds()
        done = subprocess.run([GIVEN.rdmalloc, "checkpoint", "resume", str(self.process)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("it was not quiesced", done.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("program", "rdmalloc", "library"):
        parser.add_argument(name, type=os.path.abspath)  # CRIU looks from its images' folder
    parser.add_argument("--dumps", type=int, default=3)
    parser.add_argument("--heap-mib", type=int, default=64)
    GIVEN = parser.parse_args()
    outcome = unittest.main(argv=[sys.argv[0], "-v"], exit=False).result
    if not outcome.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if outcome.skipped else 0)
