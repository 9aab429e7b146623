#!/usr/bin/python3
"""What contributors are told is so: the first change of CONTRIBUTING.md applies, the tests that it runs
exist, the layout of .editorconfig holds, the version is everywhere the same.

Seen to fail: with kFewLeft renamed in machine_checks.cc, with a ctest name misspelt, with a blank at the
end of a line of README.md, with version 0.1.0 in CITATION.cff.
"""
import configparser
import os
import re
import subprocess
import textwrap
import unittest

import tree

PAGE = tree.text("CONTRIBUTING.md")
VERSION = ".".join(re.search(rf"RDMALLOC_VERSION_{part} (\d+)", tree.text("include/rdmalloc/rdmalloc.h"))[1]
                   for part in ("MAJOR", "MINOR", "PATCH"))
TEXTS = (".md", ".py", ".sh", ".cc", ".c", ".h", ".hpp", ".cpp", ".cmake", ".txt", ".cff", ".yml", ".in")


class FirstChange(unittest.TestCase):
    def test_the_pages_differences_apply(self):
        changes = [textwrap.dedent(found) for found in
                   re.findall(r"^ *```diff\n(.*?)^ *```$", PAGE, flags=re.M | re.S)]
        self.assertEqual(len(changes), 2)
        for change in changes:
            # Counted anew: an editor may have taken the blank off a line of context.
            done = subprocess.run(["git", "apply", "--check", "--recount", "-"], cwd=tree.ROOT, text=True,
                                  input=change, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  check=False)
            self.assertEqual((done.returncode, done.stdout), (0, ""), change)

    def test_the_tests_that_it_runs_exist(self):
        lists = "\n".join(tree.text(name) for name in tree.files() if name.endswith("CMakeLists.txt"))
        there = set(re.findall(r"rdmalloc_test\(NAME ([\w.]+)", lists))
        patterns = re.findall(r"ctest --test-dir \S+ -R '\^\(?(.*?)\)?\$'", PAGE)
        named = {name for pattern in patterns for name in pattern.split("|")}
        self.assertGreater(len(named), 3)
        self.assertEqual(named - there, set())


class Layout(unittest.TestCase):
    def test_texts_are_as_editors_are_told(self):
        told = configparser.ConfigParser()
        told.read_string("[top]\n" + tree.text(".editorconfig"))
        self.assertEqual(dict(told["*"])["end_of_line"], "lf")
        wrong = []
        for name in tree.files():
            if not name.endswith(TEXTS):
                continue
            with open(os.path.join(tree.ROOT, name), encoding="utf-8", newline="") as file:
                lines = file.read().split("\n")
            if lines[-1] != "":
                wrong.append(f"{name}: no end of its last line")
            for number, line in enumerate(lines, 1):
                if line != line.rstrip() or "\t" in line:
                    wrong.append(f"{name}:{number}: {line[:60]!r}")
        self.assertEqual(wrong, [])


class Version(unittest.TestCase):
    def test_is_that_of_the_header(self):
        self.assertIn(f"\nversion: {VERSION}\n", tree.text("CITATION.cff"))
        self.assertEqual(re.search(r"^## (\d+\.\d+\.\d+)", tree.text("CHANGELOG.md"), flags=re.M)[1], VERSION)
        self.assertTrue(tree.text("debian/changelog").startswith(f"rdmalloc ({VERSION}) "))


if __name__ == "__main__":
    unittest.main(argv=[__file__, "-v"])
