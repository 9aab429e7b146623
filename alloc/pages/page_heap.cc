// Free spans, cut and joined, and what spans in use do to them: freed, grown, shortened.
#include "alloc/pages/page_heap.h"

#include "alloc/core/order_for_fork.h"
#include "alloc/core/shard.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/events.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

namespace detail {
constinit std::atomic<bool> keeps_places{false};
}  // namespace detail

namespace page_heap_state {

constinit PageHeap central{};
constinit Shared shared{};

namespace {

// Counts, of each segment, that slices of that kind are free, or are no more. And free spans' ends
// at those of segments, where they may have to be cut.
void note_segment(PageHeap& heap, SliceIndex segment, std::uint8_t slices, bool is_clean,
                  bool is_inserted) {
  SegmentFree& there = free_in(segment);
  auto count_whole = [&](std::uint32_t change) {
    if (there.slices != kSegmentSlices) [[likely]]
      return;
    heap.whole_segments += change;
    if (!is_whole_and_backed(there)) return;
    heap.backed_segments += change;
    if (segment < heap.backed_from) heap.backed_from = segment;
  };
  if (!is_inserted) count_whole(~0u);
  auto change = static_cast<std::uint8_t>(is_inserted ? slices : -slices);
  there.slices = static_cast<std::uint8_t>(there.slices + change);
  if (is_clean) there.clean_slices = static_cast<std::uint8_t>(there.clean_slices + change);
  if (is_inserted) count_whole(1);
}

void note_segments(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind,
                   bool is_inserted) {
  SliceIndex end = slice + slices;
  for (SliceIndex begin = slice, segment = segment_of(slice); begin < end;) {
    SliceIndex next = segment + kSegmentSlices;
    note_segment(heap, segment, static_cast<std::uint8_t>((next < end ? next : end) - begin),
                 kind == SpanKind::kFreeClean, is_inserted);
    if (is_inserted && segment > slice) {
      set_first(segment, slice);
      set_first(segment - 1, slice);
    }
    begin = segment = next;
  }
}

}  // namespace

void note_dirty(PageHeap& heap) {
  heap.noted_dirty = heap.dirty_slices.load(std::memory_order_relaxed) +
                     shared.dirty_allowance.load(std::memory_order_relaxed);
}

void count_segments(PageHeap& heap) {
  heap.counts_segments = true;
  heap.segments = heap.whole_segments = heap.backed_segments = heap.backed_from = 0;
  SliceIndex end = shared.frontier.load(std::memory_order_relaxed);
  for (SliceIndex s = 0; s < end; s += kSegmentSlices) {
    if (!is_of(heap, s)) continue;
    free_in(s) = {};
    heap.segments += 1;
  }
  for_each_span(heap, [&](SliceIndex slice, SpanWord word) {
    if (is_free(word.kind)) note_segments(heap, slice, word.slices, word.kind, true);
  });
}

bool use_within_limit(std::uint64_t slices) {
  if (is_room()) return !page_heap_is_over_room(slices);
  std::uint64_t before = shared.limited_slices.load(std::memory_order_relaxed);
  do {
    if (before + slices > limit_slices()) return false;
  } while (!shared.limited_slices.compare_exchange_weak(before, before + slices,
                                                        std::memory_order_relaxed));
  return true;
}

void insert_free(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind,
                 SliceIndex near) {
  arena.span(slice).store({kind, 0, false, slices});
  set_ends(slice, slices);
  family(heap, kind).insert(slice, slices);
  if (heap.counts_segments) note_segments(heap, slice, slices, kind, true);
  if (is_dirty(kind)) {
    heap.dirty_by_age.insert(slice, near);
    heap.retained_spans += kind == SpanKind::kFreeRetained ? 1 : 0;
    add_dirty(heap, slices);
  } else {
    heap.clean_slices += slices;
  }
}

SliceIndex remove_free(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind) {
  family(heap, kind).remove(slice, slices);
  if (heap.counts_segments) note_segments(heap, slice, slices, kind, false);
  if (is_dirty(kind)) {
    heap.retained_spans -= kind == SpanKind::kFreeRetained ? 1 : 0;
    add_dirty(heap, -static_cast<std::int64_t>(slices));
    return heap.dirty_by_age.remove(slice);
  }
  heap.clean_slices -= slices;
  return 0;
}

bool are_one(SliceIndex before, SliceIndex after, SpanKind kind) {
  if (is_dirty(kind) && arena.span(before).node != arena.span(after).node) return false;
  return kind != SpanKind::kFreeRetained || arena.span(after).is_rest;
}

SliceIndex join_and_insert(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind,
                           Age age, SliceIndex near) {
  std::uint32_t freed_ms = arena.span(slice).freed_ms;
  auto take_in = [&](SliceIndex other, std::uint32_t other_slices) {
    std::uint32_t other_ms = arena.span(other).freed_ms;
    SliceIndex hint = remove_free(heap, other, other_slices, kind);
    bool is_older = is_before(other_ms, freed_ms);
    if (near == other || (age == Age::kOldest && is_older)) near = hint;
    if (age == Age::kOldest && is_older) freed_ms = other_ms;
    slices += other_slices;
  };
  SliceIndex end = slice + slices;
  if (goes_on(heap, end)) {
    SpanWord after = arena.span(end).load();
    if (after.kind == kind && are_one(slice, end, kind)) take_in(end, after.slices);
  }
  if (is_of(heap, slice - 1)) {
    SliceIndex before = first_of(slice - 1);
    SpanWord word = arena.span(before).load();
    if (word.kind == kind && are_one(before, slice, kind)) {
      take_in(before, word.slices);
      slice = before;
    }
  }
  arena.span(slice).freed_ms = freed_ms;
  insert_free(heap, slice, slices, kind, near);
  return slice;
}

void cut(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind, SliceIndex at,
         std::uint32_t wanted) {
  SliceIndex near = remove_free(heap, slice, slices, kind);
  std::uint32_t freed_ms = arena.span(slice).freed_ms;
  std::uint8_t node = arena.span(slice).node;
  std::uint32_t before = at - slice, after = slices - before - wanted;
  // A buffer that begins at a piece of a retained span lies in what was registered for the whole.
  std::uint32_t whole = kind == SpanKind::kFreeRetained ? arena.span(slice).longest_buffer : 0;
  auto longest_buffer_from = [&](std::uint32_t offset) {
    return whole > offset ? whole - offset : 0;
  };
  if (after != 0) {
    arena.span(at + wanted).freed_ms = freed_ms;
    arena.span(at + wanted).is_rest = true;
    arena.span(at + wanted).node = node & kNodeMask;
    arena.span(at + wanted).longest_buffer = longest_buffer_from(before + wanted);
    insert_free(heap, at + wanted, after, kind, near);
  }
  // What begins where a span of another family began has nothing to do with what lies before it.
  if (before != 0 || kind != SpanKind::kFreeRetained)
    arena.span(at).is_rest = kind == SpanKind::kFreeRetained;
  arena.span(at).node = node & kNodeMask;
  arena.span(at).longest_buffer = longest_buffer_from(before);
  arena.span(at).store({SpanKind::kReserved, 0, false, wanted});
  if (before != 0) {
    arena.span(slice).freed_ms = freed_ms;
    insert_free(heap, slice, before, kind, near);
  }
  set_ends(at, wanted);
}

void make_dirty(PageHeap& heap, SliceIndex span, SliceIndex begin, SliceIndex end, SpanKind rest,
                std::uint32_t since_ms, Age age) {
  if (begin == end) return;
  cut(heap, span, arena.span(span).load().slices, SpanKind::kFreeClean, begin, end - begin);
  events_note_use(begin, end - begin);
  arena.span(begin).freed_ms = since_ms;
  arena.span(begin).is_rest = true;
  arena.span(begin).node = os::this_node() & kNodeMask;
  arena.span(begin).longest_buffer = 0;
  join_and_insert(heap, begin, end - begin, rest, age);
}

void cut_clean(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SliceIndex at,
               std::uint32_t wanted, SpanKind rest) {
  SliceIndex end = slice + slices, taken_end = at + wanted;
  SliceIndex head = chunk_of(at), tail = chunk_after(taken_end);
  bool dirties_head = huge_is_chunk(head);
  bool dirties_tail =
      tail <= end && tail - kSlicesPerChunk >= slice && huge_is_chunk(tail - kSlicesPerChunk);
  if (huge_is_any_passed() && is_central(heap)) [[unlikely]]
    huge_note_use(at, taken_end);
  cut(heap, slice, slices, SpanKind::kFreeClean, at, wanted);
  arena.span(at).node = os::this_node() & kNodeMask;  // which will touch it first
  note_new_slices(heap.index, wanted);
  if (dirties_head) make_dirty(heap, slice, head > slice ? head : slice, at, rest, now_ms());
  if (dirties_tail) make_dirty(heap, taken_end, taken_end, tail, rest, now_ms());
  if (dirties_head || dirties_tail) rest_is_new();
}

bool move_frontier(SliceIndex frontier, SliceIndex end) {
  if (arena_commit(end) != 0) return false;
  arena.span(frontier).store({SpanKind::kReserved, 0, false, end - frontier});
  set_first(frontier, frontier);
  // Release: pairs with the acquire in page_heap_frontier(); the words below are written.
  shared.frontier.store(end, std::memory_order_release);
  return true;
}

SliceIndex extend_frontier(std::uint32_t wanted, Alignment alignment) {
  SliceIndex frontier = shared.frontier.load(std::memory_order_relaxed);
  if (frontier == 0) {
    // Slice 0 is never handed out: its index means "none".
    if (arena_commit(1) != 0) return 0;
    set_first(0, 0);
    arena.span(0).store({SpanKind::kReserved, 0, false, 1});
    frontier = 1;
  }
  std::uint64_t begin = alignment.up(frontier), taken_end = begin + wanted;
  if (taken_end > arena.extent() / kSliceBytes) return 0;
  auto end = static_cast<SliceIndex>(taken_end);
  if (!move_frontier(frontier, end)) return 0;
  SliceIndex clean = join_and_insert(central, frontier, end - frontier, SpanKind::kFreeClean);
  if (begin - frontier >= kHugeBlockSlices) [[unlikely]]
    huge_note_passed(frontier, static_cast<SliceIndex>(begin));
  // Of the huge page that ended behind the frontier the rest is backed, from what is clean before
  // it on. Passed over, it lies behind all spans no more, where page_heap_enter_rest() would find
  // it.
  SliceIndex chunk = chunk_of(frontier), chunk_end = chunk + kSlicesPerChunk;
  if (frontier != chunk && begin >= chunk_end && huge_is_chunk(chunk)) {
    SliceIndex rest = clean > chunk ? clean : chunk;
    make_dirty(central, clean, rest, chunk_end, SpanKind::kFreeDirty, now_ms());
    rest_is_new();
  }
  return first_of(end - 1);
}

SliceIndex extend_last_clean(std::uint32_t wanted, Alignment alignment) {
  SliceIndex frontier = shared.frontier.load(std::memory_order_relaxed);
  SliceIndex last = last_clean(frontier);
  if (last == frontier) [[likely]]
    return extend_frontier(wanted, alignment);
  std::uint64_t begin = alignment.up(last), end = begin + wanted;
  if (begin >= frontier) return extend_frontier(wanted, alignment);
  if (end <= frontier) return last;  // the caller passed it by for its huge pages
  if (end > arena.extent() / kSliceBytes) return 0;
  return extend_frontier(static_cast<std::uint32_t>(end - frontier), 1);
}

bool has_room_at(PageHeap& heap, SliceIndex end, std::uint32_t wanted) {
  std::uint32_t found = 0;
  for (SliceIndex s = end; found < wanted && goes_on(heap, s);) {
    SpanWord next = arena.span(s).load();
    if (!is_free(next.kind)) return false;
    if (is_dirty(next.kind) && is_left_to_others(s, next.slices)) return false;
    found += next.slices;
    s += next.slices;
  }
  if (found >= wanted) return true;
  return is_central(heap) && end + found == page_heap_frontier() &&
         extend_frontier(wanted - found, 1) != 0;
}

void take_room(PageHeap& heap, SliceIndex begin, std::uint32_t wanted, SpanKind rest) {
  SliceIndex end = begin + wanted;
  for (SliceIndex s = begin; s < end;) {
    SpanWord next = arena.span(s).load();
    std::uint32_t taken = next.slices < end - s ? next.slices : end - s;
    if (next.kind == SpanKind::kFreeClean) {
      cut_clean(heap, s, next.slices, s, taken, rest);
      events_note_use(s, taken);
    } else {
      cut(heap, s, next.slices, next.kind, s, taken);
    }
    s += taken;
  }
}

void publish_locked(PageHeap& heap, SliceIndex slice, SpanWord word) {
  Span& span = arena.span(slice);
  word.slices = span.load().slices;
  span.generation.store(new_generation(heap), std::memory_order_relaxed);
  span.has_grown = false;
  span.is_kept.store(false, std::memory_order_relaxed);  // a fork may have left it
  set_firsts(slice, slice + word.slices, slice);
  set_class<__ATOMIC_RELAXED>(slice, slice + word.slices, map_class_of(word));
  (is_large(word.kind) ? heap.large_spans : heap.slab_spans) += 1;
  span.store(word);
  // Pairs with the fence in rdmalloc_range_is_idle(): a thread that allocates here and then looks a
  // registration up, and one that unpublishes a registration and then asks whether the range is in
  // use, can't both miss the other.
  fence_beside_unlock();
}

}  // namespace page_heap_state

