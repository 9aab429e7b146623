// Lists of the slabs of a class that have free blocks, by how many: for malloc's slabs (slab.h) and
// for those of heaps of the user (heaps/heap_spans.cc). Under the lock of their class.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/pages/span.h"

namespace rdmalloc {

inline constexpr unsigned kBuckets = 4;

struct SlabLists {
  SliceIndex head[kBuckets] = {};  // bucket 0 is the fullest quarter
  // Written under the lock; read without it by other shards and by statistics, as a hint. Relaxed.
  std::atomic<std::uint32_t> listed{0};
};

inline unsigned bucket_of(std::int32_t free_blocks, std::uint32_t slab_blocks) {
  if (free_blocks <= 0) return 0;
  auto bucket =
      static_cast<unsigned>(static_cast<std::uint32_t>(free_blocks) * kBuckets / (slab_blocks + 1));
  return bucket < kBuckets ? bucket : kBuckets - 1;
}

inline std::uint32_t listed_in(const SlabLists& lists) {
  return lists.listed.load(std::memory_order_relaxed);
}

// Enters a slab into the lists, and takes it out.
void list(SlabLists& lists, SliceIndex slice, unsigned bucket);
void unlist(SlabLists& lists, SliceIndex slice);

// All blocks of a new slab are free: sets their bits.
void set_all_free(SliceIndex slice, std::uint32_t blocks);

}  // namespace rdmalloc
