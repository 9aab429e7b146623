#!/usr/bin/python3
"""What `cmake --install` puts down can be used by others: CMake, pkg-config, preload, man.

    install_test.py BUILD SCRATCH

Seen to fail: with install(EXPORT) left out; with -lrdmalloc left out of the .pc file; with the man
pages' glob misspelt; with all of UCX's libraries linked whole; with malloc.cc left in the archive by a program
that links with -flto, or that only libc calls malloc for (strdup).
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import unittest

BUILD, SCRATCH = sys.argv[1], sys.argv[2]
PREFIX = os.path.join(SCRATCH, "prefix")
# In continuous integration none is missing, or tools/setup.sh is wrong.
REGISTRARS = ["dpdk", "libfabric", "mlock", "spdk", "ucx", "uring", "verbs"]
CONSUMER = r"""
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
  void* block = malloc(100000);
  void* own = rdmalloc_malloc(100);
  /* Through volatile: a compiler may leave out a malloc whose block is not used. */
  void* volatile seen = block;
  printf("%s %d %d\n", rdmalloc_version(), rdmalloc_owns(seen), rdmalloc_owns(own));
  rdmalloc_free(own);
  free(block);
  return 0;
}
"""
# No malloc and no free that the linker could look for in the archive.
BY_LIBC = r"""
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <string.h>
int main(int count, char** words) {
  printf("%d %d\n", count, rdmalloc_owns(strdup(words[0])));
  return 0;
}
"""
# Nor anything else of ours.
OF_LIBC_ONLY = r"""
#include <stdio.h>
#include <string.h>
int main(int count, char** words) {
  printf("%d %s\n", count, strdup(words[0]) != NULL ? "here" : "gone");
  return 0;
}
"""
STATIC_PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(consumer C)
find_package(rdmalloc 0.2 REQUIRED)
foreach(name consumer by_libc of_libc_only)
  foreach(whole OFF ON)
    add_executable(${name}_${whole} ${name}.c)
    set_property(TARGET ${name}_${whole} PROPERTY INTERPROCEDURAL_OPTIMIZATION ${whole})
    target_link_libraries(${name}_${whole} rdmalloc::static)
  endforeach()
endforeach()
"""
PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(consumer C)
find_package(rdmalloc 0.2 REQUIRED COMPONENTS rdmalloc prefixed)
foreach(kind rdmalloc static prefixed)
  add_executable(with_${kind} consumer.c)
  target_link_libraries(with_${kind} rdmalloc::${kind})
endforeach()
"""


# A header names its fabric's types without including anything of the fabric, as C and as C++.
REGISTRAR_CONSUMER = """
#include <rdmalloc/registrar_{name}.h>
#include <stddef.h>
#include <stdio.h>
int main(void) {{
  const void* open = (const void*)rdmalloc_domain_open_{name};
  puts(open != NULL ? rdmalloc_version() : "nothing");
  return 0;
}}
"""
REGISTRAR_PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(consumer C CXX)
find_package(rdmalloc 0.2 REQUIRED COMPONENTS rdmalloc {names})
foreach(name {names})
  foreach(language c cc)
    add_executable(with_${{name}}_${{language}} ${{name}}.${{language}})
    target_link_libraries(with_${{name}}_${{language}} rdmalloc::rdmalloc-${{name}})
  endforeach()
endforeach()
"""


