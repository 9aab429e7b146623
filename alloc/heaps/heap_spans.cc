#include "alloc/heaps/heap_spans.h"

#include <algorithm>
#include <bit>

#include "alloc/heaps/heap_regions.h"
#include "alloc/os/os.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

// While a heap is smaller than this its new slabs are of one slice: a small heap with blocks of
// many sizes stays small.
constexpr std::uint64_t kSmallHeapSlices = std::uint64_t{4} * kSlicesPerChunk;

std::uint64_t relaxed(const std::atomic<std::uint64_t>& value) {
  return value.load(std::memory_order_relaxed);
}
// Written under the span lock alone, so no read-modify-write is needed.
void add(std::atomic<std::uint64_t>& value, std::int64_t change) {
  value.store(relaxed(value) + static_cast<std::uint64_t>(change), std::memory_order_relaxed);
}

std::uint64_t bit_of(const HeapBlock& block) {
  return std::uint64_t{1} << block.index % 64;
}

// ---- spans. All under the span lock. ----

void link_span(Heap& heap, SliceIndex slice) {
  Span& span = arena.span(slice);
  span.older = 0;
  span.younger = heap.first_span;
  if (heap.first_span != 0) arena.span(heap.first_span).older = slice;
  heap.first_span = slice;
}
void unlink_span(Heap& heap, SliceIndex slice) {
  const Span& span = arena.span(slice);
  if (span.younger != 0) arena.span(span.younger).older = span.older;
  (span.older != 0 ? arena.span(span.older).younger : heap.first_span) = span.younger;
}

void count_span(Heap& heap, std::int64_t slices, bool is_large_block) {
  add(heap.span_slices, slices);
  std::uint64_t now = relaxed(heap.span_slices);
  if (now > relaxed(heap.most_span_slices))
    heap.most_span_slices.store(now, std::memory_order_relaxed);
  if (is_large_block) add(heap.large_slices, slices);
}

void enter_slab(Heap& heap, SliceIndex slice) {
  link_span(heap, slice);
  count_span(heap, arena.span(slice).load().slices, false);
}
void enter_large(Heap& heap, SliceIndex slice) {
  link_span(heap, slice);
  count_span(heap, arena.span(slice).load().slices, true);
  add(heap.large_blocks, 1);
}

void free_span(Heap& heap, SliceIndex slice) {
  SpanWord word = arena.span(slice).load();
  bool is_large_block = word.kind == SpanKind::kHeapLarge;
  unlink_span(heap, slice);
  count_span(heap, -static_cast<std::int64_t>(word.slices), is_large_block);
  if (is_large_block) add(heap.large_blocks, -1);
  if (has_regions(heap)) return region_free(heap, slice);
  // Of a heap that is being destroyed: heap_pages_end() puts it back.
  if (slab_is_in_purge(slice)) return page_heap_free_in_flight(slice);
  if (word.kind == SpanKind::kHeapSlab && arena.span(slice).has_purged_pages)
    pages_touch_all(slice, word.slices);
  page_heap_free(slice);
}

SliceIndex new_slab_span(Heap& heap, unsigned size_class, std::uint32_t slices) {
  LockGuard guard(heap.span_lock);
  if (!heap_has_budget(heap, slices)) return 0;
  SliceIndex slice = has_regions(heap) ? region_take(heap, slices, slices * kSliceBytes)
                                       : page_heap_take_slab(0, slices);
  if (slice == 0) return 0;
  for (std::uint32_t w = 0; w < slab_words_in(size_class, slices); ++w)
    live_word(slice, w).store(0, std::memory_order_relaxed);
  slab_begin(slice, slab_blocks_in(size_class, slices));
  page_heap_publish_slab(slice, static_cast<std::uint8_t>(size_class), slot_of(heap));
  enter_slab(heap, slice);
  return slice;
}

// ---- lists of a class. All under its lock. ----

std::uint32_t free_blocks_of(SliceIndex slice) {
  return static_cast<std::uint32_t>(arena.span(slice).free_blocks.load(std::memory_order_relaxed));
}
std::uint32_t blocks_of(SliceIndex slice) {
  SpanWord word = arena.span(slice).load();
  return slab_blocks_in(word.size_class, word.slices);
}

