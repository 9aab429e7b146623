// What the core knows in this process, in one mapping that a fork child finds empty
// (wiped_on_fork.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "regcache/core/byte_ranges.h"
#include "regcache/core/domain.h"
#include "regcache/core/invalidate.h"
#include "regcache/core/page_frame_check.h"
#include "regcache/core/pool.h"
#include "regcache/core/rooms.h"
#include "regcache/core/slices.h"

namespace rdmalloc::regcache {

// A domain without a registrar: keeps registrations whose deregistration failed after their own
// domain was closed, so that their ranges stay unpurged.
inline constexpr std::size_t kOrphans = kMostDomains;
static_assert(kOrphans < 0x100, "an Extent holds a byte of it");

enum Preparation : std::uint32_t { kNotReady = 0, kPreparing, kReady };

struct State {
  Lock open_lock;  // opening and closing of domains; taken before a domain's lock
  std::atomic<std::uint32_t> preparation;  // Preparation; a futex
  SliceWords words;
  PartInPurge part_in_purge;
  // What is being purged, once nothing is registered there and until it ends. Of the thread with
  // the purge turn.
  std::uintptr_t cleared_low, cleared_high;
  std::atomic<std::uint64_t> generation;  // of registrations, in all domains: never repeats
  Pool<Registration, RegistrationPlaces> registrations;
  Invalidations invalidations;
  ByteRanges adoptions;  // looked at by misses only
#if RDMALLOC_CHECKED
  FrameStore frames;
#endif
  Domain domains[kMostDomains + 1];
  Stripe stripes[kMostDomains + 1][kStripes + 1];  // apart, so that a look at all phases is short
  Counters closed;  // sums of the domains that were closed; under open_lock
  std::uint64_t closed_count;
  std::atomic<std::uint32_t> builders;   // gate.h
  std::atomic<std::uint32_t> abandoned;  // occasions to end something; 0: nothing to end
  std::atomic<bool> is_ending_abandoned;
  std::atomic<std::uint32_t> keys_turn;  // of the heaps' keys; odd: there are none (heap_keys.cc)

  // Whether words and observer are there. Acquire: pairs with the release in state_prepare().
  bool is_ready() const {
    return preparation.load(std::memory_order_acquire) == kReady;
  }
};

// Makes the state, the words and the observer. Under no lock. 0 or a negative errno.
int state_prepare(State** ready);

// Where the parent's things are, for its children. Constant-initialised, not wiped.
struct Survivors {
  WipedObject<State> state;
  std::atomic<std::uintptr_t> arena_base{0};
  std::atomic<std::size_t> arena_length{0};
  std::atomic<std::uintptr_t> words{0};
  std::atomic<std::uintptr_t> tables[kMostDomains] = {};  // sticky, counted, hints
  // Set by open, cleared by close. In a child: the domain was open in the parent.
  std::atomic<bool> is_open[kMostDomains] = {};
  PoolMemory registrations;
  PoolMemory invalidations;
  PoolMemory adoptions;
};
extern constinit Survivors survivors;

// NULL before the first domain was opened; afterwards always the same, also in a fork child.
inline State* state() {
  return survivors.state.get();
}
// NULL also in a child of fork that has opened no domain of its own.
inline State* ready_state() {
  State* all = state();
  return all != nullptr && all->is_ready() ? all : nullptr;
}

// The page events, for the observer that state_prepare() adds (purge.cc).
int on_purge(void* arg, void* base, std::size_t length, rdmalloc_purge_reason reason);
void on_purged(void* arg, void* base, std::size_t length, int result);

}  // namespace rdmalloc::regcache
