// The page heap's part in a purge: which spans are taken in flight and come back.
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

using namespace page_heap_state;

namespace {

bool is_due(std::uint32_t freed_ms, std::int64_t until_ms) {
  return static_cast<std::int32_t>(freed_ms - static_cast<std::uint32_t>(until_ms)) <= 0;
}

// The part of a dirty span that may be purged at its age: all of it under small pages or when
// it is old enough, else its whole huge pages. A part of a huge page frees little at once and
// khugepaged may fill it again, so it waits longer.
bool choose_part(const PurgeChoice& choice, SliceIndex slice, std::uint32_t slices,
                 std::uint32_t freed_ms, SliceIndex* begin, std::uint32_t* length) {
  *begin = slice;
  *length = slices;
  if (choice.any_age || is_due(freed_ms, choice.part_until_ms)) return true;
  if (!is_due(freed_ms, choice.whole_until_ms)) return false;
  if (!huge_is_any(slice, slice + slices)) return true;
  SliceIndex first = chunk_after(slice), end = chunk_of(slice + slices);
  if (first >= end) return false;
  *begin = first;
  *length = end - first;
  return true;
}

// Leaves out of the part what was offered last, with which it begins; false: then nothing is left.
bool leave_out(const PurgeOffered& last, SliceIndex* begin, std::uint32_t* length) {
  if (*begin < last.begin || *begin >= last.end) return true;
  std::uint32_t offered = last.end - *begin;
  if (offered >= *length) return false;
  *begin = last.end;
  *length -= offered;
  return true;
}

// The oldest span of the heap of which a part may go, and that part. 0: none.
SliceIndex find_due(const PageHeap& heap, const PurgeChoice& choice, const PurgeOffered& last,
                    SliceIndex* begin, std::uint32_t* part) {
  for (SliceIndex slice = heap.dirty_by_age.oldest(); slice != 0;
       slice = arena.span(slice).younger) {
    std::uint32_t freed_ms = arena.span(slice).freed_ms;
    if (!choice.any_age && !is_due(freed_ms, choice.whole_until_ms))
      return 0;  // all that follow are younger
    if (choose_part(choice, slice, arena.span(slice).load().slices, freed_ms, begin, part) &&
        leave_out(last, begin, part))
      return slice;
  }
  return 0;
}

// Runs of the quick list that the choice allows, as far as the oldest free span is no older, become
// free spans.
void release_due(PageHeap& heap, const PurgeChoice& choice) {
  if (heap.quick.count == 0) return;
  auto until_ms = static_cast<std::uint32_t>(choice.whole_until_ms);
  if (choice.any_age) {
    SliceIndex oldest = heap.dirty_by_age.oldest();
    until_ms = arena.span(oldest != 0 ? oldest : quick_oldest(heap)).freed_ms;
  }
  quick_release_until(heap, until_ms);
}

// The heap that has the oldest of them; nullptr: none. With no lock: it may be another's turn by
// the time that it is asked, and what is a little younger goes.
PageHeap* find_heap_due(const PurgeChoice& choice, const PurgeOffered& last) {
  PageHeap* found = nullptr;
  std::uint32_t oldest_ms = 0;
  for_each_heap([&](PageHeap& heap) {
    if (heap.dirty_slices.load(std::memory_order_relaxed) == 0) return;
    LockGuard guard(heap.lock);
    release_due(heap, choice);
    SliceIndex begin = 0;
    std::uint32_t part = 0;
    SliceIndex slice = find_due(heap, choice, last, &begin, &part);
    if (slice == 0) return;
    std::uint32_t freed_ms = arena.span(slice).freed_ms;
    if (found != nullptr && !is_before(freed_ms, oldest_ms)) return;
    found = &heap;
    oldest_ms = freed_ms;
  });
  return found;
}

// Where the huge page ends that the arena ends within; 0: it does not. Under the central lock.
SliceIndex end_of_rest(SliceIndex frontier) {
  SliceIndex chunk = chunk_of(frontier), end = chunk + kSlicesPerChunk;
  return frontier != chunk && end <= arena.committed && huge_is_chunk(chunk) ? end : 0;
}

void make_young(PageHeap& heap, SliceIndex slice) {
  SpanWord word = arena.span(slice).load();
  remove_free(heap, slice, word.slices, word.kind);
  arena.span(slice).freed_ms = now_ms();
  insert_free(heap, slice, word.slices, word.kind);
}

}  // namespace

bool page_heap_has_rest() {
  LockGuard guard(central.lock);
  return end_of_rest(page_heap_frontier()) != 0;
}

