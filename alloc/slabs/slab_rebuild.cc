// Walks over all slabs: making the lists anew from the spans after a fork, and counting.
#include <bit>

#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/slab_state.h"

namespace rdmalloc {

using namespace slab_state;

SlabCounters slab_counters(unsigned size_class) {
  SlabCounters counters{};
  for (unsigned shard = 0; shard < shard_count(); ++shard) {
    SlabClass& slabs = slabs_of(shard, size_class);
    LockGuard guard(slabs.lock);
    counters.slabs += slabs.slabs;
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

bool slab_is_orphaned(unsigned shard, unsigned size_class) {
  return slabs_of(shard, size_class).lock.is_orphaned();
}

SlabInPurge slab_in_purge() {
  // With its lock free or held, the slab is one: blocks of it are out.
  unsigned size_class = in_purge.size_class;
  return {size_class, size_class == 0 ? 0u : arena.span(in_purge.slice).load().shard};
}

void slab_end_purge() {
  const ClassInfo& info = class_info(in_purge.size_class);
  std::int32_t given = 0;
  for (std::uint32_t w = 0; w < words_of(info); ++w) {
    std::uint64_t blocks = in_purge.blocks[w];
    given += std::popcount(blocks);
    arena.bitmap(in_purge.slice)[w].fetch_or(blocks, std::memory_order_relaxed);
  }
  arena.span(in_purge.slice).free_blocks.fetch_add(given, std::memory_order_relaxed);
  in_purge.size_class = 0;
}

void slab_rebuild(unsigned shard, unsigned size_class) {
  SlabClass& slabs = slabs_of(shard, size_class);
  const ClassInfo& info = class_info(size_class);
  slabs.lock.take_over();
  LockGuard guard(slabs.lock, LockGuard::Held{});
  for (SliceIndex& head : slabs.head) head = 0;
  slabs.slabs = 0;
  slabs.listed.store(0, std::memory_order_relaxed);
  SliceIndex end = page_heap_frontier();
  for (SliceIndex slice = end == 0 ? 0 : 1; slice < end;) {
    SpanWord word = arena.span(slice).load();
    if (is_slab_of(word, size_class) && word.shard == shard) {
      // Which pages are given back was perhaps being changed. No observer is notified of pages in a
      // child, so it may forget.
      for (std::uint32_t part = 0; part < word.slices; ++part)
        arena.purged_pages[slice + part].store(0, std::memory_order_relaxed);
      arena.span(slice).has_purged_pages = false;
      std::int32_t free_blocks = 0;
      for (std::uint32_t w = 0; w < words_of(info); ++w)
        free_blocks += std::popcount(arena.bitmap(slice)[w].load(std::memory_order_relaxed));
      Span& span = arena.span(slice);
      span.free_blocks.store(free_blocks, std::memory_order_relaxed);
      span.is_listed.store(0, std::memory_order_relaxed);
      slabs.slabs += 1;
      if (free_blocks > 0) list(slabs, slice, bucket_of(free_blocks, info.slab_blocks));
    }
    slice += word.slices;
  }
}

}  // namespace rdmalloc
