// SPDX-License-Identifier: BSD-3-Clause
//
// A library that a program is linked to: its constructor runs before those of what is preloaded,
// and loads another library: loader_lock.cc.
#include <dlfcn.h>
#include <stdlib.h>

__attribute__((constructor)) static void begin(void) {
  const char* library = getenv("LOADER_LOCK_LIBRARY");
  if (library != NULL && dlopen(library, RTLD_NOW) == NULL) abort();
}
