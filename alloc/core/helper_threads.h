// Threads of ours: how they are made, and when they end. A process ends with its last thread, and
// ours must not be what keeps it alive: once the first thread has ended they look, now and then,
// whether any but them is left.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc {

// How many run: the purge thread, and those of the registration cache. Relaxed: a thread that finds
// too many of them looks again. Of this copy of the library: a process may have several.
inline constinit std::atomic<std::uint32_t> helper_threads{0};

// Called on the first thread of the process when it is ending: notifies helpers that wait without a
// time limit to look. NULL, or set for good.
inline constinit std::atomic<void (*)()> notify_first_thread_ends{nullptr};

// Whether it will be: the first thread has a cache, whose end is noticed (cache/cache_life.cc).
// One that never took a small block, or got no cache, ends without a word. Relaxed: helpers look
// again.
inline constinit std::atomic<bool> first_thread_notifies{false};

// In a child of fork: a lock of the loader's may be held for ever, by a thread that only the parent
// has. Set by the child's recovery, which each creation of a helper comes after (fork_check()).
inline constinit std::atomic<bool> loader_may_be_locked{false};

// Whether this process was made past libc's fork(), as by clone(2): its first thread may end by the
// system call, without a destructor, which is how one ends that clone() gave a function. Set by the
// child's recovery and, for a child whose parent had allocated nothing, with its first helper.
// Relaxed: as above.
inline constinit std::atomic<bool> is_past_libc{false};

// How often they look then: what such a process may end late. Where they are not notified, they
// look all the time, and not so often.
inline constexpr std::int64_t kLastThreadTickNs = 20000000;
inline constexpr std::int64_t kUnnotifiedTickNs = 1000000000;

// The longest that a helper may sleep before it looks; 0: it is notified in time. `has_ended`: what
// it was notified of.
inline std::int64_t last_thread_tick_ns(bool has_ended) {
  if (has_ended) return kLastThreadTickNs;
  bool is_notified = first_thread_notifies.load(std::memory_order_relaxed) &&
                     !is_past_libc.load(std::memory_order_relaxed);
  return is_notified ? 0 : kUnnotifiedTickNs;
}

// The memory of a stack. It is kept when its thread ends, for the next one.
struct HelperStack {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;

  bool holds(std::uintptr_t address) const { return address - base < bytes; }
};

// Room for a thread that only reads files. A sanitizer of the program's (GCC's LeakSanitizer) wants
// 128 KiB beside static TLS, which it counts higher than we do, and warns of less.
inline constexpr std::size_t kFileStackBytes = std::size_t{192} << 10;

// Creates a thread of ours. `run` finds `room_bytes` of stack beside what libc puts there (static
// TLS), and begins with helper_thread_begins(). 0 or a negative errno.
//
// Takes locks of libc's, which libc may hold while it calls free(): never from malloc, free and
// their relatives.
int helper_thread_create(HelperStack* stack, std::size_t room_bytes, void* (*run)(void*), void* arg,
                         pthread_t* thread);
// Sets the signal mask that threads of ours are made with; *before gets the caller's.
void helper_thread_mask(sigset_t* before);
// Names the calling thread, and ends real-time scheduling that it has from the one that made it.
void helper_thread_begins(const char* name);
// Takes that name away from the calling thread, which ends: where it is the process's last, libc
// calls exit() on it, and a helper that an exit handler brings must not leave as if it were alone.
void helper_thread_ends();
// Whether the first thread has ended and none is left but helpers, those of other copies of this
// library among them, which their names tell. False without /proc. For helpers: two system calls,
// and, where there are few others, a thread that reads the names, the first time and then once a
// second or when the others become fewer.
bool are_only_helpers_left();
// In the child of a fork, which has none.
void helper_threads_after_fork();
// What to look at after such an error of helper_thread_create(): a phrase for a warning.
const char* helper_thread_remedy(int error);

}  // namespace rdmalloc
