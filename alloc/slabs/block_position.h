// Which block of which slab an address is: the arithmetic that slabs are found by.
#pragma once

#include <cstdint>

#include "alloc/core/size_class.h"

namespace rdmalloc {

struct BlockPosition {
  std::uintptr_t slab;    // address of the slab
  std::uintptr_t offset;  // of the address in it
  std::uint32_t index;    // of the block that the address lies in
  bool is_start;          // the address is the start of a block
};

inline BlockPosition position_of(const void* address, const ClassInfo& info) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  std::uintptr_t slab_bytes = std::uintptr_t{info.slab_slices} << kSliceShift;
  std::uintptr_t slab = at & ~(slab_bytes - 1);  // the arena is aligned to more than a slab
  std::uintptr_t offset = at - slab;
  auto index = static_cast<std::uint32_t>((offset * info.reciprocal) >> kReciprocalShift);
  return {slab, offset, index,
          std::uintptr_t{index} * info.block_bytes == offset && index < info.slab_blocks};
}

}  // namespace rdmalloc
