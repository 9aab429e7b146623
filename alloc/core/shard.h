// Shards: what depot, slabs and page heap are divided into where there are several threads. A shard
// is for the threads of one place, a processor (os/topology.h), and is made when a thread is first
// seen there; so a process on few processors has few. It has a depot, a page heap
// (pages/segments.h) and, for each class, lists of slabs with a lock. What it lacks it takes from
// the others, before new memory is made.
//
// A thread that has its shard to itself stays there, whatever processor it runs on later; two that
// meet in one part by where they run. So threads that are no more than the processors have a shard
// each, and of more those that run at the same moment are in different ones.
//
// A slab belongs to a shard, whichever thread uses its blocks: threads come and go. In a program of
// one thread there is one shard, and nothing here is looked at.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/core/size_class.h"
#include "alloc/os/topology.h"

namespace rdmalloc {

inline constexpr unsigned kShardLimit = os::kMostPlaces;
// How many others a shard asks at one trip to the slow path before it makes new memory.
inline constexpr unsigned kShardsAsked = 8;
// And before it hands out blocks on pages of its slabs that were never used. Each line that is
// looked at is another core's: with eight, 16 threads of 1 to 32 KiB moved a fifth more of them.
inline constexpr unsigned kShardsAskedBeforePages = 2;

struct alignas(64) Shard {
  // Relaxed throughout: hints and counters.
  std::atomic<std::uint32_t> threads;  // caches whose threads are there
  std::atomic<std::uint8_t> node;
  std::atomic<bool> was_used;  // a thread was there
  // On a line of their own: other shards read what is above.
  alignas(64) std::atomic<std::uint64_t> steals;  // magazines and refills that it took from others
  std::atomic<std::uint64_t> remote_returned;     // blocks of other nodes that went to their slabs
  std::atomic<std::uint64_t> depot_classes[2];    // a bit for each class that its depot ever had
  // Slices in use, and of slabs (slab_slices_held), when one of its threads looked
  // (cache/coarse_classes.h).
  std::atomic<std::uint32_t> used_at_look, held_at_look;
  // See may_take_beyond(). The first is written under the lock of the shard's page heap.
  std::atomic<std::uint32_t> new_slices, takes_beyond;
};
extern constinit Shard shards[kShardLimit];

// Of few shards: whether one takes of what another that is at work keeps for itself, before it
// takes new pages. So many times for each slice of new pages that it took so far: without a limit
// two shards take spans from each other for ever, and without these takes each comes to hold the
// most that its threads ever needed at once. Not one of many threads: 64 on two shards that replace
// blocks of 40 to 256 KiB only touched more pages.
inline constexpr std::uint32_t kTakesOfNewSlice = 8, kThreadsThatTake = 12;
inline bool has_few_threads(unsigned shard) {
  return shards[shard].threads.load(std::memory_order_relaxed) <= kThreadsThatTake;
}
inline bool may_take_beyond(unsigned shard) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const Shard& own = shards[shard];
  return own.takes_beyond.load(kRelaxed) <
             kTakesOfNewSlice * std::uint64_t{own.new_slices.load(kRelaxed)} &&
         has_few_threads(shard);
}
// Blocks of slabs of 512 KiB, above 1 KiB, it takes without that limit: what threads hand on goes
// to and fro between shards anyway. With it each class's slabs came to be touched to their ends:
// four threads that hand on 1 to 32 KiB had 23 MiB resident after two seconds and 44 after 34, and
// have 10.
inline bool is_limited(unsigned size_class) {
  return class_info(size_class).slab_slices == 1 || is_span_class(size_class);
}
inline bool may_take_beyond(unsigned shard, unsigned size_class) {
  return is_limited(size_class) ? may_take_beyond(shard) : has_few_threads(shard);
}
// Under the lock of the shard's page heap.
inline void note_new_slices(unsigned shard, std::uint32_t slices) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  std::atomic<std::uint32_t>& all = shards[shard].new_slices;
  all.store(all.load(kRelaxed) + slices, kRelaxed);
}
inline void note_take_beyond(unsigned shard, std::uint32_t times = 1) {
  shards[shard].takes_beyond.fetch_add(times, std::memory_order_relaxed);
}
// Of a block or a magazine of them, where that is counted.
inline void note_block_beyond(unsigned shard, unsigned size_class) {
  if (is_limited(size_class)) note_take_beyond(shard);
}
// Whether no thread is there any more. Not a new one, which its first thread has not reached yet:
// others would take the lines of its tables before it does.
inline bool is_left(const Shard& shard) {
  return shard.threads.load(std::memory_order_relaxed) == 0 &&
         shard.was_used.load(std::memory_order_relaxed);
}

// Whether both are of one node.
inline bool are_near(const Shard& a, const Shard& b) {
  return a.node.load(std::memory_order_relaxed) == b.node.load(std::memory_order_relaxed);
}

namespace detail {
extern constinit std::atomic<std::uint32_t> shard_count;
}
// Shards there are. Acquire: pairs with the release in cache/shards.cc: their tables are there.
inline unsigned shard_count() {
  return detail::shard_count.load(std::memory_order_acquire);
}

// The n-th shard, from 1, that `shard` asks; `from` goes on where it stopped the last time.
inline unsigned other_shard(unsigned shard, unsigned from, unsigned n, unsigned count) {
  return (shard + 1 + (from + n - 1) % (count - 1)) % count;
}

}  // namespace rdmalloc
