// What puts are ordered by, for the LRU.
//
// Reading the processor's clock is more than half of what a hit and its put cost: 8 of 15 ns at
// 1,000 registrations (regcache_compare), and more where each record is a miss, since the processor
// lets nothing overlap with it. So a put reads it only where an order is needed. An order matters
// where something is evicted, which only a registration that lacks room does. Therefore
//
//   nothing bounds any domain   a put takes the time of a registration, the latest or one of some
//                               milliseconds before: puts between which such a time went by, and
//                               something was registered, are ordered, others are not
//   from the first bound on     a put takes the time: every order is exact
//
// A bound is a limit in bytes or count that was set, RLIMIT_MEMLOCK, half of what the registrar's
// device can hold, or a registrar that had no memory left. Where it was set before the first put,
// as the first two are, all victims are chosen exactly; after the others those that were not put
// since are chosen by the coarse order, before all that were.
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

// In a line of its own: every put reads it, and what else might lie there is written. Itself it is
// written once in put_clock_step, or misses of all threads would meet at it.
struct alignas(64) PutClock : std::atomic<std::uint64_t> {
  using std::atomic<std::uint64_t>::atomic;
};

// The time of a registration; 0: puts look at the clock themselves. Relaxed everywhere: a put found
// its registration by an acquire, and the thread that published that had read the clock before.
inline constinit PutClock put_clock{1};

// Ticks: 2^24 are 4 to 10 ms on x86-64, and by the 6 bits above 0.3 to 10 ms on aarch64. 0 in tests
// of the order.
inline constinit std::uint64_t put_clock_step = std::uint64_t{1} << 24;

// When a put is, or was at the latest registration.
inline std::uint64_t put_stamp() {
  std::uint64_t coarse = put_clock.load(std::memory_order_relaxed);
  return coarse != 0 ? coarse : ticks();
}

// When a registration is made that is published after this. No put of it is earlier.
inline std::uint64_t put_clock_advance() {
  std::uint64_t now = ticks(), seen = put_clock.load(std::memory_order_relaxed);
  while (seen != 0 && seen + put_clock_step < now)
    if (put_clock.compare_exchange_weak(seen, now, std::memory_order_relaxed)) return now;
  return seen != 0 ? seen : now;
}

// From here on the order is exact. Called before a domain with a bound is open.
inline void put_clock_be_exact() {
  if (put_clock.load(std::memory_order_relaxed) != 0) put_clock.store(0, std::memory_order_relaxed);
}

}  // namespace rdmalloc::regcache
