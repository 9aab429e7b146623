// SPDX-License-Identifier: BSD-3-Clause
//
// Opens libraries by bare names, which its own DT_RUNPATH leads to, or DT_RPATH of the library that
// it is loaded for.
#include <dlfcn.h>

extern "C" __attribute__((visibility("default"))) void* open_here(const char* name) {
  return dlopen(name, RTLD_NOW);
}
