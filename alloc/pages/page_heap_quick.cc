// The quick list of a page heap: the runs freed last, kept whole for the next block of exactly that
// length.
//
// Cutting a span and joining it again costs more than the rest of a malloc and a free, and the next
// block of that length then lies elsewhere: its first page is another one, to be faulted in and
// registered. So freed blocks of up to 1 MiB stop here once there are two shards. A heap keeps 128
// runs at most, and half of what it holds. A run becomes the free span that it would have been at
// once when it is pushed out, when it is as old as the decay time, and before clean pages are taken
// for a block that fits in it. Its pages are dirty: they count as free memory and against the
// ceiling.
//
// The idea is that of QuickFit (Weinstock and Wulf, 1988) and of dlmalloc's fast bins.
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc::page_heap_state {

namespace {

// 2 MiB and 16 MiB; between them the share of what the heap holds, in use and dirty. With 8 MiB, 64
// threads that replace blocks of 256 KiB to 1 MiB touch 14 MiB of first pages instead of 11; with
// 64 MiB, a shard that is idle keeps them from the others.
constexpr std::uint64_t kLeastSlices = 32, kMostSlices = 256, kHeldShare = 2;
// Of what may be dirty at all, quick lists together hold a quarter at most.
constexpr std::uint64_t kCeilingShare = 4;
// Relaxed: a setting.
constinit std::atomic<std::uint64_t> ceiling_slices{(std::uint64_t{512} << 20) >> kSliceShift};

std::uint32_t most_slices(const PageHeap& heap) {
  std::uint64_t most = (heap.used_slices.load(std::memory_order_relaxed) +
                        heap.dirty_slices.load(std::memory_order_relaxed)) /
                       kHeldShare;
  if (most < kLeastSlices) most = kLeastSlices;
  if (most > kMostSlices) most = kMostSlices;
  std::uint64_t share =
      ceiling_slices.load(std::memory_order_relaxed) / kCeilingShare / shard_count();
  return static_cast<std::uint32_t>(most < share ? most : share);
}

void remove_entry(QuickList& quick, unsigned index) {
  quick.of_length[quick.length[index]] -= 1;
  quick.slices -= quick.length[index];
  quick.count -= 1;
  for (unsigned i = index; i < quick.count; ++i) {
    quick.length[i] = quick.length[i + 1];
    quick.run[i] = quick.run[i + 1];
  }
}

// It is no longer counted as free, and not yet in use.
void leave(PageHeap& heap, SliceIndex slice, std::uint32_t slices) {
  add_dirty(heap, -static_cast<std::int64_t>(slices));
  arena.span(slice).store({SpanKind::kReserved, 0, false, slices});
}

// `near`: see AgeList.
void release(PageHeap& heap, unsigned index, SliceIndex near = 0) {
  SliceIndex slice = heap.quick.run[index];
  std::uint32_t slices = heap.quick.length[index];
  remove_entry(heap.quick, index);
  leave(heap, slice, slices);
  join_and_insert(heap, slice, slices,
                  slices >= kBufferSlices ? SpanKind::kFreeRetained : SpanKind::kFreeDirty,
                  Age::kOldest, near);
}

// Joined with what is free beside it, its segment may be another's.
void release_and_give_back(PageHeap& heap, unsigned index, SliceIndex near = 0) {
  SliceIndex slice = heap.quick.run[index];
  std::uint32_t slices = heap.quick.length[index];
  release(heap, index, near);
  segment_give_back(heap, slice, slices);
}

}  // namespace

bool is_for_quick_list(const PageHeap& heap, const Span& span) {
  SpanWord word = span.load();
  bool is_block = word.kind == SpanKind::kLarge ||
                  (word.kind == SpanKind::kSlab && is_span_class(word.size_class));
  return is_block && word.slices <= QuickList::kLongest && !span.has_grown &&
         word.slices <= most_slices(heap) && shared.retain_ms.load(std::memory_order_relaxed) != 0;
}

void quick_put(PageHeap& heap, SliceIndex slice, std::uint32_t slices) {
  QuickList& quick = heap.quick;
  std::uint32_t most = most_slices(heap);
  while (quick.count != 0 && (quick.count == QuickList::kRuns || quick.slices + slices > most))
    release_and_give_back(heap, 0);
  quick.run[quick.count] = slice;
  quick.length[quick.count] = static_cast<std::uint8_t>(slices);
  quick.count += 1;
  quick.of_length[slices] += 1;
  quick.slices += slices;
  add_dirty(heap, slices);
  arena.span(slice).store({SpanKind::kQuick, 0, false, slices});
}

SliceIndex quick_take(PageHeap& heap, std::uint32_t slices, std::uint32_t alignment) {
  QuickList& quick = heap.quick;
  if (slices > QuickList::kLongest || quick.of_length[slices] == 0) return 0;
  bool has_nodes = os::node_count() != 1;
  for (unsigned i = quick.count; i-- != 0;) {
    SliceIndex slice = quick.run[i];
    if (quick.length[i] != slices || slice % alignment != 0) continue;
    // Pages of another node are for the threads there.
    if (has_nodes && arena.span(slice).node != os::this_node()) continue;
    if (!use(heap, slices)) return 0;
    remove_entry(quick, i);
    leave(heap, slice, slices);
    return slice;
  }
  return 0;
}

bool quick_release(PageHeap& heap) {
  if (heap.quick.count == 0) return false;
  while (heap.quick.count != 0) release_and_give_back(heap, 0);
  return true;
}

bool quick_release_fitting(PageHeap& heap, std::uint32_t slices, std::uint32_t longest) {
  for (std::uint32_t length = slices; length <= longest; ++length) {
    if (heap.quick.of_length[length] == 0) continue;
    unsigned index = heap.quick.count;
    while (heap.quick.length[--index] != length) continue;
    release_and_give_back(heap, index);
    return true;
  }
  return false;
}

void quick_release_until(PageHeap& heap, std::uint32_t until_ms) {
  while (heap.quick.count != 0 &&
         static_cast<std::int32_t>(arena.span(heap.quick.run[0]).freed_ms - until_ms) <= 0)
    release_and_give_back(heap, 0, heap.dirty_by_age.oldest());
}

bool quick_release_before(PageHeap& heap, SliceIndex end, std::uint32_t wanted) {
  SliceIndex s = end;
  while (s - end < wanted && goes_on(heap, s)) {
    SpanWord word = arena.span(s).load();
    if (word.kind == SpanKind::kQuick) {
      unsigned index = 0;
      while (heap.quick.run[index] != s) ++index;
      release(heap, index);
      return true;
    }
    if (!is_free(word.kind)) return false;
    s += word.slices;
  }
  return false;
}

void quick_fit(std::uint64_t ceiling_bytes) {
  ceiling_slices.store(ceiling_bytes >> kSliceShift, std::memory_order_relaxed);
}

}  // namespace rdmalloc::page_heap_state
