/* Counts what pages an allocator gives back from inside malloc and free: promise 2 of
 * docs/reports/promises.md.
 *
 *   cc -O2 -rdynamic where_malloc_purges.c -o where_malloc_purges
 *   LD_PRELOAD=ALLOCATOR ./where_malloc_purges
 *
 * It stands in front of libc's functions by their names, as a cache that listens would be called.
 * What libc calls inside itself (glibc's own malloc) and raw system calls are not seen. Exit status
 * 1 when the promise was broken. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* volatile: compilers take malloc for a function that reads no variable of ours. */
static __thread volatile int is_inside;
static long inside, outside;

static void count(void) {
  __atomic_add_fetch(is_inside ? &inside : &outside, 1, __ATOMIC_RELAXED);
}

int madvise(void* start, size_t bytes, int advice) {
  if (advice == MADV_DONTNEED || advice == MADV_FREE) count();
  return (int)syscall(SYS_madvise, start, bytes, advice);
}

int munmap(void* start, size_t bytes) {
  count();
  return (int)syscall(SYS_munmap, start, bytes);
}

int main(void) {
  enum { kBlocks = 64 };
  char* blocks[kBlocks];
  for (int turn = 0; turn < 40; turn++) {
    for (int i = 0; i < kBlocks; i++) {
      const size_t bytes = (size_t)1 << (12 + i % 10);
      is_inside = 1;
      blocks[i] = malloc(bytes);
      is_inside = 0;
      if (blocks[i] == NULL) return 2;
      memset(blocks[i], 1, bytes);
    }
    for (int i = 0; i < kBlocks; i++) {
      is_inside = 1;
      free(blocks[i]);
      is_inside = 0;
    }
    usleep(100000);
  }
  printf("pages given back %ld times inside malloc or free, %ld times outside\n", inside, outside);
  return inside != 0;
}