// Puts a slab onto the list that its free blocks say.
void relist(HeapClass& slabs, SliceIndex slice, std::uint32_t free_blocks) {
  const Span& span = arena.span(slice);
  bool is_listed = span.is_listed.load(std::memory_order_relaxed) != 0;
  unsigned bucket = bucket_of(static_cast<std::int32_t>(free_blocks), blocks_of(slice));
  if (is_listed && free_blocks != 0 && bucket == span.bucket) return;
  if (is_listed) unlist(slabs, slice);
  if (free_blocks != 0) list(slabs, slice, bucket);
}

SliceIndex fullest(const HeapClass& slabs) {
  for (SliceIndex head : slabs.head)
    if (head != 0) return head;
  return 0;
}

SliceIndex new_slab(Heap& heap, HeapClass& slabs, unsigned size_class) {
  std::uint32_t slices = class_info(size_class).slab_slices;
  if (relaxed(heap.span_slices) < kSmallHeapSlices) slices = 1;
  SliceIndex slice = new_slab_span(heap, size_class, slices);
  if (slice == 0 && slices > 1) slice = new_slab_span(heap, size_class, 1);
  if (slice != 0) relist(slabs, slice, free_blocks_of(slice));
  return slice;
}

// Takes blocks of one slab, as slab_take_from() does.
std::uint32_t take_from(HeapClass& slabs, SliceIndex slice, unsigned size_class, void** end,
                        std::uint32_t wanted) {
  std::uint32_t words = slab_words_in(size_class, arena.span(slice).load().slices);
  std::uint32_t got = slab_take_from(slice, class_info(size_class), words, end, wanted);
  relist(slabs, slice, free_blocks_of(slice));
  return got;
}

// Frees an empty slab, or keeps it, if it is the last of its class with free blocks, for the next
// allocation, which would make it again. Whether it was freed.
[[gnu::always_inline]] inline bool free_if_empty(Heap& heap, HeapClass& slabs, SliceIndex slice,
                                                 bool may_keep) {
  if (free_blocks_of(slice) != blocks_of(slice) || (may_keep && listed_in(slabs) == 1))
    return false;
  unlist(slabs, slice);
  LockGuard guard(heap.span_lock);
  free_span(heap, slice);
  return true;
}

}  // namespace

bool heap_has_budget(const Heap& heap, std::uint64_t slices) {
  return relaxed(heap.span_slices) + slices <= relaxed(heap.budget_slices);
}

std::uint32_t heap_slab_take(Heap& heap, unsigned size_class, void** blocks, std::uint32_t wanted) {
  HeapClass& slabs = heap.classes[size_class];
  LockGuard guard(slabs.lock);
  std::uint32_t got = 0;
  while (got < wanted) {
    SliceIndex slice = fullest(slabs);
    // A new slab for the block that is asked for, not for those beside it.
    if (slice == 0 && got == 0) slice = new_slab(heap, slabs, size_class);
    if (slice == 0) break;
    got += take_from(slabs, slice, size_class, blocks + wanted - got, wanted - got);
  }
  if (got != wanted) std::copy(blocks + wanted - got, blocks + wanted, blocks);
  return got;
}

bool heap_slab_give_back(Heap& heap, unsigned size_class, void* const* blocks,
                         std::uint32_t count) {
  HeapClass& slabs = heap.classes[size_class];
  LockGuard guard(slabs.lock);
  bool has_freed = false;
  for (std::uint32_t i = 0; i < count; ++i) {
    HeapBlock block = heap_block_at(blocks[i]);
    std::atomic<std::uint64_t>& word = arena.bitmap(block.slice)[block.index / 64];
    word.store(word.load(std::memory_order_relaxed) | bit_of(block), std::memory_order_relaxed);
    Span& span = arena.span(block.slice);
    if (block.index / 64 < span.scan_word.load(std::memory_order_relaxed))
      span.scan_word.store(static_cast<std::uint16_t>(block.index / 64), std::memory_order_relaxed);
    std::uint32_t free_blocks = free_blocks_of(block.slice) + 1;
    span.free_blocks.store(static_cast<std::int32_t>(free_blocks), std::memory_order_relaxed);
    relist(slabs, block.slice, free_blocks);
    has_freed |= free_if_empty(heap, slabs, block.slice, true);
  }
  if (!heap_gives_pages(heap)) return has_freed;
  // seq_cst: as in slab_note_change(). It sees the counts, or we that it waits.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return has_freed || slab_is_watched();
}

bool heap_gives_pages(const Heap& heap) {
  return !has_regions(heap);
}

