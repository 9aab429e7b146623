// Purging: giving free spans' pages back, on a thread of our own (I1, I3, I7).
//
// Order of one purge, and no other (I3):
//   1. take the span out of reach of allocation           page_heap_purge_begin, word kPurging
//   2. tell what is not told, ask every observer           events_ask_purge: our registration cache
//      deregisters here, synchronously, or refuses
//   3. decommit                                            madvise(MADV_DONTNEED)
//   4. put the span back, clean                            page_heap_purge_end
//   5. tell the observers                                  events_tell_purged
//
// Pages of a slab in use go the same way; out of reach are the blocks on them (slabs/slab_purge.h).
//
// The purge turn is held over all five by whoever purges: the purge thread, or a caller of
// rdmalloc_purge(). It is no lock of the allocator: nobody inside malloc or free ever waits for it,
// so observers may wait for what they like.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstddef>
#include <cstdint>

#include "alloc/core/lock.h"

namespace rdmalloc {

// Settles limits from the options. At initialisation.
void purge_init();

// ---- the purge thread (purge_thread.cc) ----

// Some memory became dirty. Called by allocating threads with no lock held: wakes the purge thread
// when it sleeps for want of work or when a ceiling is passed. Where there is none, nothing
// happens: no thread is made inside malloc or free.
void purge_note_dirty();
// Blocks came back to a slab, and it had asked to be told (slab_watch): wakes it if it is there.
void purge_note_slab_change();

// Makes it unless it runs, or RDMALLOC_PURGE forbids it. 0 or a negative errno; after a failure the
// next call tries again (I10). Never from malloc, free and their relatives (helper_thread_create),
// nor is what follows.
int purge_thread_start();
// Something to do: wakes it, making it if need be.
void purge_wake();
// A thread with a cache ends, and is not the first: makes it where much memory is free. So it comes
// to be also where libc makes the threads (timers, aio), or a program that is linked statically.
void purge_note_thread_ends();
// Stops and joins it. Not from a page event.
int purge_thread_stop();

// The process's first thread is ending, and the others may go on. A process ends with its last
// thread, and ours must not be what keeps it alive: from now on the purge thread looks whether it
// is the last, and ends then.
void purge_note_first_thread_ends();

// The turn.
bool purge_turn_is_mine();
// The thread that has it, 0 for none: a hint.
std::uint32_t purge_turn_owner();
void purge_turn_wait();  // returns once no purge that began before is under way

// Keeps the purge thread from purging for the next `hold_ms`, and waits at most `wait_ms` for a
// purge under way. Not a pause: bounded, so that it can be called by who holds a lock that the
// purge may be waiting for. rdmalloc_purge() goes on: its caller knows his moment.
void purge_hold(std::int64_t hold_ms, int wait_ms);

// How pages are given back: os::decommit_hooked (tier T0: whatever other libraries installed hears
// of it) or os::decommit. Set by the notifiers, with purging paused.
using DecommitFunction = int (*)(std::uintptr_t base, std::size_t length);
// Calls it, and whatever is hooked to it, with no lock held.
int purge_decommit(DecommitFunction decommit, std::uintptr_t base, std::size_t length);
void purge_set_decommit(DecommitFunction function);

// Runs `step` with the turn and returns what it does. -EBUSY while purging is paused, -EDEADLK when
// the turn is this thread's already.
int purge_with_turn(int (*step)(DecommitFunction decommit, void* arg), void* arg);

// Asks the purge thread to give everything back that is free: for callers that may be inside a
// fabric's call, where rdmalloc_purge() is not allowed.
void purge_request_all();

// For a checkpoint: no purge, and no thread that purges, until purge_thaw(). Waits for a purge
// under way until `deadline_ns` (os::monotonic_ns(); INT64_MAX: for ever). 0, -ETIMEDOUT with
// nothing changed, -EDEADLK in a page event. One caller at a time. Nobody in malloc or free waits
// for it: what would have started or woken the thread finds that it may not.
int purge_freeze(std::int64_t deadline_ns);
void purge_thaw();

struct PurgeCounters {
  std::uint64_t purges = 0;  // successful decommits
  std::uint64_t purged_bytes = 0;
  std::uint64_t slab_purged_bytes = 0;  // of them, pages of slabs in use
  std::uint64_t refusals = 0;           // by an observer
  std::uint64_t failures = 0;           // by the kernel
  std::uint64_t decay_ms = 0;
  std::uint64_t thread_failures = 0;  // times the thread could not be created
  std::uint64_t pressure_purges = 0;  // rounds that gave back early: the kernel was short of memory
  std::uint64_t freezes = 0;          // times purging was stopped for a checkpoint
  bool thread_runs = false;
  bool is_frozen = false;
};
PurgeCounters purge_counters();
// The ceiling. Where nothing has set it, and no purge thread has looked it up, files are read.
std::uint64_t purge_dirty_max_bytes();
void purge_set_decay_ms(std::uint64_t decay_ms);
void purge_set_dirty_max_bytes(std::uint64_t bytes);

// In a fork child, before anything there may start a thread: there is no purge thread; it is
// started when it is needed again. Only a purge of the thread that forked goes on; returns whether
// there is one. `forkers_stack`: an address in it.
bool purge_after_fork(const Forker& forker, std::uintptr_t forkers_stack);

}  // namespace rdmalloc
