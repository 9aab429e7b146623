// Walks over all spans: making the lists anew from the words after a fork, and checking the
// equations. And the counters.
#include "alloc/pages/page_heap_state.h"
#include "alloc/pages/parked.h"

namespace rdmalloc {

using namespace page_heap_state;

void page_heap_rebuild(bool purge_goes_on) {
  heap.lock.take_over();
  LockGuard guard(heap.lock, LockGuard::Held{});
  SliceIndex end = heap.frontier.load(std::memory_order_relaxed);
  heap.dirty.clear();
  heap.spared.clear();
  heap.clean.clear();
  heap.dirty_by_age.clear();
  heap.used_slices.store(0, std::memory_order_relaxed);
  heap.retired_slices.store(0, std::memory_order_relaxed);
  heap.clean_slices = heap.purging_slices = 0;
  heap.large_spans = heap.slab_spans = 0;
  heap.dirty_slices.store(0, std::memory_order_relaxed);
  if (end == 0) return;
  std::uint32_t now = now_ms();
  for (SliceIndex slice = 1; slice < end;) {
    SpanWord word = arena.span(slice).load();
    SliceIndex next = slice + word.slices;
    if (is_in_use(word.kind)) {
      add_used(word.slices);
      (is_large(word.kind) ? heap.large_spans : heap.slab_spans) += 1;
      for (SliceIndex s = slice; s < next; ++s) {
        set_first(s, slice);
        arena.class_map[s].store(map_class_of(word), std::memory_order_relaxed);
      }
    } else if (word.kind == SpanKind::kParked) {
      // Its class map is the business of whoever holds its park (parks_after_fork).
      add_used(word.slices);
      heap.large_spans += 1;
      for (SliceIndex s = slice; s < next; ++s) set_first(s, slice);
    } else if (word.heap != 0) {
      // Of a region of a heap of the user, free or on its way.
      arena.span(slice).store({SpanKind::kHeapFree, 0, false, word.slices, word.heap});
      add_used(word.slices);
      for (SliceIndex s = slice; s < next; ++s)
        arena.class_map[s].store(0, std::memory_order_relaxed);
      set_first(slice, slice);
      set_first(next - 1, slice);
    } else if (word.kind == SpanKind::kRetired) {
      add_used(word.slices);
      heap.retired_slices.store(page_heap_retired_slices() + word.slices,
                                std::memory_order_relaxed);
      set_first(slice, slice);
      set_first(next - 1, slice);
    } else if (word.kind == SpanKind::kPurging && purge_goes_on) {
      heap.purging_slices += word.slices;
      set_first(slice, slice);
      set_first(next - 1, slice);
    } else {
      // What was free stays of its family; what was on its way somewhere is dirty, which is always
      // safe to say.
      for (SliceIndex s = slice; s < next; ++s)
        arena.class_map[s].store(0, std::memory_order_relaxed);
      arena.span(slice).freed_ms = now;
      // Spans behind this one are not in the lists yet: join only with the one before.
      SliceIndex before = first_of(slice - 1);
      SpanKind kind = is_free(word.kind) ? word.kind : SpanKind::kFreeDirty;
      SpanWord joined = arena.span(before).load();
      std::uint32_t slices = word.slices;
      bool is_one = kind != SpanKind::kFreeSpared || arena.span(slice).is_rest;
      if (before != 0 && joined.kind == kind && is_one) {
        remove_free(before, joined.slices, kind);
        slice = before;
        slices += joined.slices;
      }
      insert_free(slice, slices, kind);
    }
    slice = next;
  }
}

namespace {

bool is_valid_locked() {
  SliceIndex end = heap.frontier.load(std::memory_order_relaxed);
  std::uint64_t used = 0, dirty = 0, clean = 0, reserved = 0;
  SpanKind previous = SpanKind::kNone;
  for (SliceIndex slice = end == 0 ? 0 : 1; slice < end;) {
    SpanWord word = arena.span(slice).load();
    if (word.slices == 0 || slice + word.slices > end) return false;
    if (first_of(slice) != slice || first_of(slice + word.slices - 1) != slice) return false;
    for (SliceIndex s = slice; s < slice + word.slices; ++s)
      if (arena.class_at(s) != map_class_of(word)) return false;
    switch (word.kind) {
      case SpanKind::kSlab:
      case SpanKind::kLarge:
      case SpanKind::kHeapSlab:
      case SpanKind::kHeapLarge:
      case SpanKind::kHeapFree:
      case SpanKind::kRetired:
      case SpanKind::kParked:
        used += word.slices;
        break;
      case SpanKind::kFreeDirty:
      case SpanKind::kFreeSpared:
        dirty += word.slices;
        break;
      case SpanKind::kFreeClean:
        clean += word.slices;
        break;
      case SpanKind::kReserved:
      case SpanKind::kPurging:
        reserved += word.slices;
        break;
      case SpanKind::kNone:
        return false;
    }
    bool is_one = word.kind != SpanKind::kFreeSpared || arena.span(slice).is_rest;
    if (is_free(word.kind) && word.kind == previous && is_one) return false;
    previous = word.kind;
    slice += word.slices;
  }
  // Spans between taking and publishing are kReserved and counted as used.
  return dirty == heap.dirty_slices.load(std::memory_order_relaxed) && clean == heap.clean_slices &&
         used + reserved == heap.used_slices.load(std::memory_order_relaxed) + heap.purging_slices;
}

}  // namespace

bool page_heap_is_valid() {
  parks_stop();
  bool is_valid = false;
  {
    LockGuard guard(heap.lock);
    is_valid = is_valid_locked() && parks_are_valid();
  }
  parks_go_on();
  return is_valid;
}

PageHeapCounters page_heap_counters() {
  LockGuard guard(heap.lock);
  return {heap.used_slices.load(std::memory_order_relaxed),
          heap.dirty_slices.load(std::memory_order_relaxed),
          heap.clean_slices,
          heap.purging_slices,
          heap.frontier.load(std::memory_order_relaxed),
          heap.large_spans,
          heap.slab_spans};
}

std::uint64_t page_heap_dirty_slices() {
  return heap.dirty_slices.load(std::memory_order_relaxed);
}

std::uint64_t page_heap_used_slices() {
  return heap.used_slices.load(std::memory_order_relaxed);
}

void page_heap_set_limit(std::uint64_t bytes) {
  heap.limit_slices = bytes >> kSliceShift;
}

void page_heap_set_spare_ms(std::uint64_t spare_ms) {
  heap.spare_ms.store(static_cast<std::uint32_t>(spare_ms), std::memory_order_relaxed);
}

SliceIndex page_heap_frontier() {
  return heap.frontier.load(std::memory_order_acquire);
}

bool page_heap_is_orphaned(const Forker& forker) {
  return heap.lock.is_orphaned(forker);
}

}  // namespace rdmalloc
