// SPDX-License-Identifier: BSD-3-Clause
//
// An MPI program that broadcasts and checks every byte at every rank; what it does to the memory of
// its messages is told in blocks.h and docs/deadlock-matrix.md:
//
//   broadcast [COUNT BYTES growing|fresh|recycled]...
//
// The last line, from rank 0, and the exit status is 1 if any W or R is not 0:
//   broadcasts N wrong_bytes W recycled M came_back C wrong_recycled R
// N in all; of M recycled ones C had, at every rank, a buffer at an address of before with none of
// its pages, and R were wrong at some rank.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lab/programs/blocks.h"

namespace {

uint64_t word_of(uint64_t broadcast, uint64_t index) {
  uint64_t x = (broadcast << 32u) + index;
  x *= 0x9E3779B97F4A7C15u;
  return x ^ (x >> 29u);
}

void fill(unsigned char* buffer, size_t bytes, uint64_t broadcast) {
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = word_of(broadcast, i);
    memcpy(buffer + i, &word, bytes - i < 8 ? bytes - i : 8);
  }
}

uint64_t wrong_bytes(const unsigned char* buffer, size_t bytes, uint64_t broadcast) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = word_of(broadcast, i);
    size_t here = bytes - i < 8 ? bytes - i : 8;
    if (memcmp(buffer + i, &word, here) == 0) continue;
    for (size_t byte = 0; byte < here; byte++)
      wrong += buffer[i + byte] != reinterpret_cast<unsigned char*>(&word)[byte];
  }
  return wrong;
}

struct Ranks {
  int mine = 0, all = 0;
};

// One broadcast from or to `buffer`; how many of its bytes were wrong here.
uint64_t broadcast_one(unsigned char* buffer, size_t bytes, uint64_t turn, Ranks ranks) {
  if (buffer == nullptr) MPI_Abort(MPI_COMM_WORLD, 3);
  int root = static_cast<int>(turn % static_cast<uint64_t>(ranks.all));
  // Receivers write too: what is left of the last broadcast must not pass for this one's.
  fill(buffer, bytes, ranks.mine == root ? turn : ~turn);
  MPI_Bcast(buffer, static_cast<int>(bytes), MPI_BYTE, root, MPI_COMM_WORLD);
  return wrong_bytes(buffer, bytes, turn);
}

uint64_t growing(uint64_t count, size_t bytes, Ranks ranks) {
  uint64_t wrong = 0;
  const size_t step = lab::step_of(bytes);
  auto* live = static_cast<unsigned char*>(malloc(count * step));
  if (live == nullptr) MPI_Abort(MPI_COMM_WORLD, 3);
  for (uint64_t i = 0; i < count; i++) {
    if (i % lab::kFreeEvery == 0) lab::free_something();
    wrong += broadcast_one(live + i * step, bytes, i, ranks);
  }
  free(live);
  return wrong;
}

uint64_t fresh(uint64_t count, size_t bytes, Ranks ranks) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; i++) {
    auto* buffer = static_cast<unsigned char*>(malloc(bytes));
    wrong += broadcast_one(buffer, bytes, i, ranks);
    free(buffer);
  }
  return wrong;
}

struct Recycled {
  uint64_t count = 0, came_back = 0, wrong = 0;
};

uint64_t recycled(uint64_t count, size_t bytes, Ranks ranks, Recycled& all) {
  lab::Recycling recycling;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; i++) {
    auto* buffer = static_cast<unsigned char*>(malloc(bytes));
    int is_back = recycling.has_come_back(buffer, bytes) ? 1 : 0;
    uint64_t wrong_here = broadcast_one(buffer, bytes, i, ranks);
    recycling.free_and_wait(buffer, bytes);
    // One word: the sum's low half counts ranks where it came back, its high half wrong ones.
    uint64_t mine = static_cast<uint64_t>(is_back) | (wrong_here != 0 ? uint64_t{1} << 32u : 0);
    uint64_t sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    all.came_back += (sum & 0xffffffffu) == static_cast<uint64_t>(ranks.all);
    all.wrong += (sum >> 32u) != 0;
    wrong += wrong_here;
  }
  all.count += count;
  return wrong;
}

// Lets all that is under way arrive before MPI_Finalize. libfabric closes a connection's endpoint,
// which frees it, and only then reads what its completion queue still holds: a message among that
// is answered by posting its buffer to the freed endpoint again, a crash under every malloc
// (endpoint_end.cc).
void drain() {
  MPI_Barrier(MPI_COMM_WORLD);
  for (int turn = 0; turn < 100; turn++) {
    int is_there = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
    usleep(1000);
  }
}

int usage() {
  fprintf(stderr, "broadcast: wanted [COUNT BYTES growing|fresh|recycled]...\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc % 3 != 1) return usage();
  MPI_Init(nullptr, nullptr);
  Ranks ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &ranks.mine);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks.all);
  uint64_t wrong = 0, all_wrong = 0, total = 0;
  Recycled all;
  for (int i = 1; i < argc; i += 3) {
    uint64_t count = strtoull(argv[i], nullptr, 10);
    size_t bytes = strtoull(argv[i + 1], nullptr, 10);
    switch (argv[i + 2][0]) {
      case 'g':
        wrong += growing(count, bytes, ranks);
        break;
      case 'f':
        wrong += fresh(count, bytes, ranks);
        break;
      default:
        wrong += recycled(count, bytes, ranks, all);
    }
    total += count;
  }
  MPI_Allreduce(&wrong, &all_wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  if (ranks.mine == 0)
    printf("broadcasts %llu wrong_bytes %llu recycled %llu came_back %llu wrong_recycled %llu\n",
           static_cast<unsigned long long>(total), static_cast<unsigned long long>(all_wrong),
           static_cast<unsigned long long>(all.count),
           static_cast<unsigned long long>(all.came_back),
           static_cast<unsigned long long>(all.wrong));
  drain();
  MPI_Finalize();
  return all_wrong != 0;
}