void page_heap_enter_rest(const PurgeChoice& choice) {
  LockGuard guard(central.lock);
  SliceIndex frontier = page_heap_frontier(), end = end_of_rest(frontier);
  if (end == 0) return;
  // As of a span that was freed then. What is old enough for all is no older here: after 25 days
  // spans' times would call it young.
  std::int64_t asked_ms = huge_asked_ms();
  if (!choice.any_age && asked_ms < choice.part_until_ms) asked_ms = choice.part_until_ms;
  auto since_ms = static_cast<std::uint32_t>(asked_ms);
  if (is_of(central, frontier - 1)) {
    const Span& before = arena.span(first_of(frontier - 1));
    if (is_dirty(before.load().kind) && is_due(since_ms, before.freed_ms))
      since_ms = before.freed_ms;
  }
  if (!choice.any_age && !is_due(since_ms, choice.whole_until_ms)) return;
  SliceIndex clean = extend_frontier(end - frontier, 1);
  if (clean == 0) return;
  // What is clean right before the frontier may have been backed with it.
  SliceIndex chunk = end - kSlicesPerChunk, rest = clean > chunk ? clean : chunk;
  make_dirty(central, clean, rest, end, SpanKind::kFreeDirty, since_ms, Age::kOwn);
}

SliceIndex page_heap_purge_begin(const PurgeChoice& choice, PurgeOffered* last,
                                 std::uint32_t* slices) {
  while (PageHeap* heap = find_heap_due(choice, *last)) {
    LockGuard guard(heap->lock);
    SliceIndex begin = 0;
    std::uint32_t part = 0;
    SliceIndex slice = find_due(*heap, choice, *last, &begin, &part);
    if (slice == 0) continue;
    SpanWord word = arena.span(slice).load();
    last->has_more = part > choice.most;
    if (last->has_more) part = choice.most;
    *slices = part;
    cut(*heap, slice, word.slices, word.kind, begin, part);
    if (slice < begin && begin == last->end && slice >= last->begin) make_young(*heap, slice);
    if (begin != last->end) last->begin = begin;
    last->end = begin + part;
    arena.span(begin).purged_from = word.kind;
    arena.span(begin).store({SpanKind::kPurging, 0, false, part});
    heap->purging_slices += part;
    note_dirty(*heap);
    return begin;
  }
  return 0;
}

[[gnu::cold]] void page_heap_purge_split(SliceIndex slice, std::uint32_t front) {
  LockGuard guard(heap_of(slice).lock);
  std::uint32_t slices = arena.span(slice).load().slices;
  SliceIndex back = slice + front;
  arena.span(back).purged_from = arena.span(slice).purged_from;
  arena.span(back).is_rest = true;
  arena.span(back).node = arena.span(slice).node;
  arena.span(back).store({SpanKind::kPurging, 0, false, slices - front});
  set_first(back, back);
  set_first(slice + slices - 1, back);
  set_first(back - 1, slice);
  arena.span(slice).store({SpanKind::kPurging, 0, false, front});
}

void page_heap_purge_end(SliceIndex slice, bool is_clean, std::uint32_t freed_ms, bool has_more) {
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  Span& span = arena.span(slice);
  std::uint32_t slices = span.load().slices;
  heap.purging_slices -= slices;
  if (is_clean) span.generation.store(new_generation(heap), std::memory_order_relaxed);
  span.store({SpanKind::kReserved, 0, false, slices});
  span.freed_ms = freed_ms;
  join_and_insert(heap, slice, slices, is_clean ? SpanKind::kFreeClean : span.purged_from,
                  has_more && !is_clean ? Age::kOldest : Age::kOwn);
  segment_give_back(heap, slice, slices);
}

void page_heap_note_part_purged(SliceIndex slice) {
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  arena.span(first_of(slice)).generation.store(new_generation(heap), std::memory_order_relaxed);
}

namespace {

void end_purges(PageHeap& heap) {
  for_each_span(heap, [&](SliceIndex slice, SpanWord word) {
    if (word.kind != SpanKind::kPurging) return;
    heap.purging_slices -= word.slices;
    arena.span(slice).freed_ms = now_ms();
    join_and_insert(heap, slice, word.slices, arena.span(slice).purged_from);
  });
}

}  // namespace

void page_heap_end_purges() {
  for_each_heap([](PageHeap& heap) {
    LockGuard guard(heap.lock);
    if (heap.purging_slices != 0) end_purges(heap);
  });
}

}  // namespace rdmalloc
