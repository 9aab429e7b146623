// Walks over all spans: making the lists anew from the words after a fork, and checking the
// equations. And the counters, and what goes by them: limits.
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

using namespace page_heap_state;

namespace {

// All that is known of free spans and of counts, as of a heap without spans.
void clear(PageHeap& heap) {
  heap.dirty.clear();
  heap.retained.clear();
  heap.clean.clear();
  heap.dirty_by_age.clear();
  heap.retained_spans = 0;
  heap.quick.count = heap.quick.buffers = heap.quick.slices = 0;
  heap.quick.lengths.store(0, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < QuickList::kLongest; ++i)
    heap.quick.latest[i] = heap.quick.oldest[i] = 0;
  heap.used_slices.store(0, std::memory_order_relaxed);
  heap.dirty_slices.store(0, std::memory_order_relaxed);
  if (is_central(heap)) shared.retired_slices.store(0, std::memory_order_relaxed);
  heap.clean_slices = heap.purging_slices = 0;
  heap.large_spans = heap.slab_spans = 0;
  heap.next_generation = 0;  // it may have been given out already
  heap.counts_segments = false;
}

void enter_class(SliceIndex slice, SpanWord word) {
  set_class<__ATOMIC_RELAXED>(slice, slice + word.slices, map_class_of(word));
}

// What was free stays of its family; what was on its way somewhere is dirty, which is always safe
// to say.
void enter_free(PageHeap& heap, SliceIndex slice, SpanWord word, std::uint32_t now) {
  enter_class(slice, word);
  arena.span(slice).freed_ms = now;
  arena.span(slice).is_left_alone = false;
  SpanKind kind = is_free(word.kind) ? word.kind : SpanKind::kFreeDirty;
  std::uint32_t slices = word.slices;
  bool is_one = kind != SpanKind::kFreeRetained || arena.span(slice).is_rest;
  // Spans behind this one are not in the lists yet: join only with the one before.
  if (is_one && slice != 1 && is_of(heap, slice - 1)) {
    SliceIndex before = first_of(slice - 1);
    SpanWord joined = arena.span(before).load();
    if (joined.kind == kind) {
      remove_free(heap, before, joined.slices, kind);
      slice = before;
      slices += joined.slices;
    }
  }
  insert_free(heap, slice, slices, kind);
}

void enter(PageHeap& heap, SliceIndex slice, SpanWord word, bool purge_goes_on, std::uint32_t now) {
  if (is_in_use(word.kind)) {
    (is_large(word.kind) ? heap.large_spans : heap.slab_spans) += 1;
    set_firsts(slice, slice + word.slices, slice);
    enter_class(slice, word);
  } else if (word.heap != 0) {
    // Of a region of a heap of the user, free or on its way.
    arena.span(slice).store({SpanKind::kHeapFree, 0, false, word.slices, word.heap});
    enter_class(slice, word);
    set_ends(slice, word.slices);
  } else if (word.kind == SpanKind::kRetired) {
    shared.retired_slices.store(page_heap_retired_slices() + word.slices,
                                std::memory_order_relaxed);
    set_ends(slice, word.slices);
  } else if (word.kind == SpanKind::kPurging && purge_goes_on) {
    heap.purging_slices += word.slices;
    set_ends(slice, word.slices);
    return;
  } else {
    return enter_free(heap, slice, word, now);
  }
  add_used(heap, word.slices);
}

}  // namespace

void page_heap_rebuild(bool purge_goes_on) {
  bool is_any = false;
  for_each_heap([&](PageHeap& heap) {
    if (!heap.lock.is_orphaned()) return;
    is_any = true;
    heap.lock.take_over();
    LockGuard guard(heap.lock, LockGuard::Held{});
    clear(heap);
    std::uint32_t now = now_ms();
    for_each_span(heap, [&](SliceIndex slice, SpanWord word) {
      enter(heap, slice, word, purge_goes_on, now);
    });
    // Not by shard_count(): a fork may come after the first shard's heap and before it is counted,
    // and that heap, once made, is not made again.
    if (!is_central(heap) || has_segments()) count_segments(heap);
  });
  if (is_any) shared.limited_slices.store(page_heap_used_slices(), std::memory_order_relaxed);
}

