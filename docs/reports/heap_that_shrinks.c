/* Broadcasts fresh buffers from the heap's end, which goes back after each:
 * docs/reports/heap-that-shrinks.md.
 *
 *   mpicc -O2 heap_that_shrinks.c -o heap_that_shrinks
 *   mpirun -n 2 ./heap_that_shrinks [COUNT [BYTES]]
 *
 * Only malloc, free and malloc_trim: what any program may call. Exit status 1 when a broadcast was
 * wrong. */
#include <malloc.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  const int count = argc > 1 ? atoi(argv[1]) : 80;
  const int bytes = argc > 2 ? atoi(argv[2]) : 258048;
  int rank, wrong = 0, shrunk = 0, same = 0;
  char* before = NULL;
  const char* heap = sbrk(0);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 0; i < count; i++) {
    char* buffer = malloc(bytes);
    if (buffer == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
    same += buffer == before;
    before = buffer;
    /* The receiver writes as well: what is left of the last broadcast is not taken for this one's.
     */
    memset(buffer, rank == 0 ? i + 1 : 255 - i % 100, bytes);
    MPI_Bcast(buffer, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    int is_wrong = 0;
    for (int k = 0; k < bytes; k++) is_wrong |= buffer[k] != (char)(i + 1);
    wrong += is_wrong;
    const char* end = sbrk(0);
    const volatile int is_in_heap = buffer >= heap && buffer < end;
    free(buffer);
    malloc_trim(0);
    if ((const char*)sbrk(0) < end) shrunk++;
    /* Below a block of MPI's? Its hole is filled, so that the next comes from the end. */
    else if (is_in_heap && malloc(bytes) == NULL)
      return 2;
  }
  int all[3], mine[3] = {wrong, shrunk, same};
  MPI_Reduce(mine, all, 3, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0)
    printf(
        "%d broadcasts, %d wrong; the heap shrank %d times, %d buffers were where the last one "
        "was\n",
        count, all[0], all[1], all[2]);
  MPI_Bcast(&all[0], 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Finalize();
  return all[0] != 0;
}
