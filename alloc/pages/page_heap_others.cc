// Which other shards' page heaps are still: the pages that are free there serve before new ones.
//
// A shard at work keeps what it has free, but for buffers where it has much: else lines would go to
// and fro for ever. But where threads take turns, each shard came to hold what the longest turn
// there needed: 90 MiB of 50 (decisions/0005).
//
// A heap is still when its shard's threads took no span while this one's took several. How many
// depends on what earlier looks found: two shards at work look at each other once for 64 spans. At
// each tick of the clock a shard notes what the others took, so that one whose turn begins with
// free pages of its own knows by the time they are used up. What is taken goes back to the heap
// that it is of, which looks as if it had never been lent.
//
// Nothing is taken for a shard of many threads (kThreadsThatTake): 64 that replace blocks of 40 to
// 256 KiB touched 2 % more pages.
#include "alloc/core/shard.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc::page_heap_state {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// Takes after which a heap is looked at again: one more than are left out, which are twice as many
// after a vain look, up to this.
constexpr std::uint32_t kMostLeftOut = 63;
// A look was not in vain if so many slices were taken before the heap was at work again: a slab.
constexpr std::uint32_t kWorth = kMostSlabSlices;

[[gnu::always_inline]] inline void leave_out_more(OthersSeen& seen) {
  std::uint32_t left_out = seen.left_out.load(kRelaxed);
  if (left_out < kMostLeftOut) seen.left_out.store(2 * left_out + 1, kRelaxed);
}

bool is_marked_still(const PageHeap& own, unsigned other) {
  return (own.others.still.load(kRelaxed) >> other & 1) != 0;
}

void set_still(PageHeap& own, unsigned other, bool is_still) {
  OthersSeen& seen = own.others;
  if (!is_still) seen.since[other].store(own.own_takes.load(kRelaxed), kRelaxed);
  if (is_marked_still(own, other) == is_still) return;
  seen.still.store(seen.still.load(kRelaxed) ^ std::uint32_t{1} << other, kRelaxed);
  if (is_still) return seen.slices.store(0, kRelaxed);
  if (seen.slices.load(kRelaxed) < kWorth) return leave_out_more(seen);
  seen.left_out.store(0, kRelaxed);
}

// Whether the other's threads took something since this shard last noted it; notes it.
bool has_taken(PageHeap& own, const PageHeap& other) {
  std::atomic<std::uint32_t>& seen = own.others.takes[other.index];
  std::uint32_t takes = other.own_takes.load(kRelaxed);
  if (takes == seen.load(kRelaxed)) return false;
  seen.store(takes, kRelaxed);
  set_still(own, other.index, false);
  return true;
}

// Whether the other's threads seem not to be at work.
bool is_still(PageHeap& own, const PageHeap& other) {
  OthersSeen& seen = own.others;
  if (is_marked_still(own, other.index)) return !has_taken(own, other);
  std::uint32_t takes = own.own_takes.load(kRelaxed) - seen.since[other.index].load(kRelaxed);
  if (takes <= seen.left_out.load(kRelaxed)) return false;
  if (has_taken(own, other) && !is_left(shards[other.index])) {
    leave_out_more(seen);
    return false;
  }
  set_still(own, other.index, true);
  return true;
}

}  // namespace

[[gnu::cold]] void note_others(PageHeap& own) {
  own.others.noted_takes.store(own.own_takes.load(kRelaxed), kRelaxed);
  std::uint32_t now = now_ms();
  if (now == own.others.noted_ms.load(kRelaxed)) return;
  own.others.noted_ms.store(now, kRelaxed);
  for_each_heap([&](PageHeap& heap) {
    if (&heap != &own && heap.index < kFewShards) has_taken(own, heap);
  });
}

[[gnu::cold]] PageHeap* lock_other(const PageHeap& asked, unsigned shard, std::uint32_t slices,
                                   bool is_for_buffer, unsigned* from) {
  constexpr std::uint32_t kTimes = 4, kTimesOfWait = 16;
  PageHeap& own = heap_of_shard(shard);
  std::atomic<std::uint32_t>& taken = own.others.slices;
  bool may_take_of_still = shards[shard].threads.load(kRelaxed) <= kThreadsThatTake;
  // What was counted of the one before was not there.
  if (*from != 0 && is_marked_still(own, *from - 1)) {
    taken.store(taken.load(kRelaxed) - slices, kRelaxed);
    set_still(own, *from - 1, false);
  }
  while (*from < kFewShards && *from < shard_count()) {
    PageHeap& heap = heap_of_shard((*from)++);
    if (&heap == &asked) continue;
    bool is_of_still = may_take_of_still && &heap != &own && is_still(own, heap);
    if (!is_of_still && !is_for_buffer) continue;
    // Relaxed: a hint.
    std::uint64_t dirty = heap.dirty_slices.load(kRelaxed);
    bool is_beyond = !is_of_still && dirty < slices + kSegmentSlices;
    if (dirty < slices || (is_beyond && !may_take_beyond(shard))) continue;
    // At work it takes its lock all the time, and with each look that finds it taken the two would
    // come nearer to holding all that both ever needed. The more threads a shard has, the more
    // often they do need it.
    if (!heap.lock.try_lock()) {
      if (!may_take_beyond(shard)) continue;
      std::uint32_t threads = shards[shard].threads.load(kRelaxed);
      note_take_beyond(shard, kTimesOfWait * threads * threads);
      heap.lock.lock();
    }
    if (is_beyond) note_take_beyond(shard, kTimes);
    if (is_of_still) taken.store(taken.load(kRelaxed) + slices, kRelaxed);
    return &heap;
  }
  return nullptr;
}

}  // namespace rdmalloc::page_heap_state
