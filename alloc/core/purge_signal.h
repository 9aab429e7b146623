// What the rooms below alloc/purge/ notify the purge thread of: words that it sleeps on, and two
// functions that it leaves here.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc {

namespace detail {

enum class PurgeThreadState : std::uint32_t { kNone, kStarting, kRuns, kStopping, kFrozen };

// What the futex word says.
inline constexpr std::uint32_t kAwake = 0, kTicking = 1, kIdle = 2;

struct PurgeSignal {
  std::atomic<PurgeThreadState> state{PurgeThreadState::kNone};
  std::atomic<std::uint32_t> sleep{kAwake};
  // Set while no cache changed since the purge thread began its latest look at them.
  std::atomic<bool> caches_are_still{false};
  // Of alloc/purge/, since the initialisation. Relaxed: functions, the same for all.
  std::atomic<void (*)()> start_and_wake{nullptr};
  std::atomic<void (*)(bool is_first)> thread_ends{nullptr};
};
extern constinit PurgeSignal purge_signal;

// Wakes the purge thread if it sleeps.
void purge_thread_signal();
void purge_note_first_change_of_caches();

}  // namespace detail

// ---- for malloc and free, with no lock held: nothing here waits or makes a thread ----

// Blocks came back to a slab, and the purge thread had asked to be notified (slab_watch): wakes it
// if it is there.
void purge_note_slab_change();

// A cache took blocks from below or made room for more, which from then on come and go on fast
// paths that note nothing: wakes the purge thread if it is there and sleeps without a limit, so
// that it looks later on which caches are idle.
inline void purge_note_caches_change() {
  // Relaxed: what is seen as cleared is set before the next look, after which there is another one.
  if (detail::purge_signal.caches_are_still.load(std::memory_order_relaxed)) [[unlikely]]
    detail::purge_note_first_change_of_caches();
}

// ---- outside malloc and free, after the initialisation ----

// Something to do: wakes the purge thread, making it if need be.
void purge_wake();
// A thread with a cache ends, and is not the first: makes the purge thread where much memory is
// free. So it comes to be also where libc makes the threads (timers, aio), or a program that is
// linked statically.
void purge_note_thread_ends();
// The process's first thread is ending, and the others may go on. A process ends with its last
// thread, and ours must not be what keeps it alive: from now on the purge thread looks whether it
// is the last, and ends then.
void purge_note_first_thread_ends();

}  // namespace rdmalloc
