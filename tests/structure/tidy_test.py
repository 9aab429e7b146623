#!/usr/bin/python3
"""clang-tidy finds nothing in alloc/ and regcache/; .clang-tidy says what it looks for.

    tidy_test.py BUILD [--changed]

--changed: only files that differ from the last commit but one, for the inner loop.

What takes time is to parse the standard library's headers and to look at what they declare, for each
file anew. So files of the same options are read as one that includes them, by two at once on two
cores; those whose names (of anonymous namespaces, mostly) are taken by another go to the next round.
Where anything is found, each file of the round is looked at alone, and that is what counts. The two
checks that look at nothing but the file named look at each file alone that could break them.
Seen to fail: with `bool IsOdd` for `bool is_odd`, and with an unused `using std::map;`, in a file
of alloc/. Lines that break 34 checks, put into alloc/pages/arena.cc: each was found in it together
with 39 others where it was found in it alone, but for those of the two checks.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import tree


def changed():
    """Files of the last commit and of the work since; everything when git can't tell."""
    told = subprocess.run(["git", "-c", f"safe.directory={tree.ROOT}", "-C", tree.ROOT, "diff",
                           "--name-only", "HEAD~1"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return set(told.stdout.split()) if told.returncode == 0 else None


def compiled():
    """(options, name) of each way in which a file of alloc/ or regcache/ is compiled."""
    sources = set(tree.sources("alloc", "regcache"))
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    ways = {}
    for entry in entries:
        name = os.path.relpath(entry["file"], tree.ROOT)
        if name not in sources:
            continue
        words = shlex.split(entry["command"])[1:]
        # What another compiler has precompiled is none for clang.
        for option in ("-o", "-include"):
            while option in words:
                at = words.index(option)
                del words[at:at + 2]
        # CMake's own define for shared libraries, which no file of ours asks for.
        options = tuple(word for word in words if word not in ("-c", entry["file"], "-Winvalid-pch")
                        and not word.endswith("_EXPORTS"))
        ways[options, name] = None
    return list(ways)


# Of .clang-tidy's. They tell of declarations in the main file only.
OF_MAIN_FILES = "--checks=-*,misc-unused-alias-decls,misc-unused-using-decls"
FOR_MAIN_FILES = re.compile(r"\busing\s+(?!namespace\b)[^=;()]*;|\bnamespace\s+\w+\s*=")


def tidy(options, source, *more):
    return subprocess.run([CLANG_TIDY, "--quiet", f"--config-file={tree.ROOT}/.clang-tidy", *more,
                           source, "--", *options], cwd=tree.ROOT, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


def alone(options, name, *more):
    """[(name, what was found)] or [] when nothing was."""
    done = tidy(options, name, *more)
    return [(name, done.stdout)] if done.returncode != 0 else []


def write_together(path, names):
    with open(path, "w", encoding="utf-8") as file:
        # NOLINT: of the .cc that is included.
        file.writelines(f'#include "{tree.ROOT}/{name}"  // NOLINT\n' for name in names)


def that_fit(options, names, path):
    """Those of `names` that compile as one file, which is then at `path`."""
    while len(names) > 1:
        write_together(path, names)
        done = tidy(options, path, "--checks=-*,clang-diagnostic-error,misc-static-assert")
        if done.returncode == 0:
            break
        clash = set(re.findall(rf"^{re.escape(tree.ROOT)}/(\S+?):\d+:\d+: error:", done.stdout, re.M))
        rest = [name for name in names if name not in clash]
        names = rest if rest and len(rest) < len(names) else names[:len(names) // 2]
    return names


def together(options, names):
    """As alone(), of many files."""
    found = []
    for name in names:
        if FOR_MAIN_FILES.search(tree.text(name)):
            found += alone(options, name, OF_MAIN_FILES)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "together.cc")
        while names:
            fit = that_fit(options, names, path)
            names = [name for name in names if name not in fit]
            if len(fit) == 1 or tidy(options, path).returncode != 0:
                for name in fit:
                    found += alone(options, name)
    return found


BUILD = sys.argv[1]
CLANG_TIDY = tree.version_14("clang-tidy")
ways = compiled()
if not ways:
    sys.exit(f"{BUILD}/compile_commands.json has no file of alloc/ or regcache/")
if "--changed" in sys.argv[2:]:
    touched = changed()
    # A header is read through the files that include it, so a changed header means all of them.
    if touched is not None and not any(
            name.endswith((".h", ".hpp")) and name.startswith(("alloc/", "regcache/", "include/"))
            or name == ".clang-tidy" for name in touched):
        ways = [way for way in ways if way[1] in touched]

print(f"{len(ways)} files")
groups = {}
for options, name in ways:
    groups.setdefault(options, []).append(name)
parts = [(options, names[first::os.cpu_count()]) for options, names in groups.items()
         for first in range(min(os.cpu_count(), len(names)))]
failed = 0
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for found in pool.map(lambda part: together(*part), parts):
        for name, output in found:
            failed += 1
            print(f"---- {name}\n{output}")
sys.exit(1 if failed else 0)
