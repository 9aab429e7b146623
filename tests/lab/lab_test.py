#!/usr/bin/python3
"""tools/lab as a user meets it: what it returns, prints, refuses and leaves behind.

Each was seen to fail by breaking the tool once: the status file not read, `rdma link add` left out,
gdb left out of supervise, guest_watch() without its kill, the overlay replaced by the share itself
(then mounted rw), the trixie root replaced by this machine's, the check of --limit removed.
"""
import os
import subprocess
import tempfile
import unittest

LAB = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "lab")


def lab(*arguments, **environment):
    return subprocess.run([LAB, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                          env={**os.environ, **environment})


class Boots(unittest.TestCase):
    def test_command_gets_rxe0_and_a_root_that_forgets(self):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as shared:
            done = lab("-q", "--share", shared, "run", f"""
                ibv_devinfo -d rxe0 | grep -c PORT_ACTIVE
                grep -c 'overlay / ' /proc/mounts
                : > /var/tmp/lab_test_{os.getpid()} && echo written
                echo kept > {shared}/file
                exit 7""")
            self.assertEqual(done.stdout, "1\n1\nwritten\n")
            self.assertEqual(done.returncode, 7)
            self.assertFalse(os.path.exists(f"/var/tmp/lab_test_{os.getpid()}"))
            with open(f"{shared}/file", encoding="utf-8") as file:
                self.assertEqual(file.read(), "kept\n")

    def test_doctor_sends_data_over_rxe0(self):
        done = lab("doctor")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"(?m)^rxe0 carried \d{3,} packets$")
        self.assertRegex(done.stdout, r"(?m)^well ")

    def test_limit_prints_the_stacks_of_all_processes(self):
        done = lab("--limit", "2", "run", "--", "sh", "-c", "sleep 1000 & sleep 2000; exit 0")
        self.assertEqual(done.returncode, 124, done.stdout)
        for process in ("sleep 1000", "sleep 2000"):
            self.assertRegex(done.stdout, rf"(?m)^lab: ==== process \d+: {process}")
        self.assertGreaterEqual(done.stdout.count("clock_nanosleep ("), 2, done.stdout)

    def test_guest_that_hangs_is_killed_and_said_to_hang(self):
        # Stops every process of the guest but its first one: no process is left to notice the limit.
        done = lab("--limit", "1", "run", "kill -STOP -1; sleep 100")
        self.assertEqual(done.returncode, 125, done.stdout)
        self.assertIn("the guest itself hangs", done.stdout)
        self.assertIn("its last kernel messages", done.stdout)

    def test_trixie_has_the_newer_fabrics(self):
        done = lab("-q", "--release", "trixie", "run", """
            ompi_info --version | head -1
            fi_info --version | sed -n 2p
            ibv_devices | grep -c rxe0""")
        self.assertEqual(done.stdout.splitlines(), ["Open MPI v5.0.7", "libfabric: 2.1.0", "1"])
        self.assertEqual(done.returncode, 0)


class Refuses(unittest.TestCase):
    def check(self, arguments, *words, **environment):
        done = lab(*arguments, **environment)
        self.assertEqual(done.returncode, 2, done.stdout)
        for word in words:
            self.assertIn(word, done.stdout)

    def test_bad_arguments_with_the_value_and_what_is_allowed(self):
        self.check(["--limit", "soon", "run", "true"], "'soon'", "1 to 86400")
        self.check(["--limit"], "--limit wants a value")
        self.check(["--release", "buster", "run", "true"], "'buster'", "host trixie")
        self.check(["--kernel", "buster", "run", "true"], "'buster'", "host bullseye")
        self.check(["--rdma", "siw", "run", "true"], "'siw'", "rxe none")
        self.check(["--memory", "4", "run", "true"], "'4'", "4G")
        self.check(["--nodes", "0", "run", "true"], "'0'", "1 to 8")
        self.check(["--nodes", "3", "run", "true"], "'3'", "multiples")
        self.check(["--share", "/no/such", "run", "true"], "'/no/such'", "no such directory")
        self.check(["frobnicate"], "'frobnicate'", "run shell pair fetch")
        self.check(["run"], "which command?")
        self.check(["pair"], "which command?")
        self.check(["shell"], "needs a terminal")
        self.check(["status"], "'here'", "absolute path", RDMALLOC_LAB_DIR="here")

    def test_help_and_status_need_no_boot(self):
        self.assertIn("usage: tools/lab", lab("--help").stdout)
        done = lab("status")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("qemu-system-x86_64", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