namespace {

// What a walk over the spans of a heap finds.
struct Found {
  std::uint64_t used = 0, dirty = 0, clean = 0, reserved = 0, quick = 0, retained_spans = 0;
  bool is_valid = true;
};

// `before`: the span of that heap which ends where this one begins; 0: there is none.
void look_at(SliceIndex slice, SpanWord word, SliceIndex before, Found* found) {
  SliceIndex last = slice + word.slices - 1;
  if (word.slices == 0 || last >= page_heap_frontier() || first_of(slice) != slice ||
      first_of(last) != slice) {
    found->is_valid = false;
    return;
  }
  for (SliceIndex s = slice; s <= last; ++s)
    if (arena.class_at(s) != map_class_of(word)) found->is_valid = false;
  switch (word.kind) {
    case SpanKind::kSlab:
    case SpanKind::kLarge:
    case SpanKind::kHeapSlab:
    case SpanKind::kHeapLarge:
    case SpanKind::kHeapFree:
    case SpanKind::kRetired:
      found->used += word.slices;
      break;
    case SpanKind::kQuick:
      found->quick += word.slices;
      [[fallthrough]];
    case SpanKind::kFreeDirty:
    case SpanKind::kFreeRetained:
      found->retained_spans += word.kind == SpanKind::kFreeRetained ? 1 : 0;
      found->dirty += word.slices;
      break;
    case SpanKind::kFreeClean:
      found->clean += word.slices;
      break;
    case SpanKind::kReserved:
    case SpanKind::kPurging:
      found->reserved += word.slices;
      break;
    case SpanKind::kNone:
      found->is_valid = false;
  }
  if (is_free(word.kind) && before != 0 && arena.span(before).load().kind == word.kind &&
      are_one(before, slice, word.kind))
    found->is_valid = false;
}

SegmentFree operator+(SegmentFree a, SegmentFree b) {
  return {static_cast<std::uint8_t>(a.slices + b.slices),
          static_cast<std::uint8_t>(a.clean_slices + b.clean_slices)};
}

// What the part of a span that lies in [begin, end) adds to what is free there.
SegmentFree free_part(SliceIndex slice, SliceIndex begin, SliceIndex end) {
  SpanWord word = arena.span(slice).load();
  SliceIndex from = slice > begin ? slice : begin, to = slice + word.slices;
  auto part = static_cast<std::uint8_t>((to < end ? to : end) - from);
  if (!is_free(word.kind)) return {};
  return {part, word.kind == SpanKind::kFreeClean ? part : std::uint8_t{0}};
}

// What is free in each of its segments.
bool are_segments_valid(const PageHeap& heap) {
  std::uint32_t segments = 0, whole = 0, backed = 0;
  SliceIndex slice = 0, frontier = page_heap_frontier();
  for (SliceIndex s = 0; s < frontier; s += kSegmentSlices) {
    if (!is_of(heap, s)) continue;
    // Where the segment before is another heap's, a span begins here.
    if (slice + arena.span(slice).load().slices <= s) slice = s;
    SegmentFree found = {};
    SliceIndex end = s + kSegmentSlices;
    while (slice < end && slice < frontier) {
      found = found + free_part(slice, s, end);
      SliceIndex next = slice + arena.span(slice).load().slices;
      if (next > end) break;
      slice = next;
    }
    SegmentFree there = free_in(s);
    if (found.slices != there.slices || found.clean_slices != there.clean_slices) return false;
    segments += 1;
    whole += found.slices == kSegmentSlices ? 1 : 0;
    backed += is_whole_and_backed(found) ? 1 : 0;
    if (is_whole_and_backed(found) && s < heap.backed_from) return false;
  }
  return (is_central(heap) || segments == heap.segments) && whole == heap.whole_segments &&
         backed == heap.backed_segments;
}

// Each run listed, from both ends, and as many slices of them as the words say.
bool is_quick_list_valid(const QuickList& quick, std::uint64_t found_slices) {
  std::uint32_t slices = 0, count = 0, buffers = 0;
  for (std::uint32_t length = 1; length <= QuickList::kLongest; ++length) {
    SliceIndex before = 0, latest = quick.latest[length - 1];
    if ((latest != 0) != quick.has(length)) return false;
    for (SliceIndex s = latest; s != 0; before = s, s = arena.span(s).next) {
      SpanWord word = arena.span(s).load();
      if (word.kind != SpanKind::kQuick || word.slices != length) return false;
      if (arena.span(s).previous != before) return false;
      slices += length;
      count += 1;
      buffers += length >= kBufferSlices ? 1 : 0;
    }
    if (quick.oldest[length - 1] != before) return false;
  }
  return count == quick.count && buffers == quick.buffers && slices == quick.slices &&
         slices == found_slices;
}

bool is_valid_locked(const PageHeap& heap) {
  Found found;
  SliceIndex before = 0, next = 0;
  for_each_span(heap, [&](SliceIndex slice, SpanWord word) {
    if (!found.is_valid) return;
    look_at(slice, word, slice == next ? before : 0, &found);
    before = slice;
    next = slice + word.slices;
  });
  // Spans between taking and publishing are kReserved and counted as used.
  return found.is_valid && found.retained_spans == heap.retained_spans &&
         found.dirty == heap.dirty_slices.load(std::memory_order_relaxed) &&
         found.clean == heap.clean_slices &&
         found.used + found.reserved ==
             heap.used_slices.load(std::memory_order_relaxed) + heap.purging_slices &&
         is_quick_list_valid(heap.quick, found.quick) && heap.dirty_by_age.is_valid() &&
         (!heap.counts_segments || are_segments_valid(heap));
}

}  // namespace

