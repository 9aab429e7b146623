#!/usr/bin/python3
"""tools/lab where QEMU is a script and the kernel made up: how it ends, and what it leaves behind. No boot.

Each was seen to fail with the tool as it was before its test: an initramfs cut short on a full disk, which was kept and
booted ever after; a status of 1 for the lab's own failure; the right guest of a pair whose lab was killed; the directory of a
guest that runs for two days; a lab that waits for another's guest and is told to end; `--limit 0900` read as an octal number; stacks that take too long, said to be none; a kernel deleted while another lab fetches it.
"""
import fcntl
import glob
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "support"))
from lab_folder import lab_folder  # noqa: E402

LAB = os.path.join(HERE, "..", "..", "tools", "lab")
PATIENCE_S = 60  # nothing is judged by time
# Marks what a guest marks in its run directory, and becomes what stands for it.
QEMU = """#!/bin/bash
for word in "$@"; do
  case $word in *mount_tag=lab,*) run=${word#local,path=} run=${run%%,*} ;; esac
done
echo $$ >> "$RDMALLOC_LAB_DIR/guests"
: > "$run/begun"
eval "$GUEST"
"""
# Of cpio alone.
BUSYBOX = "#!/bin/sh\ncat > /dev/null; head -c 300000 /dev/zero\n"
RUNS_ON = "exec sleep 1000"