using namespace page_heap_state;

namespace {

// The family that a span in use goes to. An array that grew leaves no place to come back to: the
// next one has another length.
SpanKind left_by(const Span& span) {
  SpanWord word = span.load();
  bool is_one_block = is_large(word.kind) || is_span_class(word.size_class);
  bool is_buffer = is_one_block && word.slices >= kBufferSlices;
  return is_buffer && !span.has_grown ? kind_of_place(word.slices) : SpanKind::kFreeDirty;
}

// False, and nothing done: it is no span in use, nor of that class where one is named.
bool free_locked(PageHeap& heap, SliceIndex slice, unsigned span_class, std::uint32_t now) {
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  // Another thread may have freed it at this moment, and the segment have gone.
  if (!is_of(heap, slice) || !is_in_use(word.kind)) return false;
  if (span_class != 0 && (word.kind != SpanKind::kSlab || word.size_class != span_class))
    return false;
  (is_large(word.kind) ? heap.large_spans : heap.slab_spans) -= 1;
  unuse(heap, word.slices);
  span.freed_ms = now;
  if (span.longest_buffer < word.slices) span.longest_buffer = word.slices;
  if (quick_put(heap, slice, word)) {
    clear_class(slice, slice + word.slices);
    return true;
  }
  SpanKind left = left_by(span);
  span.store({SpanKind::kReserved, 0, false, word.slices});
  clear_class(slice, slice + word.slices);
  join_and_insert(heap, slice, word.slices, left);
  segment_give_back(heap, slice, word.slices);
  return true;
}

bool grow_locked(PageHeap& heap, SliceIndex slice, std::uint32_t slices) {
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  SliceIndex end = slice + word.slices;
  std::uint32_t more = slices - word.slices;
  SliceIndex frontier = page_heap_frontier();
  // Beyond the room of a small cgroup too: a copy takes more of it.
  if (is_room())
    add_used(heap, more);
  else if (!use(heap, more))
    return false;
  while (quick_release_before(heap, end, more)) continue;
  if (!has_room_at(heap, end, more)) {
    unuse(heap, more);
    return false;
  }
  ask_for_huge(end, more, frontier, TakenFor::kBuffer);
  take_room(heap, end, more, SpanKind::kFreeDirty);
  span.has_grown = true;
  set_firsts(end, end + more, slice);
  set_class<__ATOMIC_RELAXED>(end, end + more, map_class_of(word));
  span.store({word.kind, word.size_class, false, slices, word.heap});
  fence_beside_unlock();  // as in publish_locked()
  return true;
}

}  // namespace

