// Threads of ours. A process ends with its last thread, and ours must not be what keeps it alive:
// once the first thread has ended they look, now and then, whether any but them is left.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc {

// How many run: the purge thread, and those of the registration cache. Relaxed: whoever finds too
// many of them looks again.
inline constinit std::atomic<std::uint32_t> helper_threads{0};

// Called on the first thread of the process when it is ending: tells helpers that wait without a
// time limit to look. NULL, or set for good.
inline constinit std::atomic<void (*)()> tell_first_thread_ends{nullptr};

// Whether it will be: the first thread has a cache, whose end is noticed (cache/thread_cache.cc).
// One that never took a small block, or got no cache, ends without a word. Relaxed: helpers look
// again.
inline constinit std::atomic<bool> first_thread_tells{false};

// How often they look then: what such a process may end late. Where nobody will tell them, they
// look all the time, and not so often.
inline constexpr std::int64_t kLastThreadTickNs = 20000000;
inline constexpr std::int64_t kUntoldTickNs = 1000000000;

// The longest that a helper may sleep before it looks; 0: it is told in time. `has_ended`: what it
// was told.
inline std::int64_t last_thread_tick_ns(bool has_ended) {
  if (has_ended) return kLastThreadTickNs;
  return first_thread_tells.load(std::memory_order_relaxed) ? 0 : kUntoldTickNs;
}

}  // namespace rdmalloc
