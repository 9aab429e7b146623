// SPDX-License-Identifier: BSD-3-Clause
//
// A library that stands in front of dlsym(), to hand out functions of its own, and is preloaded
// before librdmalloc.so: VirtualGL's and MangoHud's are such. What it does not know it asks libc's
// dlsym() for, which takes this library for the caller: the next definition is then that of
// librdmalloc.so, also where that one asks for what is behind itself. Seen to fail: it called
// itself.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#if defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#else
#define FIRST_VERSION "GLIBC_2.2.5"
#endif

typedef void* (*find_function)(void*, const char*);

__attribute__((visibility("default"))) void* dlsym(void* handle, const char* name) {
  static find_function find;
  if (find == NULL) *(void**)&find = dlvsym(RTLD_NEXT, "dlsym", FIRST_VERSION);
  free(strdup(name));
  void* found = find(handle, name);
  return found;
}
