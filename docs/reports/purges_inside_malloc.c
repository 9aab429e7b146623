/* A malloc that gives a page back at each call, as allocators do at some:
 * docs/reports/hooks-under-a-lock.md.
 *
 *   cc -O2 -shared -fPIC purges_inside_malloc.c -o libpurges.so
 *
 * It allocates from libc's own malloc; the page is its own, so that nothing but the call itself can
 * matter. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>

void* __libc_malloc(size_t bytes);

static char spare[2 * 4096];
static __thread int is_purging; /* a hook that allocates must not purge again */

void* malloc(size_t bytes) {
  if (!is_purging) {
    is_purging = 1;
    char* page = (char*)(((size_t)spare + 4095) & ~(size_t)4095);
    madvise(page, 4096, MADV_DONTNEED);
    is_purging = 0;
  }
  return __libc_malloc(bytes);
}
