// Regions of heaps of the user: runs of slices that no other span is cut from. All of the central
// heap.
#include "alloc/pages/events.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

using namespace page_heap_state;

namespace {

// The word of a span of that heap, and both its ends.
void store_span(SliceIndex slice, SpanKind kind, std::uint32_t slices, std::uint16_t owner) {
  arena.span(slice).store({kind, 0, false, slices, owner});
  set_ends(slice, slices);
}

void add_retired(std::int64_t slices) {
  shared.retired_slices.store(
      shared.retired_slices.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(slices),
      std::memory_order_relaxed);
}

}  // namespace

void page_heap_region_make(SliceIndex slice, std::uint16_t owner) {
  LockGuard guard(central.lock);
  std::uint32_t slices = arena.span(slice).load().slices;
  central.large_spans -= 1;
  store_span(slice, SpanKind::kHeapFree, slices, owner);
  clear_class(slice, slice + slices);
}

void page_heap_region_end(SliceIndex slice, std::uint32_t slices, bool is_kept) {
  LockGuard guard(central.lock);
  SliceIndex end = slice + slices;
  while (slice < end) {
    SpanWord word = arena.span(slice).load();
    SliceIndex next = slice + word.slices;
    // The child of a fork may find less than the parent had.
    if (word.kind == SpanKind::kHeapFree) {
      store_span(slice, SpanKind::kReserved, word.slices, 0);
      if (!is_kept) {
        Span& span = arena.span(slice);
        unuse(central, word.slices);
        span.freed_ms = now_ms();
        span.is_rest = false;
        span.longest_buffer = word.slices;
        join_and_insert(central, slice, word.slices, SpanKind::kFreeDirty);
      }
    }
    slice = next;
  }
}

void page_heap_region_retire(SliceIndex slice, std::uint32_t slices) {
  LockGuard guard(central.lock);
  // In the child of a fork there may be spans that were on their way, which no thread comes back
  // for.
  SliceIndex end = slice + slices;
  for (SliceIndex s = slice; s < end; s += arena.span(s).load().slices)
    if (is_in_use(arena.span(s).load().kind)) return;
  add_retired(slices);
  clear_class(slice, end);
  store_span(slice, SpanKind::kRetired, slices, 0);
}

SliceIndex page_heap_next_retired(SliceIndex from, std::uint32_t* slices) {
  LockGuard guard(central.lock);
  SliceIndex found = 0;
  for_each_span(central, [&](SliceIndex slice, SpanWord word) {
    if (found != 0 || slice < from || word.kind != SpanKind::kRetired) return;
    *slices = word.slices;
    found = slice;
  });
  return found;
}

void page_heap_region_restored(SliceIndex slice) {
  LockGuard guard(central.lock);
  Span& span = arena.span(slice);
  std::uint32_t slices = span.load().slices;
  huge_ask_again(slice, slice + slices);
  span.generation.store(new_generation(central), std::memory_order_relaxed);
  span.store({SpanKind::kReserved, 0, false, slices});
  add_retired(-static_cast<std::int64_t>(slices));
  unuse(central, slices);
  span.freed_ms = now_ms();
  span.is_rest = false;
  span.longest_buffer = 0;
  join_and_insert(central, slice, slices, SpanKind::kFreeClean);
}

std::uint64_t page_heap_retired_slices() {
  return shared.retired_slices.load(std::memory_order_relaxed);
}

void page_heap_region_note_new_pages(SliceIndex slice, std::uint32_t slices) {
  LockGuard guard(central.lock);
  events_note_use(slice, slices);
}

void page_heap_region_cut(SliceIndex slice, SliceIndex at, std::uint32_t wanted) {
  LockGuard guard(central.lock);
  SpanWord word = arena.span(slice).load();
  std::uint32_t before = at - slice, after = word.slices - before - wanted;
  if (after != 0) store_span(at + wanted, SpanKind::kHeapFree, after, word.heap);
  store_span(at, SpanKind::kReserved, wanted, word.heap);
  if (before != 0) store_span(slice, SpanKind::kHeapFree, before, word.heap);
}

void page_heap_region_free(SliceIndex slice) {
  LockGuard guard(central.lock);
  SpanWord word = arena.span(slice).load();
  (is_large(word.kind) ? central.large_spans : central.slab_spans) -= 1;
  store_span(slice, SpanKind::kHeapFree, word.slices, word.heap);
  clear_class(slice, slice + word.slices);
}

void page_heap_region_join(SliceIndex before, SliceIndex after) {
  LockGuard guard(central.lock);
  SpanWord word = arena.span(before).load();
  std::uint32_t slices = word.slices + arena.span(after).load().slices;
  store_span(before, SpanKind::kHeapFree, slices, word.heap);
}

void page_heap_region_grow(SliceIndex slice, std::uint32_t slices) {
  LockGuard guard(central.lock);
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  SliceIndex old_end = slice + word.slices, end = slice + slices;
  std::uint32_t rest = old_end + arena.span(old_end).load().slices - end;
  if (rest != 0) store_span(end, SpanKind::kHeapFree, rest, word.heap);
  set_firsts(old_end, end, slice);
  set_class<__ATOMIC_RELAXED>(old_end, end, map_class_of(word));
  span.store({word.kind, word.size_class, false, slices, word.heap});
  fence_beside_unlock();  // as in publish_locked()
}

void page_heap_region_shrink(SliceIndex slice, std::uint32_t slices) {
  LockGuard guard(central.lock);
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  SliceIndex tail = slice + slices;
  store_span(tail, SpanKind::kHeapFree, word.slices - slices, word.heap);
  span.store({word.kind, word.size_class, false, slices, word.heap});
  clear_class(tail, slice + word.slices);
}

}  // namespace rdmalloc
