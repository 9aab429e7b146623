// SPDX-License-Identifier: BSD-3-Clause
//
// A program in C that loads a library in C++, as Python its extensions: no symbol of libstdc++'s
// was there when librdmalloc.so was bound, nor is one in the global scope later.
//
//   late_cxx LIBRARY CASE    the cases are late_cxx_library.cc's
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char** argv) {
  if (argc != 3 || dlsym(RTLD_DEFAULT, "_ZSt17__throw_bad_allocv") != NULL) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  int (*run)(const char*) = NULL;
  if (library != NULL) *(void**)&run = dlsym(library, "run");
  if (run == NULL || dlsym(RTLD_DEFAULT, "_ZSt17__throw_bad_allocv") != NULL) return 3;
  if (run(argv[2]) != 0) return 1;
  // Where the loader's lock is not asked for.
  pid_t child = fork();
  if (child == 0) _exit(run(argv[2]));
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) return 4;
  puts("all is well");
  return 0;
}
