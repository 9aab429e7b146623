// Room for one more registration: within the domain's limits, within RLIMIT_MEMLOCK, and with the
// registrar, which is asked once more after an eviction (I12).
#pragma once

#include <cstddef>

#include "regcache/core/domain.h"

namespace rdmalloc::regcache {

// More than a limit of ours, or RLIMIT_MEMLOCK, leaves: a narrower range may work. A registrar's
// answer is never positive.
inline constexpr int kNoRoom = 2;
// The registrar refuses overlaps, and what is in the way is being made or dropped by other threads,
// or serves. Not for a key, where what serves is held and finds no room among the sticky.
inline constexpr int kPasses = 3;

// ---- the domain's limits ----

// Whether a registration may be made: 0, -EINVAL (closed), -ENODEV (lost), -EAGAIN (quiesced).
// Under the lock.
int check_open(const Domain& domain);
// Promises room for one more registration, evicting as needed. 0, kNoRoom, or as above. Under no
// lock.
int reserve_room(Domain& domain, Registration* reg);
// Under the lock. The room stays taken.
void end_reservation(Domain& domain, Registration* reg);

// Whether `length` more bytes may become sticky. A hint unless `is_whole`, under a WholeGuard; then
// ends stickiness elsewhere if it has to.
bool has_sticky_room(Domain& domain, std::size_t length, bool is_whole);
// Takes it, if there is. Under the lock.
bool take_sticky_room(Domain& domain, std::size_t length);

// ---- RLIMIT_MEMLOCK ----
//
// A limit of the process that the kernel holds its domains to, those whose registrar says that what
// it registers counts (RDMALLOC_REGISTRAR_PINS, _LOCKS). Heeded before the registrar is asked, so
// that idle registrations of every such domain make room, a block that does not fit with its whole
// span is registered by its pages, and a caller that asks for too much gets the numbers. The kernel
// has the last word: what it counts is not all told (other processes of the user's).

struct MemlockRoom {
  std::uint64_t limit = UINT64_MAX;  // UINT64_MAX: not limited
  std::uint64_t left = UINT64_MAX;
};
// What the limit leaves for one more registration with this domain.
MemlockRoom memlock_room(const Domain& domain);

// Makes room for `length` more bytes, evicting what is idle if need be. False, counted and with one
// warning for each domain, where there is none. Under no lock.
bool make_memlock_room(Domain& domain, std::size_t length);

// ---- the registrar ----

// What calls of register_ add to a domain's counters: with its next change of the domain, so that
// no lock is taken for them.
struct Asked {
  std::uint64_t ns_total = 0, ns_worst = 0;
  std::uint64_t registrations = 0, refusals = 0;
};

// Under the lock.
void count(Counters& counters, const Asked& asked);
// Whether the keys that a registration has given out have ended, because the only block in its
// range was reallocated in place, or is another by now. Under the lock.
bool is_outgrown(const Domain& domain, const Registration* reg, std::uintptr_t block_low,
                 std::uintptr_t block_high);
// Where none may overlap: drops what is idle over [low, high) and the block has outgrown. Before
// room for another is asked for, which that may have.
void drop_outgrown(Domain& domain, std::uintptr_t low, std::uintptr_t high,
                   std::uintptr_t block_low, std::uintptr_t block_high);
// Where none may overlap: whether something stays that a registration of [low, high) would overlap,
// held or quarantined. Of the very same range a registrar may take another.
bool is_held_within(Domain& domain, std::uintptr_t low, std::uintptr_t high);
// Asks the registrar, and once more after an eviction: of as much as is to be registered, or of
// what overlaps it. [block_low, block_high): the block that is a span of its own, if it is in one.
int ask_twice(Domain& domain, Registration* reg, std::uintptr_t block_low,
              std::uintptr_t block_high, Asked& asked);

}  // namespace rdmalloc::regcache
