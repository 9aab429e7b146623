// Free spans that lie beside each other, of several families, taken as one; and what new pages are
// needed behind them.
#include "alloc/pages/dirty.h"
#include "alloc/pages/events.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc::page_heap_state {

namespace {

// Spans by age that are looked at before other memory is taken, whose first use costs more than
// this look. With 256 of them `phases` of bench_memory left a tenth of its memory unused.
constexpr int kScanLimit = 1024;
// But not at each time, where so many were looked at in vain: a shorter look costs no more than it
// may save. In the end a look is left out for each four to eight steps of the vain one, of which
// each is a line of a span's record.
constexpr int kLongLook = 64, kStepsEach = 8;
// Nor with one shard, where no other thread waits: the program realloc takes 3 % more memory.
bool leave_out(VainLooks& looks) {
  return shard_count() != 1 && looks.leave_out();
}
void note_look(VainLooks& looks, bool has_found, int looked_at) {
  looks.note(has_found || looked_at < kLongLook, static_cast<std::uint8_t>(looked_at / kStepsEach));
}
static_assert(kScanLimit / kStepsEach <= VainLooks::kMostOfAll);

// Makes the free run that reaches the frontier as long as is wanted. False: no memory, or no run.
bool extend_run(SliceIndex run, std::uint32_t wanted, Alignment alignment) {
  if (run == 0) return false;
  std::uint64_t end = alignment.up(run) + wanted;
  SliceIndex frontier = page_heap_frontier();
  return end > frontier && end <= arena.extent() / kSliceBytes &&
         extend_frontier(static_cast<std::uint32_t>(end - frontier), 1) != 0;
}

// Takes [at, at + wanted) of the free neighbours that begin at `run`.
SliceIndex take_of_run(PageHeap& heap, SliceIndex run, SliceIndex at, std::uint32_t wanted) {
  SliceIndex end = at + wanted;
  for (SliceIndex s = run; s < end;) {
    SpanWord word = arena.span(s).load();
    SliceIndex next = s + word.slices, begin = s < at ? at : s;
    if (next > at) cut(heap, s, word.slices, word.kind, begin, (next < end ? next : end) - begin);
    s = next;
  }
  arena.span(at).store({SpanKind::kReserved, 0, false, wanted});
  set_first(end - 1, at);
  return at;
}

// Cuts [at, at + wanted) out of a free run of several families, of `length` slices.
void cut_of_families(PageHeap& heap, SliceIndex run, std::uint32_t length, SliceIndex at,
                     std::uint32_t wanted) {
  // What is left behind the block is dirty, and one with what is dirty there, of its node.
  SliceIndex end = run + length;
  if (goes_on(heap, end) && arena.span(end).load().kind == SpanKind::kFreeDirty &&
      are_one(run, end, SpanKind::kFreeDirty))
    length += arena.span(end).load().slices;
  for (SliceIndex s = run; s < run + length;) {
    SpanWord piece = arena.span(s).load();
    remove_free(heap, s, piece.slices, piece.kind);
    if (piece.kind == SpanKind::kFreeClean) {
      events_note_use(s, piece.slices);
      if (is_central(heap)) huge_note_use(s, s + piece.slices);
    }
    s += piece.slices;
  }
  // All of it is dirty from now on: some of it is.
  arena.span(run).freed_ms = now_ms();
  insert_free(heap, run, length, SpanKind::kFreeDirty);
  cut(heap, run, length, SpanKind::kFreeDirty, at, wanted);
  rest_is_new();
}

}  // namespace

SliceIndex take_mixed(PageHeap& heap, std::uint32_t wanted, Alignment alignment) {
  quick_release(heap);
  SliceIndex run = 0;
  for (SliceIndex slice = 1;;) {
    if (slice >= page_heap_frontier()) {
      if (!is_central(heap) || !extend_run(run, wanted, alignment)) return 0;
      slice = run;  // its last span may be one with the new slices
      run = 0;
    }
    if (!is_of(heap, slice)) {
      run = 0;
      slice = segment_of(slice) + kSegmentSlices;
      continue;
    }
    SpanWord word = arena.span(slice).load();
    if (!is_free(word.kind)) {
      run = 0;
    } else {
      if (run == 0) run = slice;
      std::uint32_t length = slice + word.slices - run;
      SliceIndex at = fit_in(run, length, wanted, alignment);
      if (at != 0) {
        cut_of_families(heap, run, length, at, wanted);
        return at;
      }
    }
    slice += word.slices;
  }
}

SliceIndex join_retained(PageHeap& heap, std::uint32_t wanted) {
  if (leave_out(heap.looks_to_join)) return 0;
  int scanned = 0;
  for (SliceIndex slice = heap.dirty_by_age.oldest(); slice != 0 && scanned < kScanLimit;
       slice = arena.span(slice).younger, ++scanned) {
    SliceIndex end = slice;
    while (end - slice < wanted && goes_on(heap, end)) {
      SpanWord word = arena.span(end).load();
      if (word.kind != SpanKind::kFreeRetained) break;
      if (has_nodes() &&
          (arena.span(end).node != arena.span(slice).node || is_far_and_young(end, wanted)))
        break;
      end += word.slices;
    }
    if (end - slice < wanted) continue;
    while (arena.span(slice).load().slices < end - slice) {
      std::uint32_t slices = arena.span(slice).load().slices;
      arena.span(slice + slices).is_rest = true;
      remove_free(heap, slice, slices, SpanKind::kFreeRetained);
      join_and_insert(heap, slice, slices, SpanKind::kFreeRetained);
    }
    note_look(heap.looks_to_join, true, scanned);
    return slice;
  }
  note_look(heap.looks_to_join, false, scanned);
  return 0;
}

