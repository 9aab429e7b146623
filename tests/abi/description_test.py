#!/usr/bin/python3
"""The public functions of librdmalloc.so and their types are those of librdmalloc.abi (docs/versions.md).

    description_test.py LIBRDMALLOC_SO [--record]

--record writes the description anew: in the commit that changes the interface, with its line in CHANGELOG.md.
Seen to fail: with a member of a struct at another offset in the description, and with a function of another name.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DESCRIPTION = HERE / "librdmalloc.abi"
HEADERS = HERE.parents[1] / "include"
REASON = ("<!-- The interface of librdmalloc.so, written by description_test.py (abidw of libabigail). More than 600 lines: "
          "it has each type that a public function takes, to the last member. -->\n")


def public_functions(library):
    told = subprocess.run(["nm", "-D", "--defined-only", library], text=True, check=True, stdout=subprocess.PIPE).stdout
    return sorted(set(re.findall(r"\b(rdmalloc_\w+)", told)))


def describe(library, folder):
    """libabigail's XML of the public functions, without the paths of this machine."""
    listed = pathlib.Path(folder, "functions")
    listed.write_text("[abi_whitelist]\n" + "".join(f"  {name}\n" for name in public_functions(library)))
    text = subprocess.run(["abidw", "--exported-interfaces-only", "--kmi-whitelist", str(listed), "--headers-dir",
                           str(HEADERS), "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path",
                           "--drop-private-types", library], text=True, check=True, stdout=subprocess.PIPE).stdout
    return re.sub(r" path='[^']*?((?:alloc|regcache)/[^']*)'", r" path='\1'", text)


def main():
    library = sys.argv[1]
    if not shutil.which("abidw"):
        print("SKIP: no abidw (apt install abigail-tools)")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        text = describe(library, folder)
        if "--record" in sys.argv:
            DESCRIPTION.write_text(REASON + text)
            return
        now, before = pathlib.Path(folder, "now.abi"), pathlib.Path(folder, "before.abi")
        now.write_text(text)
        before.write_text(DESCRIPTION.read_text().removeprefix(REASON))
        done = subprocess.run(["abidiff", str(before), str(now)], text=True, check=False, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode != 0:
            print(done.stdout)
            sys.exit("FAILED: the interface is not the described one; docs/versions.md says what a change needs")


main()
