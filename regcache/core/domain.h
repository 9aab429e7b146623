// A domain: one place memory is registered with. See README.md for the picture and the equations.
//
// A domain's registrations lie in stripes by their address, each with a lock of its own (Stripe),
// so that calls for different ranges do not meet at one lock. "The domain's lock" is a guard of
// stripes.h: a RangeGuard for a range, or a WholeGuard.
//
// README.md has the order of locks. No registrar, observer or completion runs under any of them
// (I2). A thread that closes, opens, publishes or unpublishes a registration holds the lock of its
// range; one that only acquires or releases it does not.
#pragma once

#include <rdmalloc/regcache.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/record_window.h"
#include "regcache/core/slices.h"
#include "regcache/core/tree.h"

namespace rdmalloc::regcache {

inline constexpr std::size_t kMostDomains = 64;

enum class Phase : std::uint32_t {
  kUnused = 0,  // zero: what a fork child finds in the domains of its parent
  kBeingOpened,
  kIsOpen,
  kIsLost,  // its device is gone, or a resume couldn't open it: no registration is open, none is
            // made
  kBeingClosed,
  kIsChanging,  // a quiesce or a resume works on it: nothing is found, nothing begins
  kIsQuiesced,  // nothing is registered, and its registrar may have given up its device
};

// The number of a registration, or 0 (record_window.h). Not its address: the slots of 100,000
// registrations fill a second-level cache otherwise, and each hit waits for two misses, one after
// the other.
using Slot = std::atomic<RecordNumber>;
// The inline fast path reads a slot as a plain number by __atomic_load_n.
static_assert(sizeof(Slot) == sizeof(std::uint32_t) && Slot::is_always_lock_free);

// Where a registration of foreign memory is looked for first. By page, so that neighbours share a
// line; folded, so that buffers at equal distances do not all share a few places. At 4 MiB of
// address space a domain has as many places as registrations are expected at most.
inline constexpr std::size_t kHints = std::size_t{1} << 20;
inline std::size_t hint_of(std::uintptr_t address) {
  std::uintptr_t page = address >> 12;
  return (page ^ (page >> 20)) & (kHints - 1);
}

// Sums over dropped registrations, and events without one. Of a stripe: under its lock.
struct Counters {
  std::uint64_t hits;  // of registrations that are gone; the others count in their words
  std::uint64_t misses;
  std::uint64_t registrations;
  std::uint64_t deregistrations;
  std::uint64_t evictions;
  std::uint64_t refusals;
  std::uint64_t purge_drops;
  std::uint64_t purge_refusals;
  std::uint64_t foreign;
  std::uint64_t quarantined;
  std::uint64_t register_ns_worst;
  std::uint64_t register_ns_total;
  std::uint64_t prefaulted;
  std::uint64_t lost_drops;
  std::uint64_t memlock_refusals;
  std::uint64_t purge_requests;
  std::uint64_t resumes;
  std::uint64_t flush_drops;
};
// Each of them, and where the user sees it.
struct ShownCounter {
  std::uint64_t Counters::*kept;
  std::uint64_t rdmalloc_domain_counters::*shown;
};
#define SHOWN(field) \
  { &Counters::field, &rdmalloc_domain_counters::field }
inline constexpr ShownCounter kShownCounters[] = {
    SHOWN(hits),       SHOWN(misses),      SHOWN(registrations),     SHOWN(deregistrations),
    SHOWN(evictions),  SHOWN(refusals),    SHOWN(purge_drops),       SHOWN(purge_refusals),
    SHOWN(foreign),    SHOWN(quarantined), SHOWN(register_ns_worst), SHOWN(register_ns_total),
    SHOWN(prefaulted), SHOWN(lost_drops),  SHOWN(memlock_refusals),  SHOWN(purge_requests),
    SHOWN(resumes),    SHOWN(flush_drops)};
#undef SHOWN
static_assert(sizeof(Counters) ==
              sizeof kShownCounters / sizeof *kShownCounters * sizeof(std::uint64_t));

// What a domain counts of its registrations. Of a stripe: under its lock.
struct Totals {
  std::uint64_t count;              // == records in by_range
  std::uint64_t bytes;              // == sum of their lengths
  std::uint64_t quarantined_count;  // of count: what no registrar could end, and nothing else drops
  std::uint64_t sticky_count;
  std::uint64_t sticky_bytes;
  std::uint64_t listed_count;    // == records in by_stamp
  std::uint64_t listed_bytes;    // == sum of their lengths: no more can be evicted
  std::uint64_t reserved_count;  // promised to calls of register_ under way
  std::uint64_t reserved_bytes;
};

inline constexpr unsigned kStripeShift = 22;  // a segment of the allocator (alloc/pages/segments.h)
inline constexpr std::size_t kStripes = 32;
// The stripe of what crosses a multiple of 4 MiB: written under the locks of all stripes, and so
// read under any one of them.
inline constexpr std::size_t kWide = kStripes;
inline std::size_t stripe_of(std::uintptr_t low, std::uintptr_t high) {
  std::uintptr_t first = low >> kStripeShift;
  return first == (high - 1) >> kStripeShift ? first % kStripes : kWide;
}

// Generations that a stripe has taken of the count of all (State::generation), for what will be
// registered in it. So what is registered in one stripe has rising generations, and an invalidation
// that waits has one that no earlier registration reaches, for the count had passed all that was
// taken. What begins after its look must be past it as well: the look ends what its stripes have.
struct Generations {
  static constexpr std::uint64_t kAtOnce = 64;
  std::uint64_t next, end;

