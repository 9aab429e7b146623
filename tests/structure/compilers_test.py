#!/usr/bin/python3
"""The libraries and the public headers compile, without a warning, with g++ and with clang++.

    compilers_test.py SCRATCH_FOLDER [--release]

All libraries by clang++ with -Werror; each public header alone, as C11 and as C++20 (.hpp: C++20 only).
g++ compiles everything for ./test anyway, under CI with -Werror; --release: the libraries by g++ -O3.
Seen to fail: with an unused variable in alloc/core/lock.cc; with <stddef.h> taken out of rdmalloc.h;
with RDMALLOC_ADDRESS_ONLY left empty ("may be used uninitialized").
"""
import os
import shutil
import subprocess
import sys
import unittest

import tree

SCRATCH, RELEASE = sys.argv[1], "--release" in sys.argv[2:]
COMPILERS = {"gcc": ("gcc", "g++"), "clang": ("clang", "clang++")}

# Memory that nothing has filled yet, given to each function that takes an address only.
FRESH_MEMORY = """
#include <rdmalloc/regcache.h>
#include <stdlib.h>
int ask(struct rdmalloc_domain* domain, struct rdmalloc_heap* heap, int which);
int ask(struct rdmalloc_domain* domain, struct rdmalloc_heap* heap, int which) {
  char* block = (char*)malloc(1000);
  char on_stack[100];
  struct rdmalloc_reg* reg;
  struct rdmalloc_key key;
  struct rdmalloc_range range;
  int done = -1;
  range.size = sizeof range;
  if (block == NULL) return -1;
  switch (which) {
    case 0: done = rdmalloc_owns(block); break;
    case 1: done = rdmalloc_range_of(block, &range); break;
    case 2: done = rdmalloc_range_is_idle(block, 1000); break;
    case 3: done = rdmalloc_range_is_free(block, 1000); break;
    case 4: done = rdmalloc_reg_get(domain, block, 1000, RDMALLOC_ACCESS_LOCAL, &reg); break;
    case 5: done = rdmalloc_reg_key(domain, block, 1000, RDMALLOC_ACCESS_LOCAL, &key); break;
    case 6: done = rdmalloc_heap_key(heap, 0, block, 1000, &key); break;
    case 7: done = rdmalloc_adopt(on_stack, sizeof on_stack); break;
    case 8: done = rdmalloc_disown(on_stack, sizeof on_stack); break;
    case 9: done = (int)rdmalloc_invalidate(domain, block, 1000, NULL, NULL); break;
  }
  free(block);
  return done;
}
"""


def run(*command, text=""):
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)
    return done.returncode, done.stdout[-6000:]


class Compilers(unittest.TestCase):
    def compiler(self, name):
        pair = COMPILERS[name]
        if not all(map(shutil.which, pair)):
            print(f"SKIP: no {name} here; tools/setup.sh installs it")
            self.skipTest(f"no {name}")
        return pair

    def build(self, name, *options):
        c_compiler, cxx_compiler = self.compiler(name)
        folder = os.path.join(SCRATCH, name)
        status, output = run(
            "cmake", "-G", "Ninja", "-S", tree.ROOT, "-B", folder, f"-DCMAKE_C_COMPILER={c_compiler}",
            f"-DCMAKE_CXX_COMPILER={cxx_compiler}", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",
            "-DBUILD_TESTING=OFF", "-DRDMALLOC_BUILD_BENCH=OFF", "-DRDMALLOC_BUILD_TOOLS=OFF", *options)
        self.assertEqual(status, 0, output)
        status, output = run("cmake", "--build", folder, "--parallel", str(os.cpu_count()))
        self.assertEqual(status, 0, output)

    def headers_alone(self, name):
        c_compiler, cxx_compiler = self.compiler(name)
        ways = {".h": [(c_compiler, "-std=c11", "c"), (cxx_compiler, "-std=c++20", "c++")],
                ".hpp": [(cxx_compiler, "-std=c++20", "c++")]}
        for header in tree.sources("include"):
            for compiler, standard, language in ways[os.path.splitext(header)[1]]:
                with self.subTest(header=header, compiler=compiler):
                    status, output = run(
                        compiler, standard, "-x", language, "-fsyntax-only", "-Wall", "-Wextra",
                        "-Wpedantic", "-Werror", "-I", os.path.join(tree.ROOT, "include"), "-",
                        text=f"#include <{os.path.relpath(header, 'include')}>\n")
                    self.assertEqual(status, 0, output)

    def fresh_memory(self, name):
        c_compiler, cxx_compiler = self.compiler(name)
        for compiler, language in ((c_compiler, "c"), (cxx_compiler, "c++")):
            for optimised in ("-O0", "-O2", "-O3"):
                with self.subTest(compiler=compiler, optimised=optimised):
                    status, output = run(compiler, "-x", language, optimised, "-Wall", "-Wextra", "-Werror", "-c", "-o",
                                         os.devnull, "-I", os.path.join(tree.ROOT, "include"), "-", text=FRESH_MEMORY)
                    self.assertEqual(status, 0, output)

    def test_fresh_memory_with_gcc(self):
        self.fresh_memory("gcc")

    def test_fresh_memory_with_clang(self):
        self.fresh_memory("clang")

    @unittest.skipUnless(RELEASE, "--release")
    def test_libraries_with_gcc_release(self):
        # Not RelWithDebInfo: -O3 inlines more, and warns of what it then sees.
        self.build("gcc", "-DCMAKE_BUILD_TYPE=Release")

    def test_libraries_with_clang(self):
        # Without precompiled headers: a file includes what it uses.
        self.build("clang", "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DRDMALLOC_PRECOMPILE=OFF")

    def test_headers_alone_with_gcc(self):
        self.headers_alone("gcc")

    def test_headers_alone_with_clang(self):
        self.headers_alone("clang")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *(["Compilers.test_libraries_with_gcc_release"] if RELEASE else [])])
