// What purge.cc (the turn, and what is done with it) and purge_thread.cc (the thread that does it
// by itself) know of each other; nothing else includes this.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/purge/pressure.h"
#include "alloc/purge/purge.h"

namespace rdmalloc::purge_state {

struct Purger {
  // Kept while a purge may not begin, and asked for again where one was ended by a pause, a hold or
  // a thread that waits for memory.
  std::atomic<bool> everything_requested{false};
  std::atomic<std::int64_t> held_until_ms{0};

  std::atomic<std::uint64_t> purges{0}, purged_bytes{0}, refusals{0}, failures{0};
  std::atomic<std::uint64_t> slab_purged_bytes{0}, pressure_purges{0};
  PressureWatch pressure = {};  // with the turn
};
extern constinit Purger purger;

// Statistics: relaxed throughout, they order nothing.
inline void count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

// ---- of purge.cc, for the thread ----

// One round: events, ageing of the depot, then what is due. Returns whether there is more to
// come without a wake-up.
bool round_of_work();
// Whether there is nothing to do that no wake-up would come for.
bool is_idle();
// Whether there is a request that may be served now. The end of a pause wakes the thread for one
// that waits, that of a hold does not: tick_ms().
bool has_request();
// How long the thread sleeps at most while there is something to do.
std::uint64_t tick_ms();
// Whether the turn was free: takes it, and ends it at once.
bool try_turn();

// ---- of purge_thread.cc ----

void thread_init();  // leaves what rooms below call in core/purge_signal.h
void thread_counters(PurgeCounters* counters);
void thread_after_fork(std::uintptr_t forkers_stack);

}  // namespace rdmalloc::purge_state
