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

// Blocks of a slab of so many slices: a heap's may be of one where the class's has eight.
constexpr std::uint32_t slab_blocks_in(unsigned size_class, std::uint32_t slices) {
  return static_cast<std::uint32_t>(slices * kSliceBytes / class_info(size_class).block_bytes);
}
constexpr std::uint32_t slab_words_in(unsigned size_class, std::uint32_t slices) {
  return (slab_blocks_in(size_class, slices) + 63) / 64;
}

inline constexpr std::uint32_t kNeverSeen = ~std::uint32_t{0};  // Span::seen of a new slab
// A new slab, before it is published: all its blocks are free.
void slab_begin(SliceIndex slice, std::uint32_t blocks);
// Takes blocks of one slab, by rising address, into the places before `end`, from the last one
// down; stops when it has `wanted` or the slab has no set bit. `words`: of its free bits. Only such
// blocks as lie before the `below`-th.
std::uint32_t slab_take_from(SliceIndex slice, const ClassInfo& info, std::uint32_t words,
                             void** end, std::uint32_t wanted, std::uint32_t below = UINT32_MAX);

}  // namespace rdmalloc
