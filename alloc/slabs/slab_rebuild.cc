// Walks over all slabs: making the lists anew from the spans after a fork, and counting.
#include <bit>

#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/slab_pages.h"
#include "alloc/slabs/slab_state.h"

namespace rdmalloc {

using namespace slab_state;

SlabCounters slab_counters(unsigned size_class) {
  SlabCounters counters{};
  // It has no slabs, and slab_rebuild() frees no lock of it in the child of a fork.
  if (is_span_class(size_class)) return counters;
  for (unsigned shard = 0; shard < shard_count(); ++shard) {
    SlabClass& slabs = slabs_of(shard, size_class);
    LockGuard guard(slabs.lock);
    counters.slabs += slabs.slabs.load(std::memory_order_relaxed);
    for (SliceIndex head : slabs.head) {
      for (SliceIndex slice = head; slice != 0; slice = arena.span(slice).next) {
        std::int32_t free_blocks = arena.span(slice).free_blocks.load(std::memory_order_relaxed);
        if (free_blocks > 0) counters.free_blocks += static_cast<std::uint64_t>(free_blocks);
      }
    }
  }
  counters.blocks = counters.slabs * class_info(size_class).slab_blocks;
  return counters;
}

void slab_orphan(unsigned shard, unsigned size_class) {
  slabs_of(shard, size_class).lock.orphan();
}

bool slab_is_orphaned(unsigned shard, unsigned size_class) {
  return slabs_of(shard, size_class).lock.is_orphaned();
}

void slab_rebuild(unsigned shard, unsigned size_class) {
  if (is_span_class(size_class)) return;  // cached_spans.h
  SlabClass& slabs = slabs_of(shard, size_class);
  const ClassInfo& info = class_info(size_class);
  slabs.lock.take_over();
  LockGuard guard(slabs.lock, LockGuard::Held{});
  for (SliceIndex& head : slabs.head) head = 0;
  slabs.slabs.store(0, std::memory_order_relaxed);
  slabs.listed.store(0, std::memory_order_relaxed);
  SliceIndex end = page_heap_frontier();
  for (SliceIndex slice = end == 0 ? 0 : 1; slice < end;) {
    SpanWord word = arena.span(slice).load();
    if (is_slab_of(word, size_class) && word.shard == shard) {
      pages_forget(slice, word.slices);
      std::int32_t free_blocks = 0;
      for (std::uint32_t w = 0; w < words_of(info); ++w)
        free_blocks += std::popcount(arena.bitmap(slice)[w].load(std::memory_order_relaxed));
      Span& span = arena.span(slice);
      span.free_blocks.store(free_blocks, std::memory_order_relaxed);
      span.is_listed.store(0, std::memory_order_relaxed);
      add_slabs(slabs, 1);
      if (free_blocks > 0) list(slabs, slice, bucket_of(free_blocks, info.slab_blocks));
    }
    slice += word.slices;
  }
  note_spare(slabs, size_class);
}

}  // namespace rdmalloc
