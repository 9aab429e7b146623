// Which block of which slab an address is, and which follow it: the arithmetic of slabs.
#pragma once

#include <cstdint>

#include "alloc/core/size_class.h"
#include "alloc/pages/arena.h"

namespace rdmalloc {

struct BlockPosition {
  std::uintptr_t slab;    // address of the slab; of a span the address's slice
  std::uintptr_t offset;  // of the address in it
  std::uint32_t index;    // of the block that the address lies in
  bool is_start;          // the address is the start of a block
};

// Of the block that lies at the offset in its slab.
inline std::uint32_t index_at(std::uintptr_t offset, const ClassInfo& info) {
  return static_cast<std::uint32_t>((offset * info.reciprocal) >> kReciprocalShift);
}

inline BlockPosition position_of(const void* address, const ClassInfo& info) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  std::uintptr_t aligned_bytes = std::uintptr_t{info.slab_aligned} << kSliceShift;
  std::uintptr_t slab = at & ~(aligned_bytes - 1);  // the arena is aligned to more than a slab
  std::uintptr_t offset = at - slab;
  std::uint32_t index = index_at(offset, info);
  return {slab, offset, index,
          std::uintptr_t{index} * info.block_bytes == offset && index < info.slab_blocks};
}

// Whether a block of the class starts there, rather than a later slice of a span.
inline bool is_start_of_block(const BlockPosition& at, unsigned size_class) {
  if (!is_span_class(size_class)) return at.is_start;
  SliceIndex slice = arena.slice_of(at.slab);
  return at.is_start && arena.first[slice].load(std::memory_order_relaxed) == slice;
}

// `count` bits, 1 to 64, from bit `first` on, in one word.
constexpr std::uint64_t bits_from(std::uint32_t first, std::uint32_t count) {
  return ~std::uint64_t{0} >> (64 - count) << first;
}

// Bits of all blocks of a slab that has so many, of a word of its bitmap.
constexpr std::uint64_t bits_of_word(std::uint32_t blocks, std::uint32_t word) {
  std::uint32_t left = blocks - word * 64;
  return bits_from(0, left < 64 ? left : 64);
}

// Whether the second of those blocks lies right behind the first.
inline bool is_behind(void* const* blocks, void* const* end, const ClassInfo& info) {
  return blocks + 1 < end && reinterpret_cast<std::uintptr_t>(blocks[1]) ==
                                 reinterpret_cast<std::uintptr_t>(blocks[0]) + info.block_bytes;
}

// How many of the blocks lie one behind the other, in one word of their slab's bitmap. The first is
// its block `index`.
inline std::uint32_t run_length(void* const* blocks, std::uint32_t index, std::uint32_t count,
                                const ClassInfo& info) {
  std::uint32_t most = 64 - index % 64, run = 1;
  if (most > info.slab_blocks - index) most = info.slab_blocks - index;
  if (most > count) most = count;
  while (run < most && is_behind(blocks + run - 1, blocks + most, info)) ++run;
  return run;
}

}  // namespace rdmalloc
