#!/usr/bin/python3
"""Runs a case (a shell script) without and with librdmalloc.so preloaded, and compares.

    smoke.py LIBRARY CASE.sh

Three runs in fresh folders of the same name: without the preload; with it; with it and purging at
every chance, by a thread in each process (RDMALLOC_DECAY_MS=0, RDMALLOC_PURGE=thread). Standard output and exit status must be equal, and neither the
loader nor rdmalloc may have anything to say. The preload holds for the whole script: its shell, all
its children and theirs. A case that ends with 77 in the first run is skipped; it says why, as does one that leaves a
part out, in a line that begins with "SKIP:".

Seen to fail: with a library whose realloc copies one byte too few (gcc, sort, python), and with a
path to a library that is not there (every case: "loader").
"""
import os
import shutil
import subprocess
import sys
import tempfile

LIBRARY, CASE = sys.argv[1], os.path.abspath(sys.argv[2])
# Orders that depend on addresses or on chance are fixed, so that outputs can be compared at all.
FIXED = {"PERL_HASH_SEED": "0", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC",
         "GIT_CONFIG_NOSYSTEM": "1"}


def run(folder, extra, command=("bash", CASE)):
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder)
    environment = {**os.environ, **FIXED, "HOME": folder, "TMPDIR": folder, **extra}
    return subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", check=False)


def complaints(text):
    return [line for line in text.splitlines()
            if line.startswith("rdmalloc:") or "ld.so" in line or "LD_PRELOAD" in line]


def differences(before, after):
    if before.returncode != after.returncode:
        yield f"exit status {before.returncode} without, {after.returncode} with the preload"
    if before.stdout != after.stdout:
        yield f"output without:\n{before.stdout[-3000:]}\noutput with:\n{after.stdout[-3000:]}"
    said = complaints(after.stderr)
    if said:
        yield "the loader or rdmalloc said:\n" + "\n".join(said)


def main():
    preload = {"LD_PRELOAD": LIBRARY}
    ways = {"preloaded": preload,
            "preloaded, purging at every chance": {**preload, "RDMALLOC_DECAY_MS": "0",
                                                   "RDMALLOC_PURGE": "thread"}}
    failed = False
    with tempfile.TemporaryDirectory(prefix="rdmalloc-smoke-") as parent:
        folder = os.path.join(parent, "work")
        maps = run(folder, preload, ("cat", "/proc/self/maps"))
        if os.path.realpath(LIBRARY) not in maps.stdout:
            print(f"the loader did not load {LIBRARY}: {maps.stderr}")
            return 1
        before = run(folder, {})
        # The end of it, from a line's begin, and each part that was left out before.
        cut = before.stdout.rfind("\n", 0, max(len(before.stdout) - 2000, 0)) + 1
        for line in before.stdout[:cut].splitlines():
            if line.startswith("SKIP:"):
                print(line)
        print(before.stdout[cut:], end="")
        if before.returncode != 0:
            print(before.stderr)
            print(f"without the preload: exit status {before.returncode}")
            return before.returncode
        for way, extra in ways.items():
            after = run(folder, extra)
            found = list(differences(before, after))
            print(f"{way}: {'FAILED' if found else 'the same'}")
            for difference in found:
                failed = True
                print(difference)
            if found:
                print(f"standard error:\n{after.stderr[-4000:]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
