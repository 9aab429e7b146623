// SPDX-License-Identifier: BSD-3-Clause
//
// An MPI program that finalises right after its last broadcast, without waiting for what is under
// way as broadcast.cc does:
//
//   finalizes BROADCASTS BYTES [purge]
//
// With `purge` every rank has a thread that calls rdmalloc_purge(0) until MPI_Finalize has
// returned. Each rank's last line is "rank R finalized, wrong_bytes W, purges P".
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lab/programs/purge_loop.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "finalizes: wanted BROADCASTS BYTES [purge]\n");
    return 2;
  }
  const int broadcasts = atoi(argv[1]);
  const size_t bytes = strtoull(argv[2], nullptr, 10);
  lab::PurgeLoop purges;
  if (argc > 3) purges.start();
  MPI_Init(nullptr, nullptr);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  uint64_t wrong = 0;
  for (int i = 0; i < broadcasts; i++) {
    auto* buffer = static_cast<unsigned char*>(malloc(bytes));
    if (buffer == nullptr) MPI_Abort(MPI_COMM_WORLD, 3);
    const int root = i % ranks;
    memset(buffer, rank == root ? i + 1 : 0, bytes);
    MPI_Bcast(buffer, static_cast<int>(bytes), MPI_BYTE, root, MPI_COMM_WORLD);
    for (size_t at = 0; at < bytes; at++) wrong += buffer[at] != static_cast<unsigned char>(i + 1);
    free(buffer);
  }
  MPI_Finalize();
  const uint64_t calls = purges.stop();
  printf("rank %d finalized, wrong_bytes %llu, purges %llu\n", rank,
         static_cast<unsigned long long>(wrong), static_cast<unsigned long long>(calls));
  return wrong != 0;
}