  void drop() { next = end; }
  std::uint64_t take(std::atomic<std::uint64_t>& count) {
    if (next == end) {
      next = count.fetch_add(kAtOnce, std::memory_order_relaxed) + 1;
      end = next + kAtOnce;
    }
    return next++;
  }
};

// A part of a domain's registrations: those that lie within 4 MiB, of each 32nd 4 MiB. In lines of
// its own, and pairs of lines, which processors fetch together.
struct alignas(128) Stripe {
  Lock lock;                  // none of the wide stripe's
  RangeTree by_range;         // every registration there is, until its deregistration has returned
  StampTree by_stamp;         // those that are cached, not sticky and not apart
  Registration* in_flight;    // records that register_ is being called for
  Registration* sticky_ring;  // the next to be looked at (reclaim_sticky())
  Generations generations;    // none of the wide stripe's
#if RDMALLOC_CHECKED
  std::uint64_t takes;  // of the lock
#endif
  Totals totals;
  Counters counters;
};

// What counts against a limit. Changed under the lock of a stripe, so exact under those of all.
// Relaxed: the locks order what it is about.
struct Budget {
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint64_t> count;

  // One more registration of `length`. False, with nothing taken, where that is beyond either.
  bool try_take(std::uint64_t length, std::uint64_t most_bytes, std::uint64_t most_count) {
    take(length);
    if (bytes.load(std::memory_order_relaxed) <= most_bytes &&
        count.load(std::memory_order_relaxed) <= most_count)
      return true;
    give(length);
    return false;
  }
  void take(std::uint64_t length) {
    bytes.fetch_add(length, std::memory_order_relaxed);
    count.fetch_add(1, std::memory_order_relaxed);
  }
  void give(std::uint64_t length) {
    bytes.fetch_sub(length, std::memory_order_relaxed);
    count.fetch_sub(1, std::memory_order_relaxed);
  }
};

struct alignas(64) Domain {
  // Read by every hit; written by open only.
  rdmalloc_domain_head head;  // must be first: the inline fast path of regcache.h reads it
  Slot* sticky;               // [slice]: what reg_key finds; head.sticky is the same table
  Slot* counted;              // [slice]: what reg_get finds
  Slot* hints;                // [hint_of(address)]: what it found last for foreign memory there
  std::uint16_t index;
  std::atomic<Phase> phase;  // written under the locks of all stripes
  // The device is gone, so its registrations reach no page. Written under the locks of all; also
  // while the domain is being closed. Acquire where it is read without: pairs with the release in
  // lose_domain().
  std::atomic<bool> is_lost;
  std::atomic<bool> is_abandoned;  // to be closed as soon as it can be (core/abandoned.h)

