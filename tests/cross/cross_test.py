#!/usr/bin/python3
"""The libraries built for aarch64 by the cross compiler, and tests of them under qemu-user.

    cross_test.py SCRATCH_FOLDER

What an emulator of user programs can't show is left out, by name: resident memory (it is the
emulator's), forks (its madvise(2) accepts MADV_WIPEONFORK and wipes nothing), threads by the
thousand. That memory orderings suffice is not shown either: the host's are stronger.

Pages of 64 KiB, which such machines may have, are the emulator's: it tells programs and the loader so, and
refuses what is not made of whole ones. Seen to fail: linked with -z max-page-size=4096, the library is not
loaded there.
"""
import os
import shutil
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SCRATCH = sys.argv[1]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"
PROGRAMS = {
    "malloc_sizes_test": "*",
    "malloc_alignment_test": "*",
    "malloc_realloc_test": "-*to_zero_frees*",
    "patched_text_test": "*",
    "helper_threads_test": "*",
    "regcache_test": "Hits.*:Purge.*:Limits.*:Domains.*:-*limits_come_from_the_environment*",
}
# Without those that count pages of 4 KiB, of which a slab has sixteen.
OF_LARGE_PAGES = {
    "regcache_test": "Hits.*:Limits.*:Domains.*:-*limits_come_from_the_environment*:*_its_pages:"
                     "*foreign_memory_is_registered_on_get*",
}


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, errors="replace", **options)
    return done.returncode, done.stdout[-6000:]


class Aarch64(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for tool in (COMPILER, EMULATOR):
            if not shutil.which(tool):
                print(f"SKIP: no {tool} here; tools/setup.sh installs it")
                sys.exit(77)
        status, output = run(
            "cmake", "-G", "Ninja", "-S", HERE, "-B", SCRATCH, "--toolchain",
            os.path.join(ROOT, "cmake", "toolchains", "aarch64.cmake"),
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON")
        if status == 0:
            status, output = run("cmake", "--build", SCRATCH, "--parallel", str(os.cpu_count()))
        if status != 0:
            raise AssertionError(output)

    def emulated(self, name, test_filter, *options):
        status, output = run(EMULATOR, "-L", LIBRARIES, *options,
                             os.path.join(SCRATCH, "bin", name), "--gtest_brief=1",
                             f"--gtest_filter={test_filter}")
        self.assertEqual(status, 0, output)
        self.assertIn("[  PASSED  ]", output)
        self.assertNotIn("cannot be preloaded", output)  # else libc's malloc was tested

    def test_prefixed(self):
        # The emulator takes 20 s for the first block of each program, in whose arena of 1 TiB it keeps
        # account of every page. Below, where the library is preloaded, the arena has that size.
        for name, test_filter in PROGRAMS.items():
            with self.subTest(program=name):
                self.emulated(name, test_filter, "-E", "RDMALLOC_ARENA=64G")

    def test_preloaded(self):
        library = os.path.join(SCRATCH, "lib", "librdmalloc.so")
        self.emulated("malloc_sizes_test_preload", "*", "-E", f"LD_PRELOAD={library}")

    def test_pages_of_64_kib(self):
        pages, arena = ("-p", "65536"), ("-E", "RDMALLOC_ARENA=64G")
        for name, test_filter in PROGRAMS.items():
            with self.subTest(program=name):
                self.emulated(name, OF_LARGE_PAGES.get(name, test_filter), *pages, *arena)
        library = os.path.join(SCRATCH, "lib", "librdmalloc.so")
        self.emulated("malloc_sizes_test_preload", "*", *pages, *arena, "-E", f"LD_PRELOAD={library}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
