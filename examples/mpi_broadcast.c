/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A hundred broadcasts of 1 MiB, each of a fresh buffer, every byte looked at. It is an ordinary
 * MPI program and knows nothing of rdmalloc: docs/quick-start/ runs it under each launcher.
 *
 *     mpicc -O2 mpi_broadcast.c -o broadcast
 *     rdmalloc run -- mpirun -n 2 ./broadcast
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRounds = 100, kBytes = 1 << 20 };

int main(int argc, char** argv) {
  int rank, wrong = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int round = 0; round < kRounds; ++round) {
    char* buffer = malloc(kBytes);
    if (buffer == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(buffer, rank == 0 ? 'a' + round % 26 : 0, kBytes);
    MPI_Bcast(buffer, kBytes, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; i < kBytes; ++i) wrong += buffer[i] != 'a' + round % 26;
    free(buffer);
  }
  printf("rank %d: %d wrong bytes\n", rank, wrong);
  MPI_Finalize();
  return wrong != 0;
}
