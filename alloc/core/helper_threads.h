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

// How often they look then: what such a process may end late.
inline constexpr std::int64_t kLastThreadTickNs = 20000000;

}  // namespace rdmalloc