bool page_heap_free(SliceIndex slice) {
  // Else its loads wait until the lock is taken.
  __builtin_prefetch(&arena.span(slice), 1);
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  if (arena.span(slice).is_kept.load(std::memory_order_relaxed)) [[unlikely]]
    return false;
  return free_locked(heap, slice, 0, now_ms());
}

void page_heap_recover_kept(SliceIndex slice) {
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  Span& span = arena.span(slice);
  if (!span.is_kept.load(std::memory_order_relaxed)) return;
  free_locked(heap, slice, 0, now_ms());
  order_for_fork();
  span.is_kept.store(false, std::memory_order_relaxed);
}

std::uint32_t page_heap_free_spans(unsigned span_class, void* const* blocks, std::uint32_t count) {
  std::uint32_t now = now_ms(), freed = 0;
  // Those that lie in one heap, one behind the other, with its lock taken once.
  while (freed < count) {
    PageHeap& heap = heap_of(arena.slice_of(blocks[freed]));
    LockGuard guard(heap.lock);
    for (; freed < count; ++freed) {
      SliceIndex slice = arena.slice_of(blocks[freed]);
      if (&heap_of(slice) != &heap) break;
      if (reinterpret_cast<std::uintptr_t>(blocks[freed]) != arena.address_of(slice) ||
          first_of(slice) != slice || !free_locked(heap, slice, span_class, now))
        return freed;
    }
  }
  return freed;
}

