#include "alloc/slabs/cached_spans.h"

#include "alloc/core/report.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {
namespace {

[[noreturn, gnu::cold]] void report_bad_free(void* block, SliceIndex slice, unsigned size_class) {
  std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(block) % kSliceBytes;
  bool is_inside = arena.class_at(slice) == size_class &&
                   (offset != 0 || arena.first[slice].load(std::memory_order_relaxed) != slice);
  report_fatal_address(
      is_inside ? "free() of an address inside a block, not its start" : "double free() of", block);
}

}  // namespace

void* cached_span_take(unsigned shard, unsigned size_class) {
  SliceIndex slice = page_heap_take_span(shard, size_class);
  return slice != 0 ? reinterpret_cast<void*>(arena.address_of(slice)) : nullptr;
}

void cached_spans_give_back(unsigned size_class, void* const* blocks, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) {
    SliceIndex slice = arena.slice_of(reinterpret_cast<std::uintptr_t>(blocks[i]));
    bool is_start = reinterpret_cast<std::uintptr_t>(blocks[i]) == arena.address_of(slice) &&
                    arena.first[slice].load(std::memory_order_relaxed) == slice;
    if (!is_start || !page_heap_free(slice, size_class)) [[unlikely]]
      report_bad_free(blocks[i], slice, size_class);
  }
  if (count != 0) purge_note_dirty();
}

}  // namespace rdmalloc
