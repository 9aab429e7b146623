#!/usr/bin/python3
"""No folder depends on the order of the add_subdirectory() lines beside its own.

Configures the tree as it is and with each run of such lines reversed, and compares what comes out: every
rule of build.ninja and every test. Phases of the top level (the library, what uses it, the tests) stay.

    cmake_order_test.py SCRATCH

Seen to fail: bench/patterns with UCX's version as bench/regcache set it in its parent (no ucx_patterns);
tests/tools that asks for a target of tests/preload (its tests get no MPI program); and the library's objects
in the order in which alloc/ and regcache/ name them.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

import tree

# One folder, or one that an option may leave out.
FOLDER = r"(?:add_subdirectory\([^)]*\)[^\n]*\n|if\(\w+\)\n  add_subdirectory\([^)]*\)[^\n]*\nendif\(\)\n)"
RUN = re.compile(f"(?m)^{FOLDER}{{2,}}")
# Lists of everything below a folder, in the order of its lines.
SUMMARY = re.compile(r"build (\S*\ball: phony|cmake_object_order_depends_target_)")


def reversed_folders(text):
    """`text` with each run of folders reversed, and the number of folders in all runs."""
    count = 0

    def reverse(run):
        nonlocal count
        folders = re.findall(FOLDER, run.group())
        count += len(folders)
        return "".join(reversed(folders))
    return RUN.sub(reverse, text), count


def configure(scratch, change):
    """What a build of the tree comes to, as sorted lines, with CMakeLists.txt files as `change` makes them."""
    shutil.rmtree(scratch, ignore_errors=True)
    for name in tree.files():
        path = os.path.join(scratch, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.basename(name) == "CMakeLists.txt":
            with open(path, "w", encoding="utf-8") as file:
                file.write(change(tree.text(name)))
        else:
            os.symlink(os.path.join(tree.ROOT, name), path)
    build = os.path.join(scratch, "build")
    subprocess.run(["cmake", "-G", "Ninja", "-S", scratch, "-B", build, "-DCMAKE_BUILD_TYPE=RelWithDebInfo"],
                   check=True, stdout=subprocess.DEVNULL)
    lines = []
    for path in [os.path.join(build, "build.ninja"),
                 *glob.glob(os.path.join(build, "**/CTestTestfile.cmake"), recursive=True)]:
        with open(path, encoding="utf-8") as file:
            # A line number in a CMakeLists.txt is no part of a test.
            lines += [re.sub(r" _BACKTRACE_TRIPLES.*", "", line) for line in file]
    return sorted(line for line in lines if not SUMMARY.match(line) and not line.startswith("subdirs("))


class Order(unittest.TestCase):
    def test_the_build_is_the_same_with_folders_reversed(self):
        counts = [reversed_folders(tree.text(name))[1] for name in tree.files()
                  if os.path.basename(name) == "CMakeLists.txt"]
        self.assertGreater(sum(counts), 40, "the pattern no longer finds the folders")
        as_is = configure(SCRATCH, lambda text: text)
        other = configure(SCRATCH, lambda text: reversed_folders(text)[0])
        self.assertGreater(len(as_is), 10000)
        missing, added = set(as_is) - set(other), set(other) - set(as_is)
        self.assertEqual(([], []), (sorted(missing)[:20], sorted(added)[:20]),
                         "with folders reversed these lines are gone, and these are new")
        self.assertEqual(as_is, other)
        shutil.rmtree(SCRATCH)


if __name__ == "__main__":
    SCRATCH = sys.argv.pop()
    unittest.main(argv=[sys.argv[0], "-v"])
