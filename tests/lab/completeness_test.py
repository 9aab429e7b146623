#!/usr/bin/python3
"""What did not run fails the test that should have run it. With guests made up here: no boot.

Each was seen to fail: all of these scripts passed with what their test here takes away.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import matrix
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


if __name__ == "__main__":
    unittest.main()
