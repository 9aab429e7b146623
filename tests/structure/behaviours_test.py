#!/usr/bin/python3
"""docs/behaviours.md names tests that there are.

    behaviours_test.py BUILD

A name with a dot and capitals is a GoogleTest in a source of tests/; any other in a column of tests
is a ctest test of BUILD, or a program of which ctest lists the tests one by one.
Seen to fail: with a letter of a GoogleTest's name changed, with a program that there is not.
"""
import re
import subprocess
import sys
import unittest

import tree

BUILD = sys.argv[1]
DOCUMENT = tree.text("docs/behaviours.md")
GTEST = re.compile(r"`([A-Z]\w*\.\w+)`")
# Programs stand in tables only, and are ours by their ends and beginnings.
PROGRAM = re.compile(r"`((?:preload|cross)\.\w+|\w+_test|malloc_\w+)`")


class Behaviours(unittest.TestCase):
    def test_named_gtests_exist(self):
        there = set()
        for name in tree.sources("tests"):
            there |= {f"{suite}.{test}" for suite, test in
                      re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", tree.text(name), flags=re.M)}
        named = set(GTEST.findall(DOCUMENT))
        self.assertGreater(len(named), 60)
        self.assertEqual(named - there, set())

    def test_named_programs_are_run(self):
        listed = subprocess.run(["ctest", "--test-dir", BUILD, "-N"], stdout=subprocess.PIPE,
                                text=True, check=True).stdout
        names = set(re.findall(r"Test\s+#\d+: (\S+)", listed))
        # "program.Suite.test", or "program_NOT_BUILT" where only a part was built.
        programs = {name.split(".")[0].removesuffix("_NOT_BUILT") for name in names} | names
        named = {name for line in DOCUMENT.splitlines() if line.startswith("|")
                 for name in PROGRAM.findall(line)}
        self.assertGreater(len(named), 15)
        self.assertEqual(named - programs, set())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