namespace {

// Whether the slab is, and stays while its class's lock is held, one of the heap: a destroy that
// has begun passes through that lock before it frees a slab. Acquire: pairs with the release in
// heap_create(); what had the slot before has no slab any more.
bool is_slab_of(const Heap& heap, SliceIndex slice, SpanWord word) {
  return is_live(heap.handle.load(std::memory_order_acquire)) &&
         arena.span(slice).word.load(std::memory_order_acquire) == pack(word);
}

// Puts the blocks of pages back that were in flight. False: the slab ended with its heap.
bool put_pages(Heap& heap, unsigned size_class, SliceIndex slice, const SlabPages& purged) {
  HeapClass& slabs = heap.classes[size_class];
  LockGuard guard(slabs.lock);
  {
    // A destroy that has passed the class's lock frees the slab under this one.
    LockGuard span_guard(heap.span_lock);
    if (!is_slab(arena.span(slice).load().kind)) return false;
    pages_put(slice, purged);
  }
  if (!is_live(heap.handle.load(std::memory_order_relaxed))) return true;  // its lists are no more
  relist(slabs, slice, free_blocks_of(slice));
  (void)free_if_empty(heap, slabs, slice, true);  // the caller purges now
  return true;
}

}  // namespace

SlabPages heap_pages_begin(SliceIndex slice) {
  SpanWord word = arena.span(slice).load();
  if (word.kind != SpanKind::kHeapSlab) return {};
  Heap& heap = *heaps.at(word.heap);
  LockGuard guard(heap.classes[word.size_class].lock);
  if (!is_slab_of(heap, slice, word) || !heap_gives_pages(heap)) return {};
  SlabPages pages = pages_take(slice, word);
  if (!pages.is_empty()) relist(heap.classes[word.size_class], slice, free_blocks_of(slice));
  return pages;
}

void heap_pages_end(SliceIndex slice, const SlabPages& purged) {
  SpanWord word = arena.span(slice).load();
  if (is_slab(word.kind) && put_pages(*heaps.at(word.heap), word.size_class, slice, purged)) return;
  pages_put(slice, purged);
  page_heap_purge_end(slice, false, static_cast<std::uint32_t>(os::coarse_ms()));
}

bool heap_slab_is_free(SliceIndex slice, std::uintptr_t low, std::uintptr_t high, bool has_turn) {
  SpanWord word = arena.span(slice).load();
  if (word.kind != SpanKind::kHeapSlab) return false;
  Heap& heap = *heaps.at(word.heap);
  LockGuard guard(heap.classes[word.size_class].lock);
  return is_slab_of(heap, slice, word) && blocks_are_free(slice, word, low, high, has_turn);
}

bool heap_slab_trim(Heap& heap) {
  bool has_freed = false;
  for (unsigned c = 1; c < kClasses; ++c) {
    HeapClass& slabs = heap.classes[c];
    if (listed_in(slabs) == 0) continue;  // most classes of most heaps
    LockGuard guard(slabs.lock);
    // A heap that is being destroyed empties this class next, or has done so.
    if (!is_live(heap.handle.load(std::memory_order_relaxed))) return has_freed;
    // In any bucket: an empty slab of two blocks stands in the third.
    for (SliceIndex head : slabs.head) {
      for (SliceIndex slice = head; slice != 0;) {
        SliceIndex next = arena.span(slice).next;
        has_freed |= free_if_empty(heap, slabs, slice, false);
        slice = next;
      }
    }
  }
  return has_freed;
}

SliceIndex heap_large_take(Heap& heap, std::uint64_t handle, std::uint32_t slices,
                           std::size_t alignment, bool* is_zero) {
  LockGuard guard(heap.span_lock);
  if (!heap.is(handle) || !heap_has_budget(heap, slices)) return 0;
  SliceIndex slice = 0;
  if (!has_regions(heap)) {
    slice = page_heap_take_large(0, slices, alignment, is_zero, slot_of(heap));
  } else if ((slice = region_take(heap, slices, alignment)) != 0) {
    page_heap_publish_large(slice, slot_of(heap));
  }
  if (slice != 0) enter_large(heap, slice);
  return slice;
}

SliceIndex heap_large_take_growing(Heap& heap, std::uint64_t handle, std::uint32_t slices) {
  LockGuard guard(heap.span_lock);
  if (has_regions(heap)) return 0;
  // What the page heap takes at most.
  if (!heap.is(handle) ||
      !heap_has_budget(heap, slices + std::uint64_t{slices} / kGrowingParts + kSlicesPerChunk))
    return 0;
  bool is_new = false;
  SliceIndex slice = page_heap_take_growing(0, slices, &is_new, slot_of(heap));
  if (slice != 0) enter_large(heap, slice);
  return slice;
}

