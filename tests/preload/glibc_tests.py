#!/usr/bin/python3
"""glibc's own tests of malloc, under the preload.

    glibc_tests.py LIBRDMALLOC [SOURCE]

SOURCE, or $GLIBC_SOURCE, is an unpacked glibc of this machine's version: `apt-get source glibc`, where
deb-src is among the sources of apt. Without one: SKIP. Its support library and malloc/tst-*.c are
built against the libc that is installed, and each program is run twice: with glibc's malloc, as the
control, and with ours. One that passes with glibc's malloc passes with ours, but for those that ask
for what is glibc's alone (GLIBC_ONLY); and tst-tcfree2, a double free, which needs RDMALLOC_CHECK=frees.

Seen to fail: tst-malloc-thread-fail with an errno that posix_memalign() put back, tst-tcfree2
without the setting.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

GLIBC_ONLY = {
    "tst-malloc-backtrace": "writes into the header before a freed block, which we have not",
    "tst-malloc-stats-cancellation": "asks for 'max mmap bytes' in malloc_stats()",
    "tst-safe-linking": "changes the links in freed blocks, which we have not",
}
CHECKED = ("tst-tcfree2",)
# Need more of glibc than its sources: symbols for old programs, or its insides.
NOT_BUILT = re.compile(r"tst-(mallocstate|compathooks|scratch_buffer|dynarray|interpose-(static|skeleton|aux)"
                       r"|mtrace)")
LEAST_BUILT = 34
HEADERS = ("include/array_length.h", "include/intprops.h",
           "include/libc-diag.h", "include/libc-pointer-arith.h", "include/alloc_buffer.h",
           "sysdeps/generic/malloc-size.h", "sysdeps/generic/malloc-alignment.h",
           "sysdeps/generic/stackinfo.h")
PARTS = ("malloc", "support", "include", "sysdeps", "nptl", "test-skeleton.c")
PATHS = ("SRCDIR_PATH", "OBJDIR_PATH", "OBJDIR_ELF_LDSO_PATH", "INSTDIR_PATH", "LIBDIR_PATH",
         "BINDIR_PATH", "SBINDIR_PATH", "SLIBDIR_PATH", "ROOTSBINDIR_PATH", "COMPLOCALEDIR_PATH")
# A program's main(), and the parts of glibc's test driver that are programs.
PROGRAMS = re.compile(r"(test-|links-dso|shell-container|echo-container|true-container|.*_main$)")


def compiler(source, folder):
    return ["gcc", "-O1", "-w", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-fno-builtin", f"-I{source}",
            "-idirafter", f"{source}/support", f"-I{folder}/include", "-idirafter", f"{source}/malloc",
            "-include", "stdbool.h", "-include", "limits.h", "-include", "stddef.h",
            "-DMODULE_NAME=testsuite", "-DTIMEOUTFACTOR=4", "-Dlibc_hidden_proto(x)=",
            "-Dlibc_hidden_def(x)=", "-Dattribute_hidden=", "-D__glibc_likely(x)=(x)",
            *(f'-D{name}="{folder}"' for name in PATHS)]


def quietly(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode == 0


def build(unpacked, folder):
    """The tests that could be built. Some of the support library can't be, which none of them wants."""
    source = folder / "source"
    for made in ("include", "support", "tests", "source"):
        (folder / made).mkdir()
    # Not all of it: its generic bits/ would be found before those of the libc that is installed.
    for part in PARTS:
        (source / part).symlink_to(unpacked / part)
    for header in HEADERS:
        shutil.copy(source / header, folder / "include")
    (folder / "include/libc-symbols.h").touch()
    compile_with = compiler(source, folder)
    objects = []
    for file in sorted((source / "support").glob("*.c")):
        if PROGRAMS.match(file.stem) and file.stem != "support_test_main":
            continue
        made = str(folder / "support" / (file.stem + ".o"))
        if quietly(*compile_with, "-c", str(file), "-o", made):
            objects.append(made)
    archive = str(folder / "libsupport.a")
    subprocess.run(["ar", "rc", archive, *objects], check=True)
    for file in sorted((source / "malloc").glob("tst-*.c")):
        if NOT_BUILT.match(file.stem) or file.stem in GLIBC_ONLY:
            continue
        parts = [str(file)]
        if file.stem.startswith("tst-interpose-"):
            parts.append(str(file.with_name(file.name.replace("interpose-", "interpose-aux-"))))
        program = str(folder / "tests" / file.stem)
        if quietly(*compile_with, *parts, "-o", program, archive, "-lpthread", "-ldl"):
            yield program
        else:
            print(f"{file.stem}: not built")


def passes(program, folder, **environment):
    """They end by themselves, after a time that they choose."""
    try:
        done = subprocess.run([program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
                              timeout=300, cwd=folder, env={**os.environ, **environment})
    except subprocess.TimeoutExpired:
        return False, "no end after 300 s"
    return done.returncode == 0, done.stdout[-600:]


def main(library, source=None):
    source = source or os.environ.get("GLIBC_SOURCE")
    if not source or not shutil.which("gcc"):
        print("SKIP: wants gcc, and glibc's sources in $GLIBC_SOURCE: apt-get source glibc")
        return 77
    wrong, built, compared = [], 0, 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = pathlib.Path(name)
        for program in build(pathlib.Path(source).resolve(), folder):
            test, built = os.path.basename(program), built + 1
            if not passes(program, folder)[0]:
                print(f"{test}: fails with glibc's malloc here")
                continue
            setting = {"RDMALLOC_CHECK": "frees"} if test in CHECKED else {}
            good, told = passes(program, folder, LD_PRELOAD=os.path.abspath(library), **setting)
            compared += 1
            print(f"{test}: {'passes' if good else 'FAILS: ' + told}", flush=True)
            if not good:
                wrong.append(test)
    print(f"{built} built, {compared} passed with glibc's malloc, of them {len(wrong)} fail with ours {wrong}")
    if built < LEAST_BUILT:
        wrong.append(f"of {LEAST_BUILT} that can be built on Debian 12 only {built} were")
        print(wrong[-1])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
