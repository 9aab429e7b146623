// What a thread sees to on its way through the slow path, beside what it came for: memory that is
// short somewhere, where it runs, what it has borrowed, classes that it does not use any more, and
// that the purge thread looks at its cache later.
#pragma once

#include <cstdint>

#include "alloc/cache/shares.h"
#include "alloc/cache/thread_cache.h"

namespace rdmalloc {

// Trips to the slow path, or large blocks, after which a thread looks where it runs.
inline constexpr std::uint32_t kEventsPerLook = 32;

// What ColdBin::misses counts to.
inline constexpr std::uint8_t kMostMisses = 15;

// At each trip, first.
void note_slow_event(ThreadCache& cache);
// And of the class it came for, once that has a magazine.
inline void note_miss(ThreadCache& cache, ColdBin& cold, unsigned size_class) {
  if (cache.latest_class != size_class) cache.trips_in_a_row = 0;
  cache.latest_class = static_cast<std::uint8_t>(size_class);
  if (cache.trips_in_a_row < kTripsOfBatch) ++cache.trips_in_a_row;
  if (!cache.loan.was_refused || cold.misses == kMostMisses) return;
  cold.misses = (cold.misses + 1) & kMostMisses;
}
// Empties the cache: memory is short somewhere (take_back.h).
void give_up(ThreadCache& cache);
// Makes room in the share for `bytes` more by giving up other classes than `keep`, in turn.
void make_share(ThreadCache& cache, std::uint64_t bytes, unsigned keep);
// Gives up classes of spans, the longest first, until they take no more than their share.
void fit_span_share(ThreadCache& cache);
// Whether the thread may stay in its shard, whatever processor it runs on.
bool may_stay(const ThreadCache& cache);
// To where the thread runs now; what it holds goes with it.
void enter_shard(ThreadCache& cache);

}  // namespace rdmalloc
