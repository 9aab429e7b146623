#include "alloc/slabs/cached_spans.h"

#include "alloc/core/report.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {
namespace {

// A magazine of spans.
constexpr std::uint32_t kMostAtOnce = class_info(kFirstSpanClass).magazine_max;

[[noreturn, gnu::cold]] void report_bad_free(void* block, unsigned size_class) {
  SliceIndex slice = arena.slice_of(block);
  std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(block) % kSliceBytes;
  bool is_inside = arena.class_at(slice) == size_class &&
                   (offset != 0 || arena.first[slice].load(std::memory_order_relaxed) != slice);
  report_fatal_address(
      is_inside ? "free() of an address inside a block, not its start" : "double free() of", block);
}

}  // namespace

std::uint32_t cached_spans_take(unsigned shard, unsigned size_class, void** blocks,
                                std::uint32_t wanted) {
  SliceIndex spans[kMostAtOnce];
  if (wanted > kMostAtOnce) wanted = kMostAtOnce;
  std::uint32_t taken = page_heap_take_quick_spans(shard, size_class, spans, wanted);
  // Others are not taken ahead: what is not used yet is better free for all.
  if (taken == 0) {
    spans[0] = page_heap_take_span(shard, size_class);
    taken = spans[0] != 0 ? 1 : 0;
  }
  for (std::uint32_t i = 0; i < taken; ++i)
    blocks[taken - 1 - i] = reinterpret_cast<void*>(arena.address_of(spans[i]));
  return taken;
}

void cached_spans_give_back(unsigned size_class, void* const* blocks, std::uint32_t count) {
  std::uint32_t freed = page_heap_free_spans(size_class, blocks, count);
  if (freed != count) [[unlikely]]
    report_bad_free(blocks[freed], size_class);
  if (count != 0) purge_note_dirty();
}

}  // namespace rdmalloc
