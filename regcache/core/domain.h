// A domain: one place memory is registered with. See README.md for the picture and the equations.
//
// Lock order: State::open_lock, one domain's lock, the orphans' lock, Invalidations' lock, a
// pool's. No registrar, observer or completion runs under any of them (I2). A thread that closes,
// opens, publishes or unpublishes a registration holds its domain's lock; one that only acquires or
// releases it does not.
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
  kIsLost,  // its device is gone: no registration is open, and none is made
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

// Sums over dropped registrations, and events without one. Under the domain's lock.
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
};

struct alignas(64) Domain {
  // Read by every hit; written by open only.
  rdmalloc_domain_head head;  // must be first: the inline fast path of regcache.h reads it
  Slot* sticky;               // [slice]: what reg_key finds; head.sticky is the same table
  Slot* counted;              // [slice]: what reg_get finds
  Slot* hints;                // [hint_of(address)]: what it found last for foreign memory there
  std::uint16_t index;
  std::atomic<Phase> phase;
  // The device is gone, so its registrations reach no page. Written under the lock; also
  // while the domain is being closed. Acquire where it is read without: pairs with the release in
  // lose_domain().
  std::atomic<bool> is_lost;
  std::atomic<bool> is_abandoned;  // to be closed as soon as it can be (core/abandoned.h)

  // Written by open only.
  rdmalloc_registrar_ops ops;
  void* context;
  std::uint32_t access;     // rights of each cached registration, at least
  std::size_t unit;         // registrations start and end at multiples of it
  std::size_t largest;      // bytes in one registration; SIZE_MAX: no limit
  std::uint64_t max_bytes;  // UINT64_MAX: no limit
  std::uint64_t max_count;
  int (*event)(rdmalloc_domain* domain, rdmalloc_domain_event event, void* arg);
  void* event_arg;

  // Under the lock from here on.
  alignas(64) Lock lock;
  RangeTree by_range;   // every registration there is, until its deregistration has returned
  StampTree by_stamp;   // those that are cached and not sticky
  std::uint64_t count;  // == records in by_range
  std::uint64_t bytes;  // == sum of their lengths
  std::uint64_t quarantined_count;  // of count: what no registrar could end, and nothing else drops
  std::uint64_t sticky_count;
  std::uint64_t sticky_bytes;
  std::uint64_t sticky_parts;    // of sticky_count: not whole slices
  std::uint64_t listed_count;    // == records in by_stamp
  std::uint64_t listed_bytes;    // == sum of their lengths: no more can be evicted
  Registration* sticky_ring;     // the next to be looked at (reclaim_sticky())
  std::uint64_t reserved_count;  // promised to calls of register_ under way
  std::uint64_t reserved_bytes;
  Registration* in_flight;  // records that register_ is being called for
  Registration* deferred;   // closed, to be dropped by a thread of the user (not any-thread)
  Counters counters;
  std::atomic<bool> has_warned_of_memlock, has_warned_of_quarantine;
  std::atomic<std::uint32_t> drops;  // moves on with each drop that is waited for; a futex

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

// Sum of the hits of all registrations, gone or not. Under the lock; walks all registrations.
std::uint64_t domain_hits(Domain& domain);

// Whether the equations of README.md hold. Under the lock; walks everything; checked builds, tests.
bool domain_is_valid(Domain& domain);

}  // namespace rdmalloc::regcache
