#include "alloc/pages/segments.h"

#include "alloc/core/order_for_fork.h"
#include "alloc/os/os.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

using namespace page_heap_state;

namespace {

// Release when one is made, acquire by a thread that takes it from here: the page is there.
constinit std::atomic<PageHeap*> heap_of_shards[kShardLimit] = {};

// Free segments that a shard keeps, 16 MiB, so that a thread which frees all that it works with and
// allocates it again needs nothing of the central heap's; fewer where all shards together would
// keep more than half of what may be dirty, and what is on its quick list counts too.
constexpr std::uint64_t kKeptMost = 4;
constexpr std::uint64_t kKeptShare = 2;
constinit std::atomic<std::uint64_t> ceiling{std::uint64_t{512} << 20};

std::uint32_t kept_segments(const PageHeap& heap) {
  std::uint64_t kept = ceiling.load(std::memory_order_relaxed) / kKeptShare / shard_count() /
                       (std::uint64_t{kSegmentSlices} << kSliceShift);
  if (kept > kKeptMost) kept = kKeptMost;
  std::uint32_t on_quick_list = heap.quick.slices / kSegmentSlices;
  return kept > on_quick_list ? static_cast<std::uint32_t>(kept) - on_quick_list : 0;
}

void set_heap(SliceIndex segment, const PageHeap& heap) {
  // In this order: a child finds the words that end at the segment's ends before it is another's.
  order_for_fork();
  arena.heap_of_segment[segment / kSegmentSlices].store(static_cast<std::uint8_t>(heap.index),
                                                        std::memory_order_relaxed);
  order_for_fork();
}

// Makes the free span that lies on both sides of `at` two.
void split(PageHeap& heap, SliceIndex at) {
  if (!is_of(heap, at - 1) || !goes_on(heap, at)) return;
  SliceIndex slice = first_of(at);
  if (slice == at) return;
  SpanWord word = arena.span(slice).load();
  std::uint32_t freed_ms = arena.span(slice).freed_ms, after = slice + word.slices - at;
  cut(heap, slice, word.slices, word.kind, at, after);
  arena.span(at).freed_ms = freed_ms;
  if (word.kind != SpanKind::kFreeRetained) arena.span(at).is_rest = false;
  insert_free(heap, at, after, word.kind, slice);
}

// Gives a segment, all of which is free, to another heap. One of them is the central one; the locks
// of both are held. Its spans stay as they are, but for those that reach beyond it.
void move(PageHeap& from, PageHeap& to, SliceIndex segment) {
  SliceIndex end = segment + kSegmentSlices;
  split(from, segment);
  split(from, end);
  for (SliceIndex s = segment; s < end;) {
    SpanWord word = arena.span(s).load();
    remove_free(from, s, word.slices, word.kind);
    s += word.slices;
  }
  // A shard's heap asks for no huge pages.
  if (is_central(from)) huge_note_use(segment, end);
  from.segments -= 1;
  set_heap(segment, to);
  free_in(segment) = {};
  to.segments += 1;
  // Places of one heap do not become one with those of the other: none that ends beyond a segment
  // would be adopted again.
  if (is_central(to)) {
    arena.span(segment).is_rest = false;
    if (goes_on(to, end)) arena.span(end).is_rest = false;
  }
  for (SliceIndex s = segment; s < end;) {
    SpanWord word = arena.span(s).load();
    join_and_insert(to, s, word.slices, word.kind);
    s += word.slices;
  }
  (is_central(from) ? to : from).moves += 1;
}

// What keeps a shard from having the segment, all of which is free, by the slice where it ends: a
// young place of a buffer's, if it wants it for slabs; one that is more than this segment; young
// pages of another node. 0: nothing.
SliceIndex left_alone_until(SliceIndex segment, TakenFor what) {
  SliceIndex end = segment + kSegmentSlices;
  for (SliceIndex s = first_of(segment); s < end;) {
    SpanWord word = arena.span(s).load();
    SliceIndex next = s + word.slices;
    bool is_wanted = is_buffer(what) && s >= segment && next <= end;
    if (is_dirty(word.kind) && is_left_to_others(s, word.slices)) return next;
    if (word.kind == SpanKind::kFreeRetained && !is_wanted &&
        is_left_alone(central, s, word.slices))
      return next;
    s = next;
  }
  return 0;
}

// A segment of the central heap's all of which is free and not all clean: the lowest there is that
// a shard may have, among those looked at. 0: none.
SliceIndex find_backed(TakenFor what) {
  constexpr int kLooks = 64;
  std::uint32_t left = central.backed_segments;
  SliceIndex end = shared.frontier.load(std::memory_order_relaxed);
  int looks = 0;
  SliceIndex from = central.backed_from > kSegmentSlices ? central.backed_from : kSegmentSlices;
  for (SliceIndex s = from; s < end && left != 0 && looks < kLooks;) {
    SliceIndex next = s + kSegmentSlices;
    if (is_of(central, s) && is_whole_and_backed(free_in(s))) {
      if (looks == 0) central.backed_from = s;
      SliceIndex until = left_alone_until(s, what);
      if (until == 0) return s;
      // All whole segments of a long place are left alone with it.
      if (until > next) next = segment_of(until);
      left -= (next - s) / kSegmentSlices;
      ++looks;
    }
    s = next;
  }
  return 0;
}

SliceIndex find_clean(PageHeap& heap, TakenFor what) {
  SliceIndex frontier = page_heap_frontier();
  SliceIndex clean = central.clean.find_best(kSegmentSlices, kSegmentSlices);
  if (clean == 0) clean = extend_frontier(kSegmentSlices, kSegmentSlices);
  if (clean == 0) return 0;
  SliceIndex segment =
      fit_in(clean, arena.span(clean).load().slices, kSegmentSlices, kSegmentSlices);
  // New addresses. Not for a buffer: what is left of a huge page is backed, and too short for the
  // next one.
  bool is_new = segment >= frontier || huge_was_passed(segment, segment + kSegmentSlices);
  if (is_new && what == TakenFor::kOthers)
    huge_ask_for_segment(segment, segment + kSegmentSlices,
                         heap.used_slices.load(std::memory_order_relaxed));
  return segment;
}

// Segments beyond the frontier that a shard among many takes at once: twice as many as it has, up
// to this.
constexpr std::uint32_t kNewAtOnce = 4;

// Segments beyond the frontier, where the central heap has no clean one. They do not pass through
// its lists, whose lines all shards would wait for. Not for a buffer, which may be longer.
bool take_new(PageHeap& to, TakenFor what) {
  SliceIndex begin = page_heap_frontier();
  if (is_buffer(what) || begin == 0 || begin % kSegmentSlices != 0) return false;
  if (central.clean.find_best(kSegmentSlices, kSegmentSlices) != 0) return false;
  std::uint32_t count = 1;
  if (shard_count() > kFewShards && to.segments != 0)
    count = to.segments < kNewAtOnce / 2 ? to.segments * 2 : kNewAtOnce;
  std::uint64_t end = begin + std::uint64_t{count} * kSegmentSlices;
  if (end > arena.extent() / kSliceBytes) return false;
  if (!move_frontier(begin, static_cast<SliceIndex>(end))) return false;
  // A span each, before the first is the shard's: a child may be born between two of them, most
  // likely while huge pages are asked for, which waits for fork. The first one last, whose word
  // makes the others visible.
  for (auto s = static_cast<SliceIndex>(end); s != begin;) {
    s -= kSegmentSlices;
    set_ends(s, kSegmentSlices);
    arena.span(s).store({SpanKind::kReserved, 0, false, kSegmentSlices});
  }
  for (SliceIndex s = begin; s < end; s += kSegmentSlices) {
    if (what == TakenFor::kOthers)
      huge_ask_for_segment(s, s + kSegmentSlices, to.used_slices.load(std::memory_order_relaxed));
    set_heap(s, to);
    free_in(s) = {};
    to.segments += 1;
    to.moves += 1;
  }
  join_and_insert(to, begin, static_cast<SliceIndex>(end) - begin, SpanKind::kFreeClean);
  return true;
}

}  // namespace

