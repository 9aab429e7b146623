#include "alloc/slabs/in_use.h"

#if RDMALLOC_CHECKED

#include "alloc/core/report.h"
#include "alloc/pages/arena.h"
#include "alloc/slabs/block_position.h"

namespace rdmalloc {
namespace {

// Bits are changed with relaxed operations: what orders a free before the next malloc of the block
// is the program's own ordering, or the magazines' and the slab's.
std::atomic<std::uint64_t>& word_of(const BlockPosition& at) {
  return arena.in_use[std::size_t{arena.slice_of(at.slab)} * kBitmapWords + at.index / 64];
}
std::uint64_t bit_of(const BlockPosition& at) {
  return std::uint64_t{1} << at.index % 64;
}
bool is_small(unsigned size_class) {
  return size_class != 0 && size_class < kClasses;
}

}  // namespace

void in_use_begin(void* block, unsigned size_class) {
  if (block == nullptr || !is_small(size_class)) return;
  BlockPosition at = position_of(block, class_info(size_class));
  std::uint64_t before = word_of(at).fetch_or(bit_of(at), std::memory_order_relaxed);
  if (!is_start_of_block(at, size_class) || (before & bit_of(at)))
    report_fatal_address("malloc is about to hand out a block that is in use", block);
}

void in_use_end(void* block, unsigned size_class) {
  if (!is_small(size_class)) return;
  BlockPosition at = position_of(block, class_info(size_class));
  if (!is_start_of_block(at, size_class))
    report_fatal_address("free() of an address inside a block, not its start", block);
  std::uint64_t before = word_of(at).fetch_and(~bit_of(at), std::memory_order_relaxed);
  if (!(before & bit_of(at))) report_fatal_address("double free() of", block);
}

}  // namespace rdmalloc

#endif
