#!/usr/bin/python3
"""Broadcasts under rdmalloc run in roots like a container's (container.sh), once doctor's lines were obeyed.

    containers_test.py RDMALLOC LIBRDMALLOC_SO MPI_PROGRAM

Each root as root, as root without any capability, and as a plain user: this machine's own (Open MPI 4.1.4 in
Debian 12) and the lab's Debian 13 (5.0.7), as far as each is there, with 64 MiB of /dev/shm, 64 KiB of
locked memory, and no ssh.
Seen to fail: with doctor's lines not obeyed (mpirun refuses), with mpirun started without rdmalloc run.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import launching
from launching import call, environment, script

TOOL, LIBRARY, MPI_PROGRAM = sys.argv[1:]
CONTAINER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "container.sh")
LAUNCHER = "mpirun.openmpi"
IS_FOUR = "(OpenRTE) 4" in (call([LAUNCHER, "--version"]).stdout if shutil.which(LAUNCHER) else "")

INSIDE = f"""
cd /tmp
launch() {{ "$@" {LAUNCHER} -n 2 /mine/rank; }}
launch > refused.txt 2>&1 && echo "starts before"
/mine/rdmalloc doctor -- {LAUNCHER} -n 2 /mine/program > found.txt
echo "doctor $?"
grep -v '^good' found.txt
sed -n 's/^ *fix: \\(export .*\\)/\\1/p' found.txt > mend.sh
. ./mend.sh
launch /mine/rdmalloc run --set DECAY_MS=0 --
echo "launch $?"
cat has.*
"""
RANK = """#!/bin/sh
rank=$OMPI_COMM_WORLD_RANK
{ grep -q librdmalloc /proc/self/maps && echo "rank $rank has us, $RDMALLOC_DECAY_MS"; } > has.$rank
exec /mine/program
"""


class Containers(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="rdmalloc-containers-")
        self.addCleanup(holder.cleanup)
        self.tools = holder.name
        launching.readable_by_all(self.tools)
        launching.copy_of_tool(TOOL, self.tools)
        shutil.copy(MPI_PROGRAM, self.tools + "/program")
        script(self.tools + "/rank", RANK)
        script(self.tools + "/inside", INSIDE)

    def run_in(self, lower, user):
        done = call(["prlimit", "--memlock=65536:65536", "unshare", "--mount", "--propagation",
                     "private", "--pid", "--fork", "--kill-child", CONTAINER, lower, self.tools,
                     "64m", user, "LD_LIBRARY_PATH=/mine", "bash", "/mine/inside"],
                    env=environment())
        words = done.stdout + done.stderr
        # Bad is what does not start; of warnings there is one at least.
        self.assertIn("doctor 1" if "starts before" in words else "doctor 2", words)
        self.assertEqual(user != "nobody", bool(re.search(r"(?m)^bad +root", words)), words)
        self.assertRegex(words, r"(?m)^warning +shm .*64 MiB")
        self.assertIn("docker run --shm-size", words)
        self.assertEqual(user != "root", bool(re.search(r"(?m)^warning +memlock .*64 KiB", words)), words)
        self.assertIn("launch 0", words)
        for rank in (0, 1):
            self.assertIn(f"rank {rank} has us, 0", words)
            self.assertIn(f"rank {rank}: 42 of 42 broadcasts right, 84 at all ranks", words)
        return words

    def test_this_machine(self):
        for user in ("root", "bare", "nobody"):
            words = self.run_in("/", user)
            if IS_FOUR:
                self.assertRegex(words, r"(?m)^bad +remote_shell")
                self.assertNotIn("starts before", words)

    @unittest.skipUnless(os.path.exists(launching.DEBIAN_13 + ".packages"),
                         "no Debian 13 here: tools/lab --release trixie fetch")
    def test_debian_13(self):
        for user in ("root", "bare", "nobody"):
            self.assertNotRegex(self.run_in(launching.DEBIAN_13, user), r"(?m)^bad +remote_shell")


if __name__ == "__main__":
    if MPI_PROGRAM == "none" or not shutil.which(LAUNCHER):
        print("SKIP: Open MPI is not installed: apt install openmpi-bin libopenmpi-dev")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as nothing:
        os.chmod(nothing, 0o755)
        tried = subprocess.run(["unshare", "--mount", "--propagation", "private", "--pid", "--fork",
                                CONTAINER, "/", nothing, "64m", "root", "true"], check=False,
                               stderr=subprocess.PIPE, text=True)
    if tried.returncode != 0:
        print(f"SKIP: roots can't be mounted here: {tried.stderr.strip()}")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], "-v"])
