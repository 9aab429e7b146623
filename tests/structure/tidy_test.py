#!/usr/bin/python3
"""clang-tidy finds nothing in alloc/ and regcache/; .clang-tidy says what it looks for.

    tidy_test.py BUILD [--changed]

--changed: only files that differ from the last commit but one, for the inner loop.
Seen to fail: with `bool IsOdd` for `bool is_odd` in a file of alloc/.
"""
import concurrent.futures
import json
import os
import subprocess
import sys

import tree


def changed():
    """Files of the last commit and of the work since; everything when git can't tell."""
    told = subprocess.run(["git", "-c", f"safe.directory={tree.ROOT}", "-C", tree.ROOT, "diff",
                           "--name-only", "HEAD~1"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return set(told.stdout.split()) if told.returncode == 0 else None


def tidy(name):
    return name, subprocess.run([CLANG_TIDY, "--quiet", "-p", BUILD, name], cwd=tree.ROOT, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


BUILD = sys.argv[1]
CLANG_TIDY = tree.version_14("clang-tidy")
with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
    compiled = {os.path.relpath(entry["file"], tree.ROOT) for entry in json.load(file)}
names = [name for name in tree.sources("alloc", "regcache") if name in compiled]
if not names:
    sys.exit(f"{BUILD}/compile_commands.json has no file of alloc/ or regcache/")
if "--changed" in sys.argv[2:]:
    touched = changed()
    # A header is read through the files that include it, so a changed header means all of them.
    if touched is not None and not any(
            name.endswith((".h", ".hpp")) and name.startswith(("alloc/", "regcache/", "include/"))
            or name == ".clang-tidy" for name in touched):
        names = [name for name in names if name in touched]

print(f"{len(names)} files")
failed = 0
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for name, done in pool.map(tidy, names):
        if done.returncode != 0:
            failed += 1
            print(f"---- {name}\n{done.stdout}")
sys.exit(1 if failed else 0)
