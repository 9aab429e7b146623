// The quick list of a page heap: the runs freed last, kept whole for the next block of exactly that
// length.
//
// Cutting a span and joining it again costs more than the rest of a malloc and a free, and the next
// block of that length then lies elsewhere: its first page is another one, to be faulted in and
// registered. So freed blocks of up to 4 MiB stop here, 128 at most; with one shard 1,024 while all
// are of one length, and with few of buffers: what a program takes and frees in one go. A run
// becomes the free span that it would have been at once when it is pushed out, when it is as old as
// the decay time, and
//
//   with several shards   before clean pages are taken for a block that fits in it; the oldest few
//                         for any buffer. A heap keeps no more than it holds in use and dirty, and
//                         16 MiB, or 64 of buffers of one length
//   with one shard, and of buffers that few leave to the central heap
//                         before a block of a length that the list has not is looked for: the
//                         oldest few. What lies free beside them is one with them then, so blocks
//                         lie where they would without the list; and a malloc has an end
//
// Its pages are dirty: they count as free memory and against the ceiling.
//
// The idea is that of QuickFit (Weinstock and Wulf, 1988) and of dlmalloc's fast bins.
#include <bit>

#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

namespace page_heap_state {

namespace {

// 2 MiB and 16 MiB; between them what the heap holds, in use and dirty. With 8 MiB, 64 threads that
// replace blocks of 256 KiB to 1 MiB touch 14 MiB of first pages instead of 11; with 64 MiB, a
// shard that is idle keeps them from the others. With half of what the heap holds, a thread that
// frees all its 16 blocks of 1 MiB and allocates them again took half of them from the lists of
// free spans.
constexpr std::uint64_t kLeastSlices = 32, kMostSlices = 256;
// Of buffers of one length: with 16 MiB, bursts of 100 of 1 MiB on four threads take twice as long.
constexpr std::uint64_t kMostSlicesOfOneLength = 4 * kMostSlices;
// Of what may be dirty at all, quick lists together hold a quarter at most.
constexpr std::uint64_t kCeilingShare = 4;
// With one shard: see quick_release_for(). With 4 one thread's `messages` of bench_memory take 6 %
// more memory, with none the program mstress 15 % more.
constexpr std::uint32_t kFewRuns = 8;
// Runs that one free pushes out at most: a second length may come when there are a thousand.
constexpr int kMostPushedOut = 64;
// 1 MiB: see makes_place_whole().
constexpr std::uint32_t kShortSlices = 16;
// Relaxed: a setting.
constinit std::atomic<std::uint64_t> ceiling_slices{(std::uint64_t{512} << 20) >> kSliceShift};

// Whether the list may hold so many slices. Without a division by the number of shards, for which
// each free would wait.
inline bool may_hold(const PageHeap& heap, std::uint32_t slices, bool is_one_length) {
  std::uint64_t share = ceiling_slices.load(std::memory_order_relaxed) / kCeilingShare;
  unsigned shards = shard_count();
  if (std::uint64_t{slices} * shards > share) return false;
  if (shards == 1 || slices <= kLeastSlices) return true;
  std::uint64_t most = heap.used_slices.load(std::memory_order_relaxed) +
                       heap.dirty_slices.load(std::memory_order_relaxed);
  return slices <= most && slices <= (is_one_length ? kMostSlicesOfOneLength : kMostSlices);
}

// Whether the list may keep more than kRuns of them, all of one length: other shards, if any, have
// no use of them before they are old, but few shards, which take each other's buffers.
inline bool may_keep_many(std::uint32_t slices) {
  unsigned shards = shard_count();
  return shards == 1 || (slices >= kBufferSlices && shards <= kFewShards);
}

std::uint64_t bit_of(std::uint32_t slices) {
  return std::uint64_t{1} << (slices - 1);
}
static_assert(QuickList::kLongest == 64, "a bit for each length");
std::uint64_t lengths_of(const QuickList& quick) {
  return quick.lengths.load(std::memory_order_relaxed);
}

void remove_entry(QuickList& quick, SliceIndex slice, std::uint32_t slices) {
  const Span& span = arena.span(slice);
  (span.next != 0 ? arena.span(span.next).previous : quick.oldest[slices - 1]) = span.previous;
  (span.previous != 0 ? arena.span(span.previous).next : quick.latest[slices - 1]) = span.next;
  if (quick.latest[slices - 1] == 0)
    quick.lengths.store(lengths_of(quick) & ~bit_of(slices), std::memory_order_relaxed);
  quick.slices -= slices;
  quick.count -= 1;
  quick.buffers -= slices >= kBufferSlices ? 1 : 0;
}

void add_entry(QuickList& quick, SliceIndex slice, std::uint32_t slices) {
  SliceIndex& latest = quick.latest[slices - 1];
  Span& span = arena.span(slice);
  span.previous = 0;
  span.next = latest;
  (latest != 0 ? arena.span(latest).previous : quick.oldest[slices - 1]) = slice;
  latest = slice;
  span.older = quick.puts++;
  if (span.next == 0)
    quick.lengths.store(lengths_of(quick) | bit_of(slices), std::memory_order_relaxed);
  quick.slices += slices;
  quick.count += 1;
  quick.buffers += slices >= kBufferSlices ? 1 : 0;
}

bool is_put_before(SliceIndex a, SliceIndex b) {
  return is_before(arena.span(a).older, arena.span(b).older);
}

// Returns the free span that it is part of then. `near`: see AgeList.
SliceIndex release(PageHeap& heap, SliceIndex slice, SliceIndex near = 0) {
  std::uint32_t slices = arena.span(slice).load().slices;
  remove_entry(heap.quick, slice, slices);
  add_dirty(heap, -static_cast<std::int64_t>(slices));
  arena.span(slice).store({SpanKind::kReserved, 0, false, slices});
  SpanKind left = slices >= kBufferSlices ? SpanKind::kFreeRetained : SpanKind::kFreeDirty;
  return join_and_insert(heap, slice, slices, left, Age::kOldest, near);
}

// Joined with what is free beside it, its segment may be another's.
void release_and_give_back(PageHeap& heap, SliceIndex slice, SliceIndex near = 0) {
  std::uint32_t slices = arena.span(slice).load().slices;
  release(heap, slice, near);
  segment_give_back(heap, slice, slices);
}

// Takes up to `wanted` runs and returns how many. Inlined, since the callers' word and number are
// constant.
[[gnu::always_inline]] inline std::uint32_t take(PageHeap& heap, std::uint32_t slices,
                                                 SpanWord word, SliceIndex* runs,
                                                 std::uint32_t wanted) {
  SliceIndex slice = heap.quick.latest[slices - 1];
  if (slice == 0) return 0;
  prefetch_block(slice);
  bool are_all_near = !has_nodes();
  std::uint8_t map_class = map_class_of(word);
  word.slices = slices;
  std::uint32_t taken = 0;
  do {
    Span& span = arena.span(slice);
    SliceIndex next = span.next;
    // Pages of another node are for the threads there.
    if (are_all_near || span.node == os::this_node()) [[likely]] {
      if (!use(heap, slices)) break;
      remove_entry(heap.quick, slice, slices);
      // As publish_locked() does; each slice of what was a span of that length knows its first.
      span.generation.store(new_generation(heap), std::memory_order_relaxed);
      span.free_blocks.store(0, std::memory_order_relaxed);
      span.has_purged_pages = false;
      span.is_kept.store(false, std::memory_order_relaxed);  // as there
      set_class<__ATOMIC_RELAXED>(slice, slice + slices, map_class);
      span.store(word);
      runs[taken++] = slice;
    }
    slice = next;
  } while (slice != 0 && taken < wanted);
  add_dirty(heap, -static_cast<std::int64_t>(slices) * taken);
  (is_large(word.kind) ? heap.large_spans : heap.slab_spans) += taken;
  fence_beside_unlock();  // as in publish_locked()
  return taken;
}

}  // namespace

// Whether it is the front of a longer buffer's place, all the rest of which is free behind it:
// joined, the next one as long comes back there, to its registration. Short ones go to the list all
// the same: many blocks are cut from a place one behind the other, and each was its whole front
// once those before it were taken. Beside a second shard a cache that joins no registrations, as
// libfabric's, misses 1.2 times as often without.
static bool makes_place_whole(const PageHeap& heap, SliceIndex slice, std::uint32_t slices) {
  std::uint32_t whole = arena.span(slice).longest_buffer;
  SliceIndex end = slice + slices;
  if (whole <= slices || slices <= kShortSlices) return false;
  if (!goes_on(heap, end) || !arena.span(end).is_rest) return false;
  SpanWord rest = arena.span(end).load();
  return rest.kind == SpanKind::kFreeRetained && slices + rest.slices >= whole;
}

bool quick_put(PageHeap& heap, SliceIndex slice, SpanWord word) {
  bool is_block = word.kind == SpanKind::kLarge ||
                  (word.kind == SpanKind::kSlab && is_span_class(word.size_class));
  QuickList& quick = heap.quick;
  std::uint32_t slices = word.slices;
  Span& span = arena.span(slice);
  if (!is_block || slices > QuickList::kLongest) return false;
  bool is_one_length =
      (lengths_of(quick) | bit_of(slices)) == bit_of(slices) && may_keep_many(slices);
  bool has_room = may_hold(heap, quick.slices + slices, is_one_length);
  if (span.has_grown || (!has_room && !may_hold(heap, slices, is_one_length)) ||
      shared.retain_ms.load(std::memory_order_relaxed) == 0 ||
      makes_place_whole(heap, slice, slices))
    return false;
  std::uint32_t most = is_one_length ? QuickList::kRunsOfOneLength : QuickList::kRuns;
  for (int i = 0; i < kMostPushedOut && (quick.count >= most || !has_room); ++i) {
    release_and_give_back(heap, quick_oldest(heap));
    // What became another heap's counts no more: an empty list has room for any.
    has_room = quick.count == 0 || may_hold(heap, quick.slices + slices, is_one_length);
  }
  add_entry(quick, slice, slices);
  add_dirty(heap, slices);
  span.store({SpanKind::kQuick, 0, false, slices});
  return true;
}

SliceIndex quick_take(PageHeap& heap, std::uint32_t slices, SpanWord word) {
  SliceIndex run = 0;
  if (slices <= QuickList::kLongest) take(heap, slices, word, &run, 1);
  return run;
}

SliceIndex quick_oldest(const PageHeap& heap) {
  SliceIndex oldest = 0;
  for (std::uint64_t lengths = lengths_of(heap.quick); lengths != 0; lengths &= lengths - 1) {
    SliceIndex slice = heap.quick.oldest[std::countr_zero(lengths)];
    if (oldest == 0 || is_put_before(slice, oldest)) oldest = slice;
  }
  return oldest;
}

bool quick_release(PageHeap& heap, std::uint32_t most) {
  if (heap.quick.count == 0) return false;
  for (std::uint32_t runs = 0; runs < most && heap.quick.count != 0; ++runs)
    release_and_give_back(heap, quick_oldest(heap));
  return true;
}

bool quick_release_for(PageHeap& heap, std::uint32_t slices) {
  if (heap.quick.count == 0) return false;
  std::uint32_t before = heap.quick.slices;
  for (std::uint32_t runs = 0; heap.quick.count != 0; ++runs) {
    if (runs >= kFewRuns && before - heap.quick.slices >= 2 * std::uint64_t{slices}) break;
    release_and_give_back(heap, quick_oldest(heap));
  }
  return true;
}

bool quick_release_fitting(PageHeap& heap, std::uint32_t slices, std::uint32_t longest) {
  std::uint32_t length = heap.quick.find(slices, longest);
  if (length == 0) return false;
  release_and_give_back(heap, heap.quick.latest[length - 1]);
  return true;
}

[[gnu::cold]] SliceIndex quick_release_place(PageHeap& heap, std::uint32_t slices,
                                             Alignment alignment) {
  if (slices > QuickList::kLongest) return 0;
  for (std::uint64_t lengths = lengths_of(heap.quick) >> (slices - 1) << (slices - 1); lengths != 0;
       lengths &= lengths - 1) {
    auto length = static_cast<std::uint32_t>(std::countr_zero(lengths)) + 1;
    SliceIndex run = heap.quick.oldest[length - 1];
    for (unsigned looks = 0; run != 0 && looks < QuickList::kRuns; ++looks) {
      if (fit_in(run, length, slices, alignment) != 0) return release(heap, run);
      run = arena.span(run).previous;
    }
  }
  return 0;
}

// By their times: the order of puts is told for 2^31 of them only, which a program of one thread
// may make while a run of another length lies there.
static SliceIndex oldest_until(const PageHeap& heap, std::uint32_t until_ms) {
  SliceIndex oldest = 0;
  std::int32_t least_ms = 0;
  for (std::uint64_t lengths = lengths_of(heap.quick); lengths != 0; lengths &= lengths - 1) {
    SliceIndex slice = heap.quick.oldest[std::countr_zero(lengths)];
    auto after_ms = static_cast<std::int32_t>(arena.span(slice).freed_ms - until_ms);
    if (after_ms > 0 || (oldest != 0 && after_ms >= least_ms)) continue;
    oldest = slice;
    least_ms = after_ms;
  }
  return oldest;
}

void quick_release_until(PageHeap& heap, std::uint32_t until_ms) {
  while (SliceIndex oldest = oldest_until(heap, until_ms))
    release_and_give_back(heap, oldest, heap.dirty_by_age.oldest());
}

bool quick_release_before(PageHeap& heap, SliceIndex end, std::uint32_t wanted) {
  SliceIndex s = end;
  while (s - end < wanted && goes_on(heap, s)) {
    SpanWord word = arena.span(s).load();
    if (word.kind == SpanKind::kQuick) {
      release(heap, s);
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

}  // namespace page_heap_state

using namespace page_heap_state;

SliceIndex page_heap_take_quick(unsigned shard, std::uint32_t slices) {
  PageHeap& heap = heap_of_shard(shard);
  std::uint32_t longest = longest_for(TakenFor::kBuffer, slices);
  if (heap.quick.find(slices, longest) == 0) return 0;
  LockGuard guard(heap.lock);
  SliceIndex run = 0;
  count_own_take(heap);
  if (std::uint32_t length = heap.quick.find(slices, longest))
    take(heap, length, large_word(false, 0), &run, 1);
  return run;
}

std::uint32_t page_heap_take_quick_spans(unsigned shard, unsigned size_class, SliceIndex* spans,
                                         std::uint32_t wanted) {
  PageHeap& heap = heap_of_shard(shard);
  if (!heap.quick.has(class_info(size_class).slab_slices)) return 0;
  LockGuard guard(heap.lock);
  count_own_take(heap);
  return take(heap, class_info(size_class).slab_slices, span_word(shard, size_class), spans,
              wanted);
}

}  // namespace rdmalloc
