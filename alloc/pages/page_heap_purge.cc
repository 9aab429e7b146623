// The page heap's part in a purge: which spans go, out of reach and back.
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

using namespace page_heap_state;

namespace {

// The part of a dirty span that may be purged at its age: all of it under small pages or when
// it is old enough, else its whole huge pages. A part of a huge page frees little at once and
// khugepaged may fill it again, so it waits longer.
bool choose_part(const PurgeChoice& choice, SliceIndex slice, std::uint32_t slices,
                 std::uint32_t freed_ms, SliceIndex* begin, std::uint32_t* length) {
  auto is_due = [&](std::uint32_t until_ms) {
    return static_cast<std::int32_t>(freed_ms - until_ms) <= 0;
  };
  *begin = slice;
  *length = slices;
  if (choice.any_age || is_due(choice.part_until_ms)) return true;
  if (!is_due(choice.whole_until_ms)) return false;
  if (!huge_is_any(slice, slice + slices)) return true;
  SliceIndex first = (slice + kSlicesPerChunk - 1) & ~(kSlicesPerChunk - 1);
  SliceIndex end = (slice + slices) & ~(kSlicesPerChunk - 1);
  if (first >= end) return false;
  *begin = first;
  *length = end - first;
  return true;
}

}  // namespace

SliceIndex page_heap_purge_begin(const PurgeChoice& choice, std::uint32_t* slices,
                                 std::uint32_t* freed_ms) {
  LockGuard guard(heap.lock);
  for (SliceIndex slice = heap.dirty_by_age.oldest(); slice != 0;
       slice = arena.span(slice).younger) {
    Span& span = arena.span(slice);
    SpanWord word = span.load();
    std::uint32_t length = word.slices, part = 0;
    SliceIndex begin = 0;
    if (!choice.any_age && static_cast<std::int32_t>(span.freed_ms - choice.whole_until_ms) > 0)
      return 0;  // all that follow are younger
    if (!choose_part(choice, slice, length, span.freed_ms, &begin, &part)) continue;
    if (part > choice.most) part = choice.most;
    *slices = part;
    *freed_ms = span.freed_ms;
    cut(slice, length, word.kind, begin, part);
    arena.span(begin).purged_from = word.kind;
    arena.span(begin).store({SpanKind::kPurging, 0, false, part});
    heap.purging_slices += part;
    return begin;
  }
  return 0;
}

void page_heap_purge_split(SliceIndex slice, std::uint32_t front) {
  LockGuard guard(heap.lock);
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

void page_heap_purge_end(SliceIndex slice, bool is_clean, std::uint32_t freed_ms) {
  LockGuard guard(heap.lock);
  Span& span = arena.span(slice);
  std::uint32_t slices = span.load().slices;
  heap.purging_slices -= slices;
  if (is_clean) span.generation.store(++heap.next_generation, std::memory_order_relaxed);
  span.store({SpanKind::kReserved, 0, false, slices});
  span.freed_ms = freed_ms;
  join_and_insert(slice, slices, is_clean ? SpanKind::kFreeClean : span.purged_from, Age::kOwn);
}

void page_heap_note_part_purged(SliceIndex slice) {
  LockGuard guard(heap.lock);
  arena.span(first_of(slice)).generation.store(++heap.next_generation, std::memory_order_relaxed);
}

void page_heap_end_purges() {
  LockGuard guard(heap.lock);
  if (heap.purging_slices == 0) return;
  SliceIndex end = heap.frontier.load(std::memory_order_relaxed);
  for (SliceIndex slice = 1; slice < end;) {
    SpanWord word = arena.span(slice).load();
    if (word.kind == SpanKind::kPurging) {
      heap.purging_slices -= word.slices;
      arena.span(slice).freed_ms = now_ms();
      join_and_insert(slice, word.slices, arena.span(slice).purged_from);
    }
    slice += word.slices;
  }
}

}  // namespace rdmalloc
