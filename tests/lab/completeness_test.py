#!/usr/bin/python3
"""What did not run fails the test that should have run it, and what hangs shows its stacks. With guests made up here: no boot.

Each was seen to fail: all of these scripts passed with what their test here takes away; hangs ended by timeout(1).
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import application_registrations
import endpoint_end_test
import kernels_test
import matrix
import nodes_test
import reports_test
import stacks

HERE = os.path.dirname(os.path.abspath(__file__))


def guest_of_cells(results_of, status=0):
    """Stands for tools/lab that runs cells.py."""
    def run(words, **_):
        with open(words[-2], encoding="utf-8") as file:
            names = [cell["name"] for cell in json.load(file)]
        with open(words[-1], "w", encoding="utf-8") as file:
            json.dump(results_of(names), file)
        return subprocess.CompletedProcess(words, status)
    return run


def went_well(name):
    return {"name": name, "outcome": "done", "mutexes": [], "packets": 1000, "registrations": 9, "seconds": 1,
            "output": ["broadcasts 120 wrong_bytes 0 recycled 20 came_back 19 wrong_recycled 0"]}


class Matrix(unittest.TestCase):
    def status(self, run):
        with tempfile.TemporaryDirectory() as build, mock.patch.object(matrix.subprocess, "run", run), \
                mock.patch.object(sys, "argv", ["matrix.py", "--build", build, "--only", r"\| rdmalloc T1"]):
            for folder in ("lib", "bin"):
                os.mkdir(os.path.join(build, folder))
            files = [f"lib/{one.library}" for one in stacks.ALLOCATORS if one.library]
            files += ["bin/lab_broadcast", "bin/lab_registrations", "bin/lab_heap_that_shrinks"]
            for file in files:
                with open(os.path.join(build, file), "w", encoding="ascii"):
                    pass
            return matrix.main()

    def test_guest_that_dies_before_its_last_cell_is_a_problem(self):
        self.assertEqual(self.status(guest_of_cells(lambda names: [went_well(name) for name in names])), 0)
        self.assertEqual(self.status(guest_of_cells(lambda names: [went_well(name) for name in names[:-1]])), 1)
        self.assertEqual(self.status(guest_of_cells(lambda names: [went_well(name) for name in names], 125)), 1)


class Applications(unittest.TestCase):
    def status(self, run):
        with tempfile.TemporaryDirectory() as build, mock.patch.object(application_registrations.subprocess, "run", run), \
                mock.patch.object(sys, "argv", ["application_registrations.py", build, "--only", r"start\|glibc"]):
            return application_registrations.main()

    def test_guest_that_dies_before_its_last_cell_is_a_problem(self):
        self.assertEqual(self.status(guest_of_cells(lambda names: [went_well(name) for name in names])), 0)
        self.assertEqual(self.status(guest_of_cells(lambda names: [went_well(name) for name in names[:-1]])), 1)
        self.assertEqual(self.status(guest_of_cells(lambda names: [went_well(name) for name in names], 125)), 1)


class Ends(unittest.TestCase):
    def test_jobs_are_as_many_as_were_to_run(self):
        endpoints = "".join(f"run endpoint {unread} {mode}\nended 3 rounds, 5 purges\nstatus 0\n"
                            for unread in endpoint_end_test.UNREAD for mode in endpoint_end_test.MODES)
        jobs = "".join(f"run job 1 {mode}\n"
                       "rank 0 finalized, wrong_bytes 0, purges 1\nrank 1 finalized, wrong_bytes 0, purges 1\nstatus 0\n"
                       for mode in endpoint_end_test.MODES)
        self.assertEqual(endpoint_end_test.problems_of("host", endpoints, 0), [])
        self.assertEqual(endpoint_end_test.problems_of("host", endpoints + jobs, 1), [])
        self.assertEqual(endpoint_end_test.problems_of("host", endpoints + jobs, 2), ["host: 3 of 6 jobs"])


class Nodes(unittest.TestCase):
    def test_build_without_the_library_is_refused(self):
        def only_glibc(words, **_):
            return subprocess.CompletedProcess(words, 0, stdout='[0]\n{"foreign": 0, "bytes": 1}\nstatus 0\n')
        with tempfile.TemporaryDirectory() as build, mock.patch.object(nodes_test.subprocess, "run", only_glibc), \
                self.assertRaisesRegex(SystemExit, "there is no .*librdmalloc"):
            nodes_test.looked_at(build, 2, False)


class Hangs(unittest.TestCase):
    def output(self, script):
        return subprocess.run(["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False).stdout

    def hangs(self, folder, name):
        """A program that does."""
        program = pathlib.Path(folder, "bin", name)
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\nexec sleep 1000\n", encoding="ascii")
        program.chmod(0o755)

    def test_run_of_nodes_that_hangs_shows_its_stacks(self):
        scripts = []

        def guest(words, **_):
            scripts.append(words[-1])
            return subprocess.CompletedProcess(words, 125, stdout="")
        with tempfile.TemporaryDirectory() as build:
            self.hangs(build, "lab_nodes")
            library = pathlib.Path(build, "lib", "librdmalloc.so")
            library.parent.mkdir()
            library.touch()
            with mock.patch.object(nodes_test.subprocess, "run", guest), mock.patch.object(nodes_test, "RUN_LIMIT_S", 1), \
                    self.assertRaises(SystemExit):
                nodes_test.looked_at(build, 2, False)
            output = self.output(next(line for line in scripts[0].splitlines() if line.startswith("echo '[0]'")))
        self.assertIn("status 124", output)
        self.assertRegex(output, "---- process .*sleep 1000")

    def test_program_that_hangs_under_a_kernel_shows_its_stacks(self):
        loop = kernels_test.GUEST[:kernels_test.GUEST.index("while read")].replace("cd /tmp", "cd {bin}")
        with tempfile.TemporaryDirectory() as build:
            self.hangs(build, "program")
            output = self.output(loop.format(bin=f"{build}/bin", programs="program", limited=f"{kernels_test.WITH_STACKS} 1"))
        self.assertIn("program: 124", output)
        self.assertRegex(output, "---- process .*sleep 1000")


class Headers(unittest.TestCase):
    def test_reports_skip_nothing_in_continuous_integration(self):
        with mock.patch.object(reports_test.os.path, "exists", lambda _: False), \
                mock.patch.object(sys, "argv", ["reports_test.py", "host", "/no/such"]):
            with mock.patch.dict(os.environ, {"CI": ""}):
                self.assertEqual(reports_test.main(), 77)
            with mock.patch.dict(os.environ, {"CI": "true"}):
                self.assertEqual(reports_test.main(), 1)


class Checkpoints(unittest.TestCase):
    def test_criu_that_does_not_work_is_a_skip_and_no_success(self):
        with tempfile.TemporaryDirectory() as lab:
            root = os.path.join(lab, "roots", "trixie")
            os.makedirs(os.path.join(lab, "kernels", "made-up"))
            os.makedirs(os.path.join(root, "lib64"))
            packages = subprocess.run(["bash", "-c", f". {HERE}/../../tools/lab.d/root.sh; root_packages trixie"],
                                      stdout=subprocess.PIPE, check=True).stdout
            with open(root + ".packages", "wb") as file:
                file.write(packages)
            with open(root + "/lib64/ld-linux-x86-64.so.2", "w", encoding="ascii") as loader:
                loader.write("#!/bin/sh\nexit 1\n")
            os.chmod(loader.name, 0o755)
            done = subprocess.run([sys.executable, f"{HERE}/checkpoint_test.py", "program", "rdmalloc", "library"],
                                  env={**os.environ, "RDMALLOC_LAB_DIR": lab}, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)
        self.assertIn("SKIP: CRIU does not work", done.stdout)
        self.assertEqual(done.returncode, 77, done.stdout)


if __name__ == "__main__":
    unittest.main()