void page_heap_free_in_flight(SliceIndex slice) {
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  Span& span = arena.span(slice);
  std::uint32_t slices = span.load().slices;
  heap.slab_spans -= 1;
  heap.purging_slices += slices;
  span.purged_from = SpanKind::kFreeDirty;
  span.store({SpanKind::kPurging, 0, false, slices});
  clear_class(slice, slice + slices);
  unuse(heap, slices);
}

bool page_heap_grow(SliceIndex slice, std::uint32_t slices) {
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  return grow_locked(heap, slice, slices);
}

void page_heap_shrink(SliceIndex slice, std::uint32_t slices) {
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  std::uint32_t less = word.slices - slices;
  SliceIndex tail = slice + slices;
  SpanKind left = left_by(span);
  arena.span(tail).store({SpanKind::kReserved, 0, false, less});
  span.store({word.kind, word.size_class, word.is_zero, slices, word.heap});
  clear_class(tail, tail + less);
  unuse(heap, less);
  arena.span(tail).freed_ms = now_ms();
  arena.span(tail).is_rest = true;
  arena.span(tail).node = span.node;
  arena.span(tail).longest_buffer = less;
  if (span.longest_buffer < word.slices) span.longest_buffer = word.slices;
  join_and_insert(heap, tail, less, left);
}

bool page_heap_dirty_has_grown() {
  return limit_slices() != UINT64_MAX ||
         (shared.dirty_has_grown.load(std::memory_order_relaxed) &&
          shared.dirty_has_grown.exchange(false, std::memory_order_relaxed));
}

void page_heap_allow_dirty(std::uint64_t more) {
  // Looked at again long before all heaps together have grown by so much.
  constexpr std::uint64_t kMost = (std::uint64_t{8} << 20) / kSliceBytes;
  std::uint64_t allowance = more / 2 / shard_count();
  if (allowance > kMost) allowance = kMost;
  shared.dirty_allowance.store(allowance == 0 ? 1 : allowance, std::memory_order_relaxed);
}

}  // namespace rdmalloc