class WithoutBoot(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/var/tmp", prefix="rdmalloc-lab-test.")
        self.addCleanup(folder.cleanup)
        self.lab_dir = os.path.join(folder.name, "lab")
        self.kernel = os.path.join(self.lab_dir, "kernels", "made-up")
        unpacked = os.path.join(self.kernel, "root")
        modules = f"{unpacked}/lib/modules/made-up"
        for path in (modules, f"{unpacked}/bin", f"{folder.name}/bin", f"{folder.name}/tmp"):
            os.makedirs(path)
        for path, text in ((f"{folder.name}/bin/qemu-system-x86_64", QEMU), (f"{unpacked}/bin/busybox", BUSYBOX),
                           (f"{self.kernel}/vmlinux", ""), (f"{modules}/modules.dep", "")):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(path, 0o755)
        self.temporary = f"{folder.name}/tmp"
        self.environment = {**os.environ, "RDMALLOC_LAB_DIR": self.lab_dir, "TMPDIR": self.temporary,
                            "PATH": f"{folder.name}/bin:{os.environ['PATH']}"}

    def begin(self, guest, *arguments, **more):
        process = subprocess.Popen([LAB, "--rdma", "none", *arguments], stdin=subprocess.DEVNULL,  # pylint: disable=consider-using-with
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env={**self.environment, "GUEST": guest}, **more)
        for clean in (process.stdout.close, process.wait, process.kill):  # the last one first
            self.addCleanup(clean)
        return process

    def end(self, process):
        output = process.communicate(timeout=PATIENCE_S)[0]
        return process.returncode, output

    def wait_until(self, is_so, what):
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    def guests(self):
        """Ids of those that live."""
        path = f"{self.lab_dir}/guests"
        if not os.path.exists(path):
            return []
        with open(path, encoding="ascii") as file:
            return [pid for pid in file.read().split() if os.path.exists(f"/proc/{pid}/exe")]

    def run_directories(self):
        return glob.glob(f"{self.lab_dir}/runs/*")

    def test_status_is_the_guests(self):
        status, output = self.end(self.begin('echo 7 > "$run/status"', "run", "true"))
        self.assertEqual((status, output), (7, ""))
        self.assertEqual(self.run_directories(), [])

    def test_full_disk_leaves_no_half_initramfs(self):
        def no_room():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, resource.RLIM_INFINITY))
        status, output = self.end(self.begin('echo 0 > "$run/status"', "run", "true", preexec_fn=no_room))
        self.assertEqual(status, 125, output)
        self.assertIn("no room", output)
        self.assertEqual(glob.glob(f"{self.kernel}/initramfs*"), [])
        self.assertEqual(glob.glob(f"{self.lab_dir}/kernels/initramfs*"), [])
        self.assertEqual(self.end(self.begin('echo 0 > "$run/status"', "run", "true"))[0], 0)
        self.assertEqual([os.path.getsize(path) for path in glob.glob(f"{self.kernel}/initramfs*")], [300000])

    def test_failure_of_the_labs_own_has_the_labs_status(self):
        os.makedirs(f"{self.lab_dir}/runs")
        no_room = "mktemp() { echo no room >&2; return 1; }; export -f mktemp; exec \"$@\""
        done = subprocess.run(["bash", "-c", no_room, "bash", LAB, "--rdma", "none", "run", "true"], env=self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE_S)
        self.assertEqual((done.returncode, done.stdout), (125, "no room\nlab: failed, as said above\n"))

    def test_status_that_could_not_be_written_is_said(self):
        status, output = self.end(self.begin(': > "$run/status"', "run", "true"))
        self.assertEqual(status, 125)
        self.assertIn("could not write the command's exit status", output)

    def test_stacks_that_take_too_long_are_not_said_to_be_none(self):
        for marks, words in (("begun", "the guest itself hangs"), ("begun expired", "the stacks took longer than"),
                             ("begun expired killed_inside", "did not end after its command was killed")):
            guest = f'for mark in {marks} killed; do : > "$run/$mark"; done'
            status, output = self.end(self.begin(guest, "--limit", "5", "run", "true"))
            self.assertEqual(status, 125)
            self.assertIn(words, output)

    def test_killed_pair_takes_both_guests_along(self):
        lab = self.begin(RUNS_ON, "pair", "true")
        self.wait_until(lambda: len(self.guests()) == 2, "two guests")
        lab.kill()
        self.wait_until(lambda: not self.guests(), "the guests outlive their lab")
        self.wait_until(lambda: not os.listdir(self.temporary), "the wire stays")

    def test_pair_keeps_both_directories(self):
        status, output = self.end(self.begin('case "$*" in *local.path=*/right,*) exec sleep 1000 ;; esac; '
                                             'until [ "$(wc -l < "$RDMALLOC_LAB_DIR/guests")" = 2 ]; do sleep 0.1; done; '
                                             'echo 0 > "$run/status"', "--keep", "pair", "true"))
        self.assertEqual(status, 0, output)
        self.assertEqual(output.count("kept: "), 2, output)

    def test_signal_ends_the_guest(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            lab = self.begin(RUNS_ON, "run", "true")
            self.wait_until(self.guests, "a guest")
            lab.send_signal(number)
            self.assertEqual(self.end(lab)[0], 128 + number)
            self.assertEqual(self.run_directories(), [])
            self.wait_until(lambda: not self.guests(), "the guest outlives its lab")

    def test_lab_that_waits_leaves_the_other_alone_and_can_be_ended(self):
        lab = self.begin(RUNS_ON, "run", "true")
        self.wait_until(self.guests, "a guest")
        [running] = self.run_directories()
        left_over = f"{self.lab_dir}/runs/run.killed"
        os.mkdir(left_over)
        for path in (running, left_over):
            os.utime(path, (1, 1))
        other = self.begin(RUNS_ON, "run", "true")
        self.wait_until(lambda: not os.path.exists(left_over), "what a killed lab left stays")
        self.wait_until(lambda: len(self.run_directories()) > 1, "a directory for the other one")
        self.assertTrue(os.path.exists(running))
        # Before the guest that it waits for.
        other.terminate()
        self.assertEqual(self.end(other)[0], 128 + signal.SIGTERM)
        lab.terminate()
        self.assertEqual(self.end(lab)[0], 128 + signal.SIGTERM)
        self.assertEqual(self.run_directories(), [])

    def test_clean_spares_what_another_lab_is_making(self):
        os.makedirs(f"{self.lab_dir}/locks")
        for name in ("guest", "kernel", "initramfs", "root-trixie"):
            with open(f"{self.lab_dir}/locks/{name}", "w", encoding="ascii") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                status, output = self.end(self.begin(RUNS_ON, "clean"))
            self.assertEqual(status, 125, output)
            self.assertIn("end it first", output)
            self.assertTrue(os.path.exists(self.kernel))
        self.assertEqual(self.end(self.begin(RUNS_ON, "clean")), (0, ""))
        self.assertEqual(os.listdir(self.lab_dir), ["locks"])

    def test_other_tests_look_where_the_tool_does(self):
        """Seen to fail: with HOME unset or no folder some looked in ~/.cache, and with an empty name one in /."""
        ours = os.path.dirname(self.temporary)
        with open(f"{ours}/bin/id", "w", encoding="ascii") as file:  # for a folder of our own in /var/tmp
            file.write(f"#!/bin/sh\necho {os.path.basename(ours)}\n")
        os.chmod(file.name, 0o755)
        in_var_tmp = f"/var/tmp/rdmalloc-lab-{os.path.basename(ours)}"
        self.addCleanup(shutil.rmtree, in_var_tmp, ignore_errors=True)
        for changes, place in (({"RDMALLOC_LAB_DIR": f"{ours}/named", "XDG_CACHE_HOME": f"{ours}/cache"}, f"{ours}/named"),
                               ({"XDG_CACHE_HOME": f"{ours}/cache"}, f"{ours}/cache/rdmalloc-lab"),
                               ({"RDMALLOC_LAB_DIR": "", "HOME": ours}, f"{ours}/.cache/rdmalloc-lab"),
                               ({"HOME": f"{ours}/none"}, in_var_tmp), ({}, in_var_tmp)):
            with mock.patch.dict(os.environ, {"PATH": self.environment["PATH"], **changes}, clear=True):
                said = subprocess.run([LAB, "status"], stdout=subprocess.PIPE, text=True, check=False).stdout
                self.assertRegex(said, rf"(?m)^directory  {place} ")
                self.assertEqual(lab_folder(), place)

    def test_checkout_and_folder_with_a_blank(self):
        """Seen to fail: `lab_remote=/a b/…` had a command run in the guest, and its host's name and address lost."""
        place = f"{self.temporary}/it's a place"
        shutil.copytree(os.path.dirname(LAB), f"{place}/tools")
        words = '. "$run/guest.env" && printf "%s|" "$lab_host" "$lab_address" "$lab_remote" "$lab_directory"; echo 0 > "$run/status"'
        with mock.patch(f"{__name__}.LAB", f"{place}/tools/lab"):
            status, output = self.end(self.begin(words, "run", "true", cwd=place))
        self.assertEqual((status, output), (0, f"lab|192.168.77.1|{place}/tools/lab.d/remote|{place}|"))

    def test_kernel_does_not_try_its_timer(self):
        """Seen to fail: a guest that had not a processor in those 40 ms, its kernel's panic "IO-APIC + timer doesn't work!"."""
        status, output = self.end(self.begin('printf "%s\\n" "$@" | grep -x "console=.*"; echo 0 > "$run/status"', "run", "true"))
        self.assertEqual(status, 0, output)
        self.assertIn("no_timer_check", output.split())

    def test_numbers_with_a_zero_in_front_are_refused(self):
        for option in ("--limit", "--cpus", "--nodes"):
            status, output = self.end(self.begin(RUNS_ON, option, "08", "run", "true"))
            self.assertEqual(status, 2, output)
            self.assertIn("'08'", output)


@unittest.skipUnless(shutil.which("xz"), "no xz")
class Kernel(unittest.TestCase):
    def extract(self, folder, most_bytes):
        """The status of kernel_extract() from a made-up image, and what it left."""
        elf = b"\x7fELF" + os.urandom(300000)
        packed = subprocess.run(["xz", "--check=crc32"], input=elf, stdout=subprocess.PIPE, check=True).stdout
        with open(f"{folder}/vmlinuz", "wb") as file:
            file.write(b"MZ" * 1000 + packed + b"the rest")
        script = f"trap '' XFSZ; ulimit -f {most_bytes // 1024}; . {LAB}.d/kernel.sh; kernel_extract {folder}/vmlinuz {folder}/out"
        status = subprocess.run(["bash", "-c", script], stderr=subprocess.DEVNULL, check=False).returncode
        if not os.path.exists(f"{folder}/out"):
            return status, None
        with open(f"{folder}/out", "rb") as file:
            return status, file.read() == elf

    def test_image_cut_short_is_none(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.extract(folder, 1 << 30), (0, True))
            os.unlink(f"{folder}/out")
            self.assertEqual(self.extract(folder, 100 << 10), (1, None))


if __name__ == "__main__":
    unittest.main(verbosity=2)
