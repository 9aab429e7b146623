// SPDX-License-Identifier: BSD-3-Clause
//
// For programs under the preloaded library, which are not linked with GoogleTest: what is not so,
// and how often; libraries and functions that must be there.
#pragma once

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace rdmalloc_test {

inline int failures = 0;
inline void expect(bool holds, const char* what) {
  if (holds) return;
  failures++;
  printf("not so: %s\n", what);
}

// The function of that name of the library, or of some library that is loaded.
template <typename Function>
Function find(const char* name, void* library = RTLD_DEFAULT) {
  auto function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    printf("no %s here\n", name);
    exit(1);
  }
  return function;
}

// Whether stub_ucm.cc can patch libc's madvise here; else it is said, for an exit status of 77.
inline bool can_patch_madvise() {
#if defined(__x86_64__)
  return true;
#else
  puts("SKIP: no patch of madvise for this machine");
  return false;
#endif
}

// A library that not every machine has. Where its file is there, and it can't be loaded all the
// same, the test fails. Seen to fail with an empty file in its place, which was a SKIP.
inline void* open_or_skip(const char* path, const char* what, int flags = RTLD_NOW) {
  void* library = dlopen(path, flags);
  if (library != nullptr) return library;
  const char* error = dlerror();
  const bool is_missing = strstr(error, "No such file or directory") != nullptr;
  printf("%s %s here: %s\n", is_missing ? "SKIP: no" : "not so: is", what, error);
  exit(is_missing && failures == 0 ? 77 : 1);
}

inline void* open(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  if (library == nullptr) {
    printf("%s\n", dlerror());
    exit(1);
  }
  return library;
}

}  // namespace rdmalloc_test