  // Written by open only.
  Stripe* stripes;  // [kStripes + 1], of this place for ever
  rdmalloc_registrar_ops ops;
  void* context;
  std::uint32_t access;     // rights of each cached registration, at least
  std::size_t unit;         // registrations start and end at multiples of it
  std::size_t largest;      // bytes in one registration; SIZE_MAX: no limit
  std::uint64_t max_bytes;  // UINT64_MAX: no limit
  std::uint64_t max_count;
  int (*event)(rdmalloc_domain* domain, rdmalloc_domain_event event, void* arg);
  void* event_arg;

  // Of a domain with a limit only, so that misses of others write no line of all threads: what is
  // registered or reserved, and what of it is sticky.
  alignas(64) Budget taken;
  Budget sticky_taken;

  alignas(64) std::size_t sticky_turn;  // under all locks: the stripe that is looked at next
  std::uint64_t whole_takes;            // of all locks, under them
  // Closed, to be dropped by a thread of the user (not any-thread). A stack that is taken as a
  // whole, so none of its records is another's when a push compares. Release of a push: pairs with
  // the acquire of the thread that takes it.
  std::atomic<Registration*> deferred;
  std::atomic<bool> has_warned_of_memlock, has_warned_of_quarantine;
  // Moves on with each drop that is waited for, and where one is left to another thread; a futex.
  std::atomic<std::uint32_t> drops;

  bool is_bounded() const { return max_bytes != UINT64_MAX || max_count != UINT64_MAX; }
  Stripe& wide() const { return stripes[kWide]; }
  Stripe& stripe_of_reg(const Registration* reg) const {
    return stripes[stripe_of(reg->base(), reg->end())];
  }
  // NULL for 0. A number once given stays a record's for ever, of this domain or another.
  Registration* record_of(RecordNumber number) const {
    return number == 0 ? nullptr : reinterpret_cast<Registration*>(record_at(head.records, number));
  }
  RecordNumber number_of(const Registration* reg) const {
    return record_number(head.records, reinterpret_cast<std::uintptr_t>(reg));
  }
  bool holds(std::uintptr_t address) const { return address - head.arena_base < head.arena_length; }
  SliceRange slices_of(std::uintptr_t low, std::uintptr_t high) const {
    return {(low - head.arena_base) >> RDMALLOC_SLICE_SHIFT,
            ((high - 1 - head.arena_base) >> RDMALLOC_SLICE_SHIFT) + 1};
  }
  // Of [low, high), a block that is a span of its own, or [0, 0).
  BlockSlices block_of(std::uintptr_t low, std::uintptr_t high) const {
    if (high == 0) return {0, 0};
    SliceRange slices = slices_of(low, high);
    return {static_cast<std::uint32_t>(slices.first), static_cast<std::uint32_t>(slices.end)};
  }
  // Of two registrations that overlap the earlier one has to go, unless a key was given of it since
  // its block is what it is: so each such key is noted, under the lock.
  bool notes_keys() const { return (ops.flags & RDMALLOC_REGISTRAR_NO_OVERLAP) != 0; }
  // Whether its calls fail for good: lost, or refused at a resume. What a device that is not gone
  // couldn't undo stays quarantined. Acquire: pairs with the release of the thread that stores it.
  bool has_failed() const {
    return phase.load(std::memory_order_acquire) == Phase::kIsLost ||
           is_lost.load(std::memory_order_acquire);
  }
  bool is_any_thread() const { return (ops.flags & RDMALLOC_REGISTRAR_ANY_THREAD) != 0; }
};

inline Domain* domain_of(rdmalloc_domain* handle) {
  return reinterpret_cast<Domain*>(handle);
}
inline Registration* registration_of(rdmalloc_reg* handle) {
  return reinterpret_cast<Registration*>(handle);
}

// 0 when calls may go on; -EINVAL for no domain or a closed one, -ENODEV for one whose device is
// gone, -EAGAIN for one that is quiesced, -ECHILD for one of the process that this one was forked
// from (I11).
int domain_check(const Domain* domain);

// Sums over the stripes. Under a WholeGuard.
Totals domain_totals(const Domain& domain);
Counters domain_counters(const Domain& domain);
void add(Counters& sums, const Counters& more);

// Whether the equations of README.md hold. Under a WholeGuard; walks everything; checked builds,
// tests.
bool domain_is_valid(Domain& domain);

}  // namespace rdmalloc::regcache
