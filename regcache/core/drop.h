// How a registration leaves the cache: unpublish, close, deregister, forget.
#pragma once

#include "regcache/core/domain.h"
#include "regcache/core/invalidate.h"

namespace rdmalloc::regcache {

enum class Reason : std::uint8_t { kAsked, kEvicted, kPurged, kFlushed };

// ---- under the domain's lock: a RangeGuard of the registration's range, or a WholeGuard ----

// Puts the registration in `table` for the slices that it fills entirely: in the slices of `forced`
// always, in the others if the slot is empty. A range that is not whole slices is found through the
// tree only.
void publish(Domain& domain, Slot* table, Registration* reg, SliceRange forced);
// Takes it out of one table.
void unpublish(Domain& domain, Slot* table, Registration* reg);

// Into and out of the LRU order. A registration that is apart is out of it already; unlist() keeps
// it from being listed later.
void list(Domain& domain, Registration* reg);
void unlist(Domain& domain, Registration* reg);
// Enters one that is apart. The caller holds it.
void list_apart(Domain& domain, Registration* reg);

// Makes a registration sticky. The caller publishes it, and has taken the room for it
// (Domain::sticky_taken).
void begin_sticky(Domain& domain, Registration* reg);
// Ends stickiness without a look at what lives there; the registration is in no order then.
void end_sticky(Domain& domain, Registration* reg);
// Whether a sticky registration has nothing alive in its range, so that no key of it may be used.
// Exact with its slots empty, else a hint. A registration of a part of a slab is asked for by
// blocks.
bool is_unused(const Domain& domain, const Registration* reg);
// Looks at `most` sticky registrations at most and ends stickiness where nothing in the range is
// alive. The next call goes on from there, with the next stripe. Returns how many ended. Under a
// WholeGuard.
std::uint64_t reclaim_sticky(Domain& domain, std::uint64_t most);
// Sticky registrations that a call without room looks at: 30 us. With more of them a call may be
// refused although one could end; a later call finds it.
inline constexpr std::uint64_t kStickyLooks = 1024;

// Takes a registration that is gone out of by_range.
void leave_tree(Domain& domain, Registration* reg);
// Takes a closed registration out of tables and orders (it stays in by_range until it is gone).
void withdraw(Domain& domain, Registration* reg);
// The invalidations that waited for this registration last; for Invalidations::complete().
Invalidation* completed_by_end_of(Registration* reg);
// Keeps a closed registration that could not be deregistered for ever, so that no purge takes its
// pages.
void quarantine(Domain& domain, Registration* reg);
// Closes and withdraws one that is idle, which joins *drops, a list for drop_list(). False where it
// is not idle.
bool close_for_drop(Domain& domain, Registration* reg, Registration** drops);
// Closes and withdraws an open one, held or not. True where it is not held: the caller drops it;
// the last put does otherwise.
bool close_held_too(Domain& domain, Registration* reg);
// Undoes close_idle() and withdraw().
void reopen(Domain& domain, Registration* reg, bool was_sticky);

// Takes back the reference that a heap or a pool has to a registration, at a checkpoint. One that
// is not held otherwise (of those with remote rights, which are not suspended) joins *drops, a list
// for drop_list().
void give_reference_back(Registration* reg, Registration** drops);

// Closes an open registration, held or not, and holds it: no get finds it any more, and its last
// put does not end it.
void suspend(Domain& domain, Registration* reg);
// Ends that, and leaves it closed. True when no other reference is left: the caller drops it.
bool unsuspend(Registration* reg);
// Undoes suspend().
void reopen_suspended(Domain& domain, Registration* reg);

// Closes and withdraws idle registrations, least recently put first, until `bytes` and `count` are
// reached, none is left, or `looks` have met others. Returns them as a list for drop_list(). Under
// a WholeGuard.
Registration* pick_victims(Domain& domain, std::uint64_t bytes, std::uint64_t count,
                           std::uint64_t looks = UINT64_MAX);

// The part of a domain's limits that no eviction frees: held, sticky, being made or dropped. Under
// a WholeGuard.
struct Unmovable {
  std::uint64_t bytes;
  std::uint64_t count;
};
Unmovable unmovable(Domain& domain);

// ---- under any lock, or none ----

// Puts a registration on a list for drop_list().
inline void push(Registration** list, Registration* reg) {
  reg->next() = *list;
  *list = reg;
}
// Leaves a closed registration without holders, or a list of them, to a thread of the user.
void defer(Domain& domain, Registration* reg);
void defer_list(Domain& domain, Registration* list);
// All that was left so far, as a list; none of another thread's take.
Registration* take_deferred(Domain& domain);

// ---- under no lock ----

// If registrations are sticky: gives the free blocks that this thread and its depot keep, spans
// among them, back to their slabs and page heaps, where is_unused() sees them.
void flush_blocks_with_keys(Domain& domain);
// Forgets all quarantined registrations of a domain whose device is gone.
void forget_quarantined(Domain& domain);

// ---- under no lock: calls the registrar ----

// Whether this is a thread of rdmalloc's that drops deferred registrations.
inline constinit thread_local bool is_helper_thread = false;

// Deregisters each of a list of closed, withdrawn registrations that the caller owns. Returns how
// many are gone; the others are quarantined.
std::uint64_t drop_list(Domain& domain, Registration* list, Reason reason);
// Warns of a quarantined registration, once for a domain.
void warn_quarantined(Domain& domain, const Registration* reg, int error);
// Loses a domain whose device is gone: drops all idle registrations, and warns once; in a
// checkpoint that is left to the way back. False if the domain is lost or being closed already.
bool lose_domain(Domain& domain);
// Drops what purges, invalidations and events of watched memory have deferred to a thread of the
// user.
void drain_deferred(Domain& domain);
// Drops what is deferred and waits until other threads have dropped or deferred theirs: afterwards
// only what is quarantined is in the tree. For a domain that is being closed or quiesced, in which
// nothing is open any more.
void wait_for_drops(Domain& domain);

}  // namespace rdmalloc::regcache
