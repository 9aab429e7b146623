#!/usr/bin/python3
"""The wrapper of all tests does what they count on: stacks at a hang, statuses as they are.

    with_stacks_test.py HANGS FIRST_THREAD_ENDS WITH_STACKS...

Seen to fail: print_all_stacks() left out; descendants() limited to direct children (the child in a
session of its own is not printed and stays alive); kill_descendants() left out; a process taken for
gone when only its first thread is; is_restoring() always false. Of with_stacks.c: has_children() always
false; no subreaper; the mask of signals not put back for the command; files left open for it; no group of
its own; no handlers of signals.
"""
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

HANGS, FIRST_THREAD_ENDS, *WITH_STACKS = sys.argv[1:]


def run(*arguments):
    return subprocess.run([*WITH_STACKS, *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, check=False)


def run_to_limit(patterns, *command):
    """run() with the least limit that leaves time for all of these to be printed: on a busy machine a shell
    wants more than a second to begin. What is never printed is for the caller to miss."""
    for seconds in (1, 2, 4, 8, 16):
        done = run(str(seconds), *command)
        if all(re.search(pattern, done.stdout) for pattern in patterns):
            break
    return done


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
            return fields[0] != b"Z" or int(fields[17]) > 1
    except OSError:
        return False


class WithStacks(unittest.TestCase):
    def test_stacks_of_all_threads_and_processes_of_a_hang(self):
        functions = ("takes_first_then_second", "takes_second_then_first", "child_that_left_the_group")
        done = run_to_limit(functions, HANGS)
        self.assertEqual(done.returncode, 124, done.stdout)
        for function in functions:
            self.assertIn(function, done.stdout)

    def test_nothing_survives_the_limit(self):
        done = run_to_limit([r"pid \d"], "sh", "-c", "setsid sleep 300 & echo pid $!; sleep 300")
        pid = int(done.stdout.split("pid ")[1].split()[0])
        self.assertFalse(alive(pid), f"process {pid} survived:\n{done.stdout}")

    def test_process_whose_first_thread_has_ended_is_seen_and_killed(self):
        done = run_to_limit([r"pid \d", "thread_that_lives_on"], "sh", "-c",
                            f"setsid {FIRST_THREAD_ENDS} & echo pid $!; sleep 300")
        self.assertIn("thread_that_lives_on", done.stdout)
        pid = int(done.stdout.split("pid ")[1].split()[0])
        self.assertFalse(alive(pid), f"process {pid} survived:\n{done.stdout}")

    def test_first_thread_is_known_where_numbers_began_anew(self):
        """Seen to fail: gdb was given the least number, by which it saw that thread alone."""
        living_thread = runpy.run_path(WITH_STACKS[-1])["living_thread"]
        with unittest.mock.patch("os.listdir", lambda _: ["300", "32767"]), \
                unittest.mock.patch.dict(living_thread.__globals__, read=lambda _: "1 (name) S 1"):
            self.assertEqual(living_thread(32767), "32767")

    def test_leftovers_of_a_command_that_ended_are_killed_and_named(self):
        done = run("60", "sh", "-c", "setsid sleep 300 & echo pid $!")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("left running by the command", done.stdout)
        self.assertFalse(alive(int(done.stdout.split("pid ")[1].split()[0])))

    def test_a_process_that_restores_something_is_waited_for(self):
        for last in ("sleep 300", "kill -9 $$"):
            with self.subTest(last=last), tempfile.TemporaryDirectory() as folder:
                script = (f"cd '{folder}'; rm -f *; mkfifo alive; setsid sh -c 'read x < alive; : > restored' "
                          f"rdmalloc-restores & exec 9> alive; echo begun; {last}")
                done = run_to_limit(["(?m)^begun$"], "sh", "-c", script)
                self.assertEqual(os.listdir(folder).count("restored"), 1, done.stdout)
                self.assertNotIn("left running", done.stdout)

    def test_a_signal_ends_all_descendants(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with self.subTest(signal=number), subprocess.Popen(
                    [*WITH_STACKS, "60", "sh", "-c", "setsid sleep 300 & echo $!; sleep 300"],
                    stdout=subprocess.PIPE, text=True) as wrapper:
                pid = int(wrapper.stdout.readline())
                wrapper.send_signal(number)
                self.assertEqual(wrapper.wait(60), 128 + number)
                self.assertFalse(alive(pid), f"process {pid} survived")

    def test_limit_is_not_of_the_time_that_all_stood_still(self):
        """Seen to fail, also where the command had ended: with_stacks.c looked at the clock, and no more at it."""
        with subprocess.Popen([*WITH_STACKS, "5", "sh", "-c", "echo $$; exec sleep 1"], stdout=subprocess.PIPE,
                              text=True) as wrapper:
            both = wrapper.pid, int(wrapper.stdout.readline())
            for number in (signal.SIGSTOP, signal.SIGCONT):
                for pid in both:
                    os.kill(pid, number)
                time.sleep(6 if number == signal.SIGSTOP else 0)
            self.assertEqual(wrapper.wait(60), 0)

    def test_nothing_of_the_wrappers_is_the_commands(self):
        def masks(text):
            return re.findall(r"Sig(?:Blk|Ign):\s*(\w+)", text)
        with open("/proc/self/status", encoding="utf-8") as status:
            blocked, ignored = masks(status.read())
        python_ignores = 1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1
        self.assertEqual(masks(run("60", "cat", "/proc/self/status").stdout),
                         [blocked, f"{int(ignored, 16) & ~python_ignores:016x}"])
        self.assertEqual(run("60", "ls", "/proc/self/fd").stdout.split(), ["0", "1", "2", "3"])
        own_group = 'test "$(cut -d" " -f5 /proc/$$/stat)" = $$'
        self.assertEqual(run("60", "sh", "-c", own_group).returncode, 0)

    def test_status_is_the_commands(self):
        self.assertEqual(run("60", "true").returncode, 0)
        self.assertEqual(run("60", "sh", "-c", "exit 77").returncode, 77)
        killed = run("60", "sh", "-c", "kill -SEGV $$")
        self.assertEqual(killed.returncode, 128 + 11)
        self.assertIn("SIGSEGV", killed.stdout)

    def test_standard_input_is_empty(self):
        self.assertEqual(run("60", "cat").stdout, "")

    def test_bad_use_is_told(self):
        for arguments in ((), ("5",), ("0", "true"), ("five", "true")):
            done = run(*arguments)
            self.assertEqual(done.returncode, 125, done.stdout)
            self.assertIn("SECONDS", done.stdout)
        missing = run("5", "/nonexistent/program")
        self.assertEqual(missing.returncode, 127)
        self.assertIn("/nonexistent/program", missing.stdout)


if __name__ == "__main__":
    os.environ.pop("LD_PRELOAD", None)
    unittest.main(argv=[sys.argv[0], "-v"])