def run(*command, **more):
    environment = {**os.environ, **more.pop("environment", {})}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment, check=False, **more)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        os.makedirs(SCRATCH)
        # The DESTDIR of a package's build must not send this elsewhere.
        run("cmake", "--install", BUILD, "--prefix", PREFIX, environment={"DESTDIR": ""})
        with open(os.path.join(SCRATCH, "consumer.c"), "w", encoding="utf-8") as file:
            file.write(CONSUMER)
        with open(os.path.join(SCRATCH, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(PROJECT)
        cls.library = glob.glob(os.path.join(PREFIX, "lib*", "**", "librdmalloc.so"),
                                recursive=True)[0]

    def test_find_package(self):
        folder = os.path.join(SCRATCH, "build")
        run("cmake", "-G", "Ninja", "-S", SCRATCH, "-B", folder, f"-DCMAKE_PREFIX_PATH={PREFIX}")
        run("cmake", "--build", folder)
        self.assertEqual(run(os.path.join(folder, "with_rdmalloc")), "0.2.0 1 1\n")
        self.assertEqual(run(os.path.join(folder, "with_static")), "0.2.0 1 1\n")
        # The prefixed library leaves the program's malloc alone.
        self.assertEqual(run(os.path.join(folder, "with_prefixed")), "0.2.0 0 1\n")

    def test_static_programs_have_our_malloc(self):
        folder = os.path.join(SCRATCH, "static")
        os.makedirs(folder)
        # CONSUMER asks for rdmalloc_malloc, which brings malloc along; this asks for the standard names only.
        standard = CONSUMER.replace("rdmalloc_malloc", "malloc").replace("rdmalloc_free", "free")
        for name, text in (("consumer.c", standard), ("by_libc.c", BY_LIBC), ("of_libc_only.c", OF_LIBC_ONLY),
                           ("CMakeLists.txt", STATIC_PROJECT)):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        build = os.path.join(folder, "build")
        run("cmake", "-G", "Ninja", "-S", folder, "-B", build, f"-DCMAKE_PREFIX_PATH={PREFIX}",
            "-DCMAKE_BUILD_TYPE=Release")
        run("cmake", "--build", build)
        for whole in ("OFF", "ON"):
            with self.subTest(interprocedural_optimization=whole):
                self.assertEqual(run(os.path.join(build, f"consumer_{whole}")), "0.2.0 1 1\n")
                self.assertEqual(run(os.path.join(build, f"by_libc_{whole}")), "1 1\n")
                program = os.path.join(build, f"of_libc_only_{whole}")
                self.assertEqual(run(program), "1 here\n")
                self.assertRegex(run("nm", program), r" T rdmalloc_malloc\n")
        # Of the archive alone, without the flags that CMake and pkg-config give.
        archive = os.path.join(os.path.dirname(self.library), "librdmalloc.a")
        for source, said in (("consumer.c", "0.2.0 1 1\n"), ("by_libc.c", "1 1\n")):
            for options in ([], ["-flto"], ["-flto", "-static"]):
                with self.subTest(source=source, options=options):
                    program = os.path.join(folder, "alone")
                    run("cc", "-O2", *options, f"-I{PREFIX}/include", os.path.join(folder, source), archive, "-pthread",
                        "-ldl", "-o", program)
                    self.assertEqual(run(program), said)

    def test_pkg_config_static(self):
        folder = os.path.join(os.path.dirname(self.library), "pkgconfig")
        flags = run("pkg-config", "--static", "--cflags", "--libs", "rdmalloc",
                    environment={"PKG_CONFIG_PATH": folder}).split()
        program = os.path.join(SCRATCH, "static_by_pkg_config")
        source = os.path.join(SCRATCH, "of_libc_only.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write(OF_LIBC_ONLY)
        run("cc", source, "-static", *flags, "-o", program)
        self.assertEqual(run(program), "1 here\n")
        self.assertRegex(run("nm", program), r" T rdmalloc_malloc\n")

    def test_pkg_config(self):
        folder = os.path.join(os.path.dirname(self.library), "pkgconfig")
        flags = run("pkg-config", "--cflags", "--libs", "rdmalloc",
                    environment={"PKG_CONFIG_PATH": folder}).split()
        program = os.path.join(SCRATCH, "by_pkg_config")
        run("cc", os.path.join(SCRATCH, "consumer.c"), *flags,
            f"-Wl,-rpath,{os.path.dirname(self.library)}", "-o", program)
        self.assertEqual(run(program), "0.2.0 1 1\n")

    def test_every_registrar_has_a_pkg_config_file(self):
        folder = os.path.dirname(self.library)
        for name in map("rdmalloc-{}".format, self.built_registrars()):
            flags = run("pkg-config", "--libs", name,
                        environment={"PKG_CONFIG_PATH": os.path.join(folder, "pkgconfig")})
            self.assertIn("-l" + name, flags.split())
            self.assertIn("-lrdmalloc", flags.split())

    def built_registrars(self):
        libraries = glob.glob(os.path.join(os.path.dirname(self.library), "librdmalloc-*.so"))
        names = {re.fullmatch(r"librdmalloc-(.*)\.so", os.path.basename(path)).group(1)
                 for path in libraries}
        self.assertLessEqual({"mlock", "spdk"}, names)  # those that need no fabric's library
        return sorted(names - {"verbs-shim"})  # a preload: no program links it

    def test_every_registrar_is_a_component(self):
        names = self.built_registrars()
        if os.environ.get("CI"):
            self.assertEqual(names, REGISTRARS)
        folder = os.path.join(SCRATCH, "registrars")
        os.makedirs(folder)
        for name in names:
            for language in ("c", "cc"):
                with open(os.path.join(folder, f"{name}.{language}"), "w", encoding="utf-8") as file:
                    file.write(REGISTRAR_CONSUMER.format(name=name))
        with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(REGISTRAR_PROJECT.format(names=" ".join(names)))
        build = os.path.join(folder, "build")
        run("cmake", "-G", "Ninja", "-S", folder, "-B", build, f"-DCMAKE_PREFIX_PATH={PREFIX}")
        run("cmake", "--build", build, "-j2")
        for name in names:
            for language in ("c", "cc"):
                self.assertEqual(run(os.path.join(build, f"with_{name}_{language}")), "0.2.0\n")

    def test_a_registrar_links_its_own_fabric_only(self):
        # libfabric's functions are inline, calls through the caller's domain.
        fabrics = {"dpdk": "librte_eal.so", "ucx": "libucp.so", "uring": "liburing.so",
                   "verbs": "libibverbs.so"}
        for name in self.built_registrars():
            library = os.path.join(os.path.dirname(self.library), f"librdmalloc-{name}.so")
            needed = re.findall(r"\(NEEDED\).*\[(.*?)\]", run("readelf", "-dW", library))
            others = [one for one in needed if not re.match(r"lib(c|rdmalloc)\.so|ld-linux", one)]
            self.assertEqual([one.split(".so")[0] + ".so" for one in others],
                             [fabrics[name]] if name in fabrics else [], name)

    def test_info_names_the_library_without_detours(self):
        said = run(os.path.join(PREFIX, "bin", "rdmalloc"), "info")
        self.assertIn(f"\nlibrary    {os.path.dirname(self.library)}/librdmalloc.so.0\n", said)

    def test_preload_of_the_installed_library(self):
        seen = run("cat", "/proc/self/maps", environment={"LD_PRELOAD": self.library})
        self.assertIn(os.path.realpath(self.library), seen)

    def test_preload_of_the_installed_shim(self):
        shim = os.path.join(os.path.dirname(self.library), "librdmalloc-verbs-shim.so")
        if not os.path.exists(shim):
            self.skipTest("built without libibverbs")
        seen = run("cat", "/proc/self/maps", environment={"LD_PRELOAD": f"{shim}:{self.library}"})
        self.assertIn(shim, seen)
        self.assertNotIn("caches nothing", seen)

    def test_man_pages(self):
        pages = [os.path.relpath(path, PREFIX)
                 for path in glob.glob(os.path.join(PREFIX, "share/man/man*/*"))]
        self.assertIn("share/man/man7/rdmalloc.7", pages)
        self.assertIn("share/man/man3/rdmalloc.3", pages)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