SliceIndex take_backed(PageHeap& heap, std::uint32_t wanted, Alignment alignment, Latest latest) {
  if (latest == Latest::kLeft && are_few_places(heap)) return 0;
  if (leave_out(heap.looks_for_backed)) return 0;
  if (latest == Latest::kLeft) mark_left_alone(heap, true);
  auto is_usable = [&](SliceIndex slice, SpanWord word) {
    // The kind first: when a span in use was freed is its threads' to write.
    bool is_one = word.kind == SpanKind::kFreeDirty ||
                  (word.kind == SpanKind::kFreeRetained && !arena.span(slice).is_left_alone);
    return is_one && !is_left_to_others(slice, wanted);
  };
  SliceIndex run = 0, at = 0;
  int scanned = 0;
  for (SliceIndex first = heap.dirty_by_age.oldest(); first != 0 && at == 0 && scanned < kScanLimit;
       first = arena.span(first).younger, ++scanned) {
    run = first;
    for (SliceIndex end = first; goes_on(heap, end) && at == 0;) {
      SpanWord word = arena.span(end).load();
      if (!is_usable(end, word)) break;
      end += word.slices;
      at = fit_in(first, end - first, wanted, alignment);
    }
  }
  if (latest == Latest::kLeft) mark_left_alone(heap, false);
  note_look(heap.looks_for_backed, at != 0, scanned);
  return at != 0 ? take_of_run(heap, run, at, wanted) : 0;
}

[[gnu::cold]] SliceIndex take_backed_and_more(PageHeap& heap, std::uint32_t slices,
                                              Alignment alignment) {
  SliceIndex best = 0, frontier = page_heap_frontier();
  std::uint32_t most_backed = 0;
  int scanned = 0;
  for (SliceIndex first = heap.dirty_by_age.oldest(); first != 0 && scanned < kScanLimit;
       first = arena.span(first).younger, ++scanned) {
    if (!alignment.is_of(first)) continue;
    std::uint32_t backed = 0;
    SliceIndex end = first;
    while (end - first < slices && goes_on(heap, end)) {
      SpanWord word = arena.span(end).load();
      bool is_backed = word.kind == SpanKind::kFreeDirty;
      if (!is_backed && word.kind != SpanKind::kFreeClean) break;
      if (is_backed && is_left_to_others(end, slices)) break;
      if (is_backed) backed += word.slices;
      end += word.slices;
    }
    if (end - first < slices && !(is_central(heap) && end == frontier)) continue;
    if (backed > most_backed) best = first, most_backed = backed;
  }
  if (best == 0 || !has_room_at(heap, best, slices)) return 0;
  ask_for_huge(best, slices, frontier, TakenFor::kBuffer);
  take_room(heap, best, slices, SpanKind::kFreeDirty);
  arena.span(best).store({SpanKind::kReserved, 0, false, slices});
  set_first(best + slices - 1, best);
  return best;
}

SliceIndex take_longest_and_more(PageHeap& heap, std::uint32_t slices, Alignment alignment) {
  // A short one is not worth a buffer that begins within a huge page.
  std::uint32_t least = slices / 2 > kSlicesPerChunk ? slices / 2 : kSlicesPerChunk;
  if (!heap.retained.has(least)) return 0;
  SliceIndex longest = unless_far(heap.retained.find_longest_buffer(), slices);
  if (longest == 0 || !alignment.is_of(longest)) return 0;
  std::uint32_t length = arena.span(longest).load().slices;
  if (length < least) return 0;
  SliceIndex frontier = page_heap_frontier();
  if (length < slices && !has_room_at(heap, longest + length, slices - length)) return 0;
  cut(heap, longest, length, SpanKind::kFreeRetained, longest, length < slices ? length : slices);
  if (length >= slices) return longest;
  // As of a block that grows: what lies behind the frontier is new.
  ask_for_huge(longest, slices, frontier, TakenFor::kBuffer);
  take_room(heap, longest + length, slices - length, SpanKind::kFreeRetained);
  arena.span(longest).store({SpanKind::kReserved, 0, false, slices});
  set_first(longest + slices - 1, longest);
  return longest;
}

SliceIndex take_rest_and_clean(PageHeap& heap, SliceIndex clean, std::uint32_t slices,
                               Alignment alignment, SliceIndex frontier) {
  if (clean == 0 || clean % kSlicesPerChunk != 0) return 0;
  if (!huge_is_chunk(clean - kSlicesPerChunk) || !is_of(heap, clean - 1)) return 0;
  SliceIndex rest = first_of(clean - 1);
  SpanWord word = arena.span(rest).load();
  // Not a place that a buffer left, which the next one comes back to.
  bool is_place = word.kind == SpanKind::kFreeRetained && arena.span(rest).longest_buffer != 0;
  if (!is_dirty(word.kind) || is_place || word.slices >= slices) return 0;
  if (!alignment.is_of(rest) || is_left_to_others(rest, slices)) return 0;
  if (!has_room_at(heap, clean, slices - word.slices)) return 0;
  // As of a block that grows.
  ask_for_huge(rest, slices, frontier, TakenFor::kBuffer);
  take_room(heap, rest, slices, kind_of_place(slices));
  // A place of its own, once it is free.
  arena.span(rest).is_rest = false;
  arena.span(rest).store({SpanKind::kReserved, 0, false, slices});
  set_first(rest + slices - 1, rest);
  return rest;
}

}  // namespace rdmalloc::page_heap_state
