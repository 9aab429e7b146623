// Purging: giving free spans' pages back, on a thread of our own (I1, I3, I7).
//
// The order of one purge is in pages/give_back.h, who may purge in pages/purge_turn.h.
//
// Pages of a slab in use go the same way; in flight are the blocks on them (purge/slab_purge.h).
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstdint>

#include "alloc/core/lock.h"

namespace rdmalloc {

// Settles limits from the options. At initialisation.
void purge_init();

// ---- the purge thread (purge_thread.cc) ----

// Makes it unless it runs, or RDMALLOC_PURGE forbids it. 0 or a negative errno; after a failure the
// next call tries again (I10). Never from malloc, free and their relatives (helper_thread_create),
// nor is what follows.
int purge_thread_start();
// Stops and joins it. Not from a page event.
int purge_thread_stop();
// Where the program may have no thread more (RLIMIT_NPROC, pids.max): stops it, unless a purge is
// under way for longer than 50 ms, whose observer may want a lock that the caller holds. Whether it
// may have one now. The next start brings it back.
bool purge_thread_make_way();

// Keeps the purge thread from purging for the next `hold_ms`, and waits at most `wait_ms` for a
// purge under way. Not a pause: bounded, so that it can be called by a thread that holds a lock
// that the purge may be waiting for. rdmalloc_purge() goes on: its caller knows the moment.
void purge_hold(std::int64_t hold_ms, int wait_ms);

// Asks the purge thread to give everything back that is free: for callers that may be inside a
// fabric's call, where rdmalloc_purge() is not allowed.
void purge_request_all();

// For a checkpoint: no purge, and no thread that purges, until purge_thaw(). Waits for a purge
// under way until `deadline_ns` (os::monotonic_ns(); INT64_MAX: for ever). 0, -ETIMEDOUT with
// nothing changed, -EDEADLK in a page event. One caller at a time. No thread in malloc or free
// waits for it: what would have started or woken the thread finds that it may not.
int purge_freeze(std::int64_t deadline_ns);
void purge_thaw();

// Pauses of the library's own, which rdmalloc_purge_resume() does not end; otherwise as
// rdmalloc_purge_pause(). Each that returned 0 needs its resume.
int purge_pause();
void purge_resume();

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
void purge_set_decay_ms(std::uint64_t decay_ms);

// In a fork child, before anything there may start a thread: there is no purge thread; it is
// started when it is needed again. Only a purge of the thread that forked goes on; returns whether
// there is one. `forkers_stack`: an address in it.
bool purge_after_fork(const Forker& forker, std::uintptr_t forkers_stack);

}  // namespace rdmalloc
