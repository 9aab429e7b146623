// SPDX-License-Identifier: BSD-3-Clause
//
// For plugin_program.c: a plugin with an rdmalloc of its own, in an archive.
#include <rdmalloc/rdmalloc.h>
#include <string.h>

int use(void) {
  if (rdmalloc_init() != 0) return 1;
  void* block = rdmalloc_malloc((size_t)64 << 20);
  if (block == NULL) return 2;
  memset(block, 1, (size_t)64 << 20);
  rdmalloc_free(block);
  return rdmalloc_fini();
}
