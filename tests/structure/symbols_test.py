#!/usr/bin/python3
"""What librdmalloc.so asks of the loader and shows to other programs.

    symbols_test.py LIBRDMALLOC_SO [LIBRDMALLOC_A]

It is preloaded into everything, so whatever it links or exports by mistake is everybody's problem.
Seen to fail: with the library linked as C++ (NEEDED libstdc++), with one function of alloc/ given
default visibility, with -ftls-model taken out of cmake/options.cmake, with rdmalloc_init left out of the version
script.
"""
import re
import subprocess
import sys
import unittest

LIBRARY = sys.argv[1]
FAMILY = """malloc calloc realloc reallocarray free cfree posix_memalign aligned_alloc memalign valloc
pvalloc malloc_usable_size malloc_trim mallinfo mallinfo2 malloc_stats malloc_info mallopt free_sized
free_aligned_sized""".split()
# Functions of other families that we stand in front of, each for a reason told where it is defined
# (alloc/api/): the start of a second thread, of a child, of a fabric's patching.
INTERPOSED = ("pthread_create thrd_create fork vfork dlopen dlclose setrlimit setrlimit64 prlimit "
              "prlimit64 mlockall").split()
# The same, where a patcher of libc must find libc's own: with libc's version, but not as default.
IN_FRONT = "munmap madvise process_madvise mremap mmap mmap64 shmdt shmat mprotect".split()
VERSIONS = ["GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.36", "RDMALLOC_0"]  # the nodes of those versions
LOADER = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def readelf(*options):
    return subprocess.run(["readelf", "-W", *options, LIBRARY], stdout=subprocess.PIPE, text=True,
                          check=True).stdout


def exported():
    return (name.split("@")[0] for name in exported_with_versions())


def exported_with_versions():
    for line in readelf("--dyn-syms").splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[6] != "UND" and fields[4] in ("GLOBAL", "WEAK") \
                and fields[5] == "DEFAULT" and fields[0].endswith(":"):
            yield fields[7]


class Symbols(unittest.TestCase):
    def test_needs_libc_only(self):
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d")))
        self.assertLessEqual(needed, LOADER)
        self.assertIn("libc.so.6", needed)

    def test_has_no_text_relocations(self):
        self.assertNotIn("TEXTREL", readelf("-d"))

    def test_thread_local_variables_cost_no_call(self):
        # General and local dynamic TLS would call __tls_get_addr, which may call malloc.
        self.assertNotIn("__tls_get_addr", readelf("--dyn-syms"))
        self.assertIn("STATIC_TLS", readelf("-d"))

    def test_resolves_its_symbols_at_start(self):
        # A lazy binding would enter the loader, and its lock, from inside malloc.
        self.assertRegex(readelf("-d"), r"BIND_NOW|FLAGS_1.*NOW")

    def test_asks_for_no_executable_stack(self):
        stack = next(line for line in readelf("-l").splitlines() if "GNU_STACK" in line)
        self.assertNotRegex(stack, r"RWE|R E")

    def test_exports_the_malloc_family(self):
        self.assertEqual(set(FAMILY) - set(exported()), set())

    def test_exports_every_operator_new_and_delete(self):
        names = set(exported())
        plain = ["_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm"]
        nothrow = ["_ZnwmRKSt9nothrow_t", "_ZnamRKSt9nothrow_t", "_ZdlPvRKSt9nothrow_t",
                   "_ZdaPvRKSt9nothrow_t"]
        aligned = ["_ZnwmSt11align_val_t", "_ZnamSt11align_val_t", "_ZdlPvSt11align_val_t",
                   "_ZdaPvSt11align_val_t", "_ZdlPvmSt11align_val_t", "_ZdaPvmSt11align_val_t"]
        aligned_nothrow = [f"_Z{kind}St11align_val_tRKSt9nothrow_t"
                           for kind in ("nwm", "nam", "dlPv", "daPv")]
        self.assertEqual(set(plain + nothrow + aligned + aligned_nothrow) - names, set())

    def test_patchers_of_libc_do_not_find_us(self):
        # name@VERSION binds what is linked; dlsym(name) finds only name or name@@VERSION.
        seen = {name for name in exported_with_versions() if name.split("@")[0] in IN_FRONT}
        self.assertEqual({name.split("@")[0] for name in seen}, set(IN_FRONT))
        self.assertEqual([name for name in seen
                          if not re.fullmatch(r"\w+@GLIBC_2\.(2\.5|17|36)", name)], [])

    def test_our_own_have_our_version(self):
        # A function whose name the version script misses has none.
        own = [name for name in exported_with_versions() if name.startswith("rdmalloc_")]
        self.assertGreater(len(own), 50)
        self.assertEqual([name for name in own if not name.endswith("@@RDMALLOC_0")], [])

    def test_exports_nothing_else(self):
        allowed = re.compile(r"rdmalloc_\w+|__libc_\w+|__posix_memalign|_Z(nw|na|dl|da)\w+")
        others = [name for name in exported()
                  if name not in FAMILY + INTERPOSED + IN_FRONT + VERSIONS and not allowed.fullmatch(name)]
        self.assertEqual(others, [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
