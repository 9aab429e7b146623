// What puts are ordered by, for the LRU.
//
// An order matters where something is evicted, which only a registration that lacks room does. So
// a put takes the processor's clock from the first bound on, and the order is exact from there
// (docs/decisions/0013-fewer-mechanisms.md has what that costs). A bound is a limit in bytes or
// count that was set, RLIMIT_MEMLOCK, half of what the registrar's device can hold, or a registrar
// that had no memory left. Where it comes after the first put, as the last two may, what was not
// put since is evicted before all that was, in the order in which it was registered.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc::regcache {

// Ticks of the processor, the same on all of them where the kernel itself uses them for its clock.
//
// No two stamps of one thread are the same. Where a tick is longer than a put takes (1 to 40 ns on
// aarch64), a thread counts on from its last stamp in the 6 bits below a tick: 2^58 ticks of 1 ns
// are 9 years. Puts of two threads in one tick have no order; README.md, "How exact the LRU is".
#if defined(__x86_64__)
inline std::uint64_t ticks() {
  return __builtin_ia32_rdtsc();
}
#else
inline constinit thread_local std::uint64_t last_ticks = 0;
inline std::uint64_t ticks() {
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  value <<= 6;
  if (value <= last_ticks) value = last_ticks + 1;
  last_ticks = value;
  return value;
}
#endif

// In a line of its own: every put reads it, and what else might lie there is written. Relaxed
// everywhere: set before a domain with a bound is open, and otherwise some puts earlier or later.
struct alignas(64) PutClock : std::atomic<bool> {
  using std::atomic<bool>::atomic;
};
inline constinit PutClock put_clock_runs{false};

// From here on the order is exact.
inline void put_clock_start() {
  if (!put_clock_runs.load(std::memory_order_relaxed))
    put_clock_runs.store(true, std::memory_order_relaxed);
}

}  // namespace rdmalloc::regcache