bool heap_large_free(Heap& heap, SliceIndex slice) {
  LockGuard guard(heap.span_lock);
  SpanWord word = arena.span(slice).load();
  if (word.kind != SpanKind::kHeapLarge || word.heap != slot_of(heap)) return false;
  free_span(heap, slice);
  return true;
}

bool heap_large_resize(Heap& heap, SliceIndex slice, std::uint32_t slices, bool* has_freed) {
  LockGuard guard(heap.span_lock);
  std::uint32_t have = arena.span(slice).load().slices;
  if (slices > have) {
    if (!heap_has_budget(heap, slices - have)) return false;
    if (!(has_regions(heap) ? region_grow(heap, slice, slices) : page_heap_grow(slice, slices)))
      return false;
  } else if (slices < have) {
    has_regions(heap) ? region_shrink(heap, slice, slices) : page_heap_shrink(slice, slices);
    *has_freed = true;
  }
  count_span(heap, std::int64_t{slices} - have, true);
  return true;
}

void heap_free_all_spans(Heap& heap) {
  for (HeapClass& slabs : heap.classes) {
    LockGuard guard(slabs.lock);
    for (SliceIndex& head : slabs.head) head = 0;
    slabs.listed.store(0, std::memory_order_relaxed);
  }
  LockGuard guard(heap.span_lock);
  while (heap.first_span != 0) free_span(heap, heap.first_span);
}

namespace {

// Makes a slab's counts, and its free bits if `is_exact`, anew; returns its live blocks.
std::uint32_t rebuild_slab(HeapClass& slabs, SliceIndex slice, bool is_exact) {
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  Bitmap bits = arena.bitmap(slice);
  std::uint32_t blocks = slab_blocks_in(word.size_class, word.slices);
  std::uint32_t free_blocks = 0, live_blocks = 0;
  for (std::uint32_t w = 0; w < slab_words_in(word.size_class, word.slices); ++w) {
    std::uint64_t live = live_word(slice, w).load(std::memory_order_relaxed);
    if (is_exact)
      bits[w].store(bits_of_word(blocks, w) & ~live & ~blocks_in_purge(slice, w),
                    std::memory_order_relaxed);
    std::uint64_t free = bits[w].load(std::memory_order_relaxed);
    live_blocks += static_cast<std::uint32_t>(std::popcount(live));
    free_blocks += static_cast<std::uint32_t>(std::popcount(free));
  }
  pages_forget(slice, word.slices);
  span.free_blocks.store(static_cast<std::int32_t>(free_blocks), std::memory_order_relaxed);
  span.is_listed.store(0, std::memory_order_relaxed);
  relist(slabs, slice, free_blocks);
  return live_blocks;
}

}  // namespace

void heap_rebuild_spans(Heap& heap, bool is_exact) {
  regions_rebuild(heap);
  heap.first_span = 0;
  heap.span_slices.store(0, std::memory_order_relaxed);
  heap.large_slices.store(0, std::memory_order_relaxed);
  heap.large_blocks.store(0, std::memory_order_relaxed);
  for (HeapClass& slabs : heap.classes) {
    for (SliceIndex& head : slabs.head) head = 0;
    slabs.listed.store(0, std::memory_order_relaxed);
  }
  std::int64_t live_bytes = 0, live_blocks = 0;
  SliceIndex end = page_heap_frontier();
  std::uint16_t slot = slot_of(heap);
  for (SliceIndex slice = end == 0 ? 0 : 1; slice < end;) {
    SpanWord word = arena.span(slice).load();
    if (is_in_use(word.kind) && word.heap == slot) {
      if (word.kind == SpanKind::kHeapLarge) {
        enter_large(heap, slice);
      } else {
        enter_slab(heap, slice);
        std::uint32_t blocks = rebuild_slab(heap.classes[word.size_class], slice, is_exact);
        live_blocks += blocks;
        live_bytes += std::int64_t{blocks} * block_bytes_of(word.size_class);
      }
    }
    slice += word.slices;
  }
  if (!is_exact) return;
  // The sum over the shards is what counts.
  for (HeapShard& shard : heap.shards) {
    shard.live_bytes.store(0, std::memory_order_relaxed);
    shard.live_blocks.store(0, std::memory_order_relaxed);
  }
  heap.shards[0].live_bytes.store(live_bytes, std::memory_order_relaxed);
  heap.shards[0].live_blocks.store(live_blocks, std::memory_order_relaxed);
}

}  // namespace rdmalloc