bool page_heap_is_valid() {
  // Those that are there now: one that is made meanwhile has no segments.
  PageHeap* heaps[kShardLimit];
  unsigned count = 0;
  for_each_heap([&](PageHeap& heap) {
    if (is_central(heap)) return;
    heap.lock.lock();
    heaps[count++] = &heap;
  });
  central.lock.lock();
  bool is_valid = is_valid_locked(central);
  for (unsigned i = 0; i < count; ++i) is_valid &= is_valid_locked(*heaps[i]);
  central.lock.unlock();
  while (count != 0) heaps[--count]->lock.unlock();
  return is_valid;
}

PageHeapCounters page_heap_counters() {
  PageHeapCounters counters = {};
  for_each_heap([&](PageHeap& heap) {
    LockGuard guard(heap.lock);
    counters.used_slices += heap.used_slices.load(std::memory_order_relaxed);
    counters.dirty_slices += heap.dirty_slices.load(std::memory_order_relaxed);
    counters.purging_slices += heap.purging_slices;
    counters.large_spans += heap.large_spans;
    counters.slab_spans += heap.slab_spans;
    counters.segments += is_central(heap) ? 0 : heap.segments;
    counters.segment_moves += heap.moves;
  });
  // The sum is of no one moment; this is.
  if (limit_slices() != UINT64_MAX && !is_room())
    counters.used_slices = shared.limited_slices.load(std::memory_order_relaxed);
  counters.frontier_slices = page_heap_frontier();
  return counters;
}

std::uint64_t page_heap_dirty_slices() {
  std::uint64_t slices = 0;
  for_each_heap(
      [&](const PageHeap& heap) { slices += heap.dirty_slices.load(std::memory_order_relaxed); });
  return slices;
}

std::uint64_t page_heap_used_slices() {
  std::uint64_t slices = 0;
  for_each_heap(
      [&](const PageHeap& heap) { slices += heap.used_slices.load(std::memory_order_relaxed); });
  return slices;
}

std::uint64_t page_heap_used_slices_of(unsigned shard) {
  return heap_of_shard(shard).used_slices.load(std::memory_order_relaxed);
}

void page_heap_set_limit(std::uint64_t bytes) {
  shared.limited_slices.store(page_heap_used_slices(), std::memory_order_relaxed);
  shared.limit_slices.store(bytes >> kSliceShift, std::memory_order_relaxed);
}

void page_heap_set_room(std::uint64_t bytes) {
  shared.least_room_slices.store(bytes == UINT64_MAX ? kEndlessRoom : bytes >> kSliceShift,
                                 std::memory_order_relaxed);
  page_heap_narrow_room();
}

// A program whose live blocks take more room than there is empties its caches once for each part.
constexpr std::uint64_t kPartsOfRoom = 8;

bool page_heap_is_over_limit(std::uint32_t more) {
  std::uint64_t limit = limit_slices();
  if (limit == UINT64_MAX) return false;
  return is_room() ? page_heap_is_over_room(more)
                   : shared.limited_slices.load(std::memory_order_relaxed) + more > limit;
}

bool page_heap_is_over_room(std::uint64_t more) {
  return is_room() && limit_slices() < kEndlessRoom &&
         page_heap_used_slices() + more > limit_slices();
}

bool page_heap_room_is_set() {
  return shared.least_room_slices.load(std::memory_order_relaxed) < kEndlessRoom;
}

void page_heap_widen_room(std::uint32_t more) {
  std::uint64_t used = page_heap_used_slices(), wanted = used + more + used / kPartsOfRoom;
  if (wanted > limit_slices()) shared.limit_slices.store(wanted, std::memory_order_relaxed);
}

void page_heap_narrow_room() {
  if (!is_room()) return;
  std::uint64_t least = shared.least_room_slices.load(std::memory_order_relaxed);
  std::uint64_t used = page_heap_used_slices();
  used += used / kPartsOfRoom;
  shared.limit_slices.store(used > least ? used : least, std::memory_order_relaxed);
}

std::uint64_t page_heap_limit_slices() {
  return limit_slices();
}

void page_heap_set_retain_ms(std::uint64_t retain_ms) {
  shared.retain_ms.store(static_cast<std::uint32_t>(retain_ms), std::memory_order_relaxed);
}

SliceIndex page_heap_frontier() {
  return shared.frontier.load(std::memory_order_acquire);
}

}  // namespace rdmalloc
