// SPDX-License-Identifier: BSD-3-Clause
//
// A library with a DT_RPATH that another one is loaded for.
extern "C" void* open_here(const char* name);

extern "C" __attribute__((visibility("default"))) void* open_there(const char* name) {
  return open_here(name);
}
