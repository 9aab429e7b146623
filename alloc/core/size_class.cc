// Proofs about the tables of size_class.h, here so that they are evaluated once and not in each
// file that includes it.
#include "alloc/core/size_class.h"

namespace rdmalloc {
namespace {

// Each size has the smallest class that holds it, and wastes an eighth of itself at most.
constexpr bool classes_are_consistent(std::size_t first, std::size_t last) {
  for (std::size_t bytes = first; bytes <= last; ++bytes) {
    unsigned c = class_of(bytes);
    if (c == 0 || c >= kClasses || block_bytes_of(c) < bytes) return false;
    if (block_bytes_of(c - 1) >= bytes) return false;
    if (bytes > 128 && block_bytes_of(c) - bytes > bytes / 8) return false;
  }
  return true;
}
// In parts, since Clang stops after 2^20 steps.
static_assert(classes_are_consistent(1, kSmallMax / 4));
static_assert(classes_are_consistent(kSmallMax / 4 + 1, kSmallMax / 2));
static_assert(classes_are_consistent(kSmallMax / 2 + 1, kSmallMax / 4 * 3));
static_assert(classes_are_consistent(kSmallMax / 4 * 3 + 1, kSmallMax));

// The first and the last byte of each block of each slab belong to that block's index.
constexpr bool reciprocals_are_exact() {
  for (unsigned c = 1; c < kClasses; ++c) {
    const ClassInfo& info = kClassTable.of[c];
    if (info.slab_blocks > kBitmapWords * 64) return false;
    for (std::uint32_t i = 0; i < info.slab_blocks; ++i) {
      std::uint64_t first = std::uint64_t{i} * info.block_bytes;
      std::uint64_t last = first + info.block_bytes - 1;
      if ((first * info.reciprocal) >> kReciprocalShift != i ||
          (last * info.reciprocal) >> kReciprocalShift != i)
        return false;
    }
  }
  return true;
}
static_assert(reciprocals_are_exact());

}  // namespace
}  // namespace rdmalloc
