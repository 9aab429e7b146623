// Parks: the runs that were freed last, for whoever asks for one of the same length next.
//
// A block above 32 KiB is a span of its own, so each malloc and each free of one takes the page
// heap's lock, of which there is one. Parks stand in front of it: what is freed, to 1 MiB, is
// kept as it is for the next block of exactly that length, and neither end of its life is the page
// heap's.
//
//   shard 0   park 0  [ 64K 1M 64K . . . . . ]    eight runs at most, 2 MiB together, oldest first;
//             park 1  [ 256K . . . . . . . ]      a lock for each
//             park 2  [ . . . . . . . . ]
//             park 3  [ 128K . . . . . . . ]
//   shard 1   ...
//
// A thread begins with one park of its shard and goes on with the others of it. A lock that is held
// is passed by: nobody ever waits for a park. What is pushed out of a full park, and what lies
// there for longer than the decay time, goes on to the page heap and becomes the free span that it
// would have been at once: its place is a buffer's, its age counts from when it was freed.
//
// Until threads meet at the page heap's lock, again and again, parks are closed, and nothing here
// is looked at: a program of one thread has its blocks where best fit puts them. They close again
// when nothing is parked and nothing was taken since the purge thread last came by.
//
// A parked run is free for its length and for nothing else: no neighbour joins it, no slab is cut
// from it, no purge is offered it. Its pages are dirty, so they count as free memory in statistics
// and against the ceiling; the page heap counts the run as in use, for nothing of its own is
// written when a run is parked or taken. Where memory is short, parks are emptied first.
//
// The word of a parked run says kParked, and of which park. It changes from and to kLarge under
// that park's lock; a word that says so belongs to a run that is parked, at each moment. So a fork
// child that finds the lock held by a vanished thread finds the runs by their words.
//
// Equations (parks_are_valid): of each park
//   sum of its runs' lengths == slices <= 32;   runs whose word names it == those it lists
//
// Lock order: a slab class's lock, a park's, the page heap's.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/core/lock.h"
#include "alloc/pages/span.h"

namespace rdmalloc {

// The longest run that is parked: 1 MiB. Above, filling the pages costs more than any lock.
inline constexpr std::uint32_t kParkedMost = 16;

namespace detail {
// Slices that a park may hold; 0: parks are closed. Relaxed: what is parked nevertheless is found
// by the next round of the purge.
extern constinit std::atomic<std::uint32_t> open_slices;
}  // namespace detail

// Whether it is worth to ask for a run of that length.
inline bool may_be_parked(std::uint32_t slices) {
  return slices <= kParkedMost && slices <= detail::open_slices.load(std::memory_order_relaxed);
}

// Two threads met at the page heap's lock, one of them for a run that could have been parked: opens
// the parks once that happens often.
void parks_note_meeting();

// Takes and publishes a run of that length, as page_heap_take_large does. Its pages are old ones.
// 0: none is parked, or somebody is at it. `shard`: where the thread runs.
SliceIndex park_take(unsigned shard, std::uint32_t slices);

enum class Parking : std::uint8_t {
  kRefused,    // not of the kind that is parked, or no room: it is the page heap's
  kParked,     // the caller calls purge_note_parked()
  kExchanged,  // parked, and others went to the page heap: purge_note_dirty()
  kNotInUse,   // another thread freed it at this moment
};
// Takes a run out of use, as page_heap_free does.
Parking park_put(unsigned shard, SliceIndex slice);

// Gives what was parked for that long to the page heap; 0: everything. Returns the slices. No lock
// of a park or the page heap is held.
std::uint64_t parks_return(std::uint32_t least_ms);
// The same for one run, where it is parked still; whether it was.
bool parks_return_run(SliceIndex slice);
// The purge thread's look at its ticks, with the turn: what is old goes back; unused, parks close.
void parks_age(std::uint32_t decay_ms);

// What they may hold follows from the decay time (0: nothing is kept), a quarter of the ceiling for
// dirty memory, and how many shards there are.
void parks_set_decay_ms(std::uint64_t decay_ms);
void parks_set_ceiling(std::uint64_t bytes);
void parks_fit();

struct ParkCounters {
  std::uint64_t slices, runs;  // parked now
  std::uint64_t hits;          // runs taken from parks
};
ParkCounters park_counters();
// Slices that are parked. Wake-ups: written before the fence in purge_note_parked().
std::uint64_t parked_slices();

// For the child of a fork, when the page heap is whole: everything goes to the page heap, but what
// the forking thread itself was at.
void parks_after_fork(const Forker& forker);

// ---- for page_heap_is_valid() ----

// Stops all parks: nothing is on its way to or from them.
void parks_stop();
void parks_go_on();
// With the parks stopped and the page heap's lock.
bool parks_are_valid();

}  // namespace rdmalloc