namespace page_heap_state {

PageHeap& heap_of_shard(unsigned shard) {
  PageHeap* heap = heap_of_shards[shard].load(std::memory_order_acquire);
  return heap != nullptr ? *heap : central;
}

bool segment_adopt(PageHeap& heap, TakenFor what) {
  LockGuard guard(central.lock);
  SliceIndex segment = find_backed(what);
  if (segment == 0 && take_new(heap, what)) return true;
  if (segment == 0) segment = find_clean(heap, what);
  if (segment == 0) return false;
  move(central, heap, segment);
  return true;
}

void segment_give_back(PageHeap& heap, SliceIndex slice, std::uint32_t slices) {
  if (is_central(heap) || heap.whole_segments == 0) return;
  for (SliceIndex s = segment_of(slice); s < slice + slices; s += kSegmentSlices) {
    SegmentFree there = free_in(s);
    if (there.slices != kSegmentSlices) continue;
    // One without pages is worth nothing to the shard, and keeps it from those with pages.
    if (is_whole_and_backed(there) && heap.whole_segments <= kept_segments(heap)) continue;
    LockGuard guard(central.lock);
    move(heap, central, s);
  }
}

}  // namespace page_heap_state

bool page_heap_make_shard(unsigned shard) {
  if (heap_of_shards[shard].load(std::memory_order_relaxed) != nullptr) return true;
  std::uintptr_t base = 0;
  if (os::map_metadata(sizeof(PageHeap), &base) != 0) return false;
  auto* heap = reinterpret_cast<PageHeap*>(base);
  heap->index = shard;
  heap->counts_segments = true;
  {
    LockGuard guard(central.lock);
    if (arena_want_segments() != 0) {
      os::unreserve(base, sizeof(PageHeap));
      return false;
    }
    if (!central.counts_segments) count_segments(central);
    shared.has_segments.store(true, std::memory_order_relaxed);
  }
  heap_of_shards[shard].store(heap, std::memory_order_release);
  return true;
}

void segments_gather() {
  for_each_heap([](PageHeap& heap) {
    if (is_central(heap)) return;
    LockGuard guard(heap.lock);
    quick_release(heap);
    SliceIndex end = page_heap_frontier();
    for (SliceIndex s = kSegmentSlices; s < end && heap.whole_segments != 0; s += kSegmentSlices) {
      if (!is_of(heap, s) || free_in(s).slices != kSegmentSlices) continue;
      LockGuard central_guard(central.lock);
      move(heap, central, s);
    }
  });
}

void segments_fit(std::uint64_t ceiling_bytes) {
  ceiling.store(ceiling_bytes, std::memory_order_relaxed);
  quick_fit(ceiling_bytes);
}

}  // namespace rdmalloc
