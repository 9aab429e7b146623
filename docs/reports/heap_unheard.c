/* Does Open MPI hear when glibc's heap shrinks? docs/reports/heap-that-shrinks.md. Needs no RDMA
 * device.
 *
 *   mpicc -O2 heap_unheard.c -o heap_unheard -ldl
 *   mpirun -n 1 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include "tcp;ofi_rxm"
 * ./heap_unheard
 *
 * It asks Open MPI for what it hears itself, by the function that its caches use. Exit status 1
 * when it does not hear. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void release(void* start, size_t bytes, void* context, bool from_malloc);

static char* block;
enum { kBytes = 258048, kTurns = 40 };
/* volatile: compilers know that free changes no variable of ours. */
static volatile bool is_heard;

static void on_release(void* start, size_t bytes, void* context, bool from_malloc) {
  (void)context;
  (void)from_malloc;
  if ((char*)start < block + kBytes && (char*)start + bytes > block) is_heard = true;
}

int main(int argc, char** argv) {
  int shrunk = 0, heard = 0;
  MPI_Init(&argc, &argv);
  void* opal = dlopen("libopen-pal.so.80", RTLD_NOW | RTLD_NOLOAD);             /* Open MPI 5 */
  if (opal == NULL) opal = dlopen("libopen-pal.so.40", RTLD_NOW | RTLD_NOLOAD); /* Open MPI 4 */
  int (*add)(release*, void*) =
      opal ? (int (*)(release*, void*))dlsym(opal, "opal_mem_hooks_register_release") : NULL;
  if (add == NULL || add(on_release, NULL) != 0) return 2;
  mallopt(M_MMAP_THRESHOLD, 1 << 20); /* from the heap, as after one free of such a block */
  for (int i = 0; i < kTurns; i++) {
    block = malloc(kBytes);
    if (block == NULL) return 2;
    memset(block, i, kBytes);
    const char* end = sbrk(0);
    is_heard = false;
    free(block);
    malloc_trim(0);
    if ((const char*)sbrk(0) >= end) continue;
    shrunk++;
    heard += is_heard;
  }
  printf("the heap shrank %d times; Open MPI heard of %d\n", shrunk, heard);
  fflush(stdout);
  MPI_Finalize();
  return shrunk == 0 ? 2 : heard < shrunk;
}
