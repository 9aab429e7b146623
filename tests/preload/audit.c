// SPDX-License-Identifier: BSD-3-Clause
//
// A library for LD_AUDIT, which the loader calls at each object and each binding. It has a libc of
// its own, whose malloc is not the program's.
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <stdlib.h>

static char* volatile block;
static void use(size_t bytes) {
  block = malloc(bytes);
  *block = 1;
  free(block);
}
__attribute__((visibility("default"))) unsigned la_version(unsigned version) {
  use(100);
  return version;
}
__attribute__((visibility("default"))) unsigned la_objopen(struct link_map* map, Lmid_t space,
                                                           uintptr_t* cookie) {
  (void)map, (void)space, (void)cookie;
  use(3000);
  return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
__attribute__((visibility("default"))) uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned index,
                                                              uintptr_t* from, uintptr_t* to,
                                                              unsigned* flags, const char* name) {
  (void)index, (void)from, (void)to, (void)flags, (void)name;
  use(10);
  return symbol->st_value;
}
