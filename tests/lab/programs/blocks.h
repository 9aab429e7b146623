// SPDX-License-Identifier: BSD-3-Clause
//
// How the lab's programs treat the memory that they transfer (docs/deadlock-matrix.md). Patterns:
//
//   growing    live memory not registered before, so that a cache allocates a node for it; the
//              program itself allocates nothing, but frees a lot now and then, whose purge falls
//              due when an allocator's next slow path is taken: inside the cache
//   fresh      each transfer from a new buffer, freed at once
//   recycled   the same, but the next malloc waits until the freed buffer has lost its pages
#ifndef RDMALLOC_TESTS_LAB_PROGRAMS_BLOCKS_H
#define RDMALLOC_TESTS_LAB_PROGRAMS_BLOCKS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace lab {

inline constexpr size_t kPageBytes = 4096;
inline constexpr uint64_t kFreeEvery = 64;  // growing: transfers between two rounds of freeing
inline constexpr size_t kFreedBytes = size_t{4} << 20u;  // growing: the largest block of a round
inline constexpr size_t kGapBytes = 4096;  // growing: registrations must not touch and merge

// growing: from one transfer's memory to the next one's.
inline size_t step_of(size_t bytes) {
  return (bytes + kGapBytes + kGapBytes - 1) / kGapBytes * kGapBytes;
}

inline void free_something() {
  for (size_t bytes = kFreedBytes; bytes >= 65536; bytes /= 2) {
    auto* block = static_cast<volatile unsigned char*>(malloc(bytes));
    if (block == nullptr) continue;
    for (size_t i = 0; i < bytes; i += kPageBytes) block[i] = 1;
    free(const_cast<unsigned char*>(block));
  }
}

// Watches addresses come back with other pages. A page that is mapped but not resident was given
// back to the kernel since it was last written (the lab has no swap), so a thread that touches it
// gets another one; a registration of before still holds the old one.
class Recycling {
 public:
  // At once after malloc, before the block is touched. Whether this address was transferred before
  // and all its pages are gone.
  bool has_come_back(const void* block, size_t bytes) {
    auto address = reinterpret_cast<uintptr_t>(block);
    bool is_known = std::find(blocks_.begin(), blocks_.end(), address) != blocks_.end();
    if (!is_known) blocks_.push_back(address);
    return is_known && resident_pages(address, bytes) == 0;
  }

  // Frees, and waits until the pages are gone. Gives up, for this and all later blocks, when waits
  // have taken `patience_ms_` altogether: the caller's count of blocks that came back tells.
  void free_and_wait(void* block, size_t bytes) {
    auto address = reinterpret_cast<uintptr_t>(block);
    free(block);
    while (patience_ms_ > 0 && resident_pages(address, bytes) != 0) {
      usleep(1000);
      patience_ms_--;
    }
  }

 private:
  // Of the pages that lie whole in the block; those at its ends may hold other blocks. An allocator
  // that unmaps is no trouble: -ENOMEM means that nothing is there.
  static size_t resident_pages(uintptr_t address, size_t bytes) {
    uintptr_t begin = (address + kPageBytes - 1) / kPageBytes;
    uintptr_t end = (address + bytes) / kPageBytes;
    unsigned char residency[kMostPages];
    size_t pages = 0;
    for (uintptr_t page = begin; page < end; page += kMostPages) {
      size_t count = std::min(end - page, uintptr_t{kMostPages});
      if (mincore(reinterpret_cast<void*>(page * kPageBytes), count * kPageBytes, residency) != 0)
        continue;
      for (size_t i = 0; i < count; i++) pages += residency[i] & 1u;
    }
    return pages;
  }

  static constexpr size_t kMostPages = 512;
  std::vector<uintptr_t> blocks_;
  int patience_ms_ = 20000;
};

}  // namespace lab

#endif
