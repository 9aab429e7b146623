// A clock for single calls: the processor's counter, read so that nothing before the interval and
// nothing after it is counted.
#pragma once

#include <cstdint>
#include <ctime>

namespace rdmalloc::bench {

using Ticks = std::uint64_t;

#if defined(__x86_64__)
constexpr const char* kTimerName = "rdtsc";

// mfence: the program's last writes may otherwise still wait for their lines, and the call for
// them: with 64 of them, to the first bytes of pages, tcmalloc's malloc of 256 KiB took 290 ns for
// 20. lfence: rdtsc may be read before what stands in front of it is done, and the call begin
// before rdtsc is read.
inline Ticks ticks_before() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("mfence\n\tlfence\n\trdtsc\n\tlfence" : "=a"(low), "=d"(high) : : "memory");
  return (Ticks{high} << 32u) | low;
}
// rdtscp waits for the call; the lfence keeps what follows from beginning earlier.
inline Ticks ticks_after() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("rdtscp\n\tlfence" : "=a"(low), "=d"(high) : : "rcx", "memory");
  return (Ticks{high} << 32u) | low;
}
#elif defined(__aarch64__)
constexpr const char* kTimerName = "cntvct_el0";

inline Ticks ticks_after() {
  Ticks ticks = 0;
  asm volatile("isb\n\tmrs %0, cntvct_el0\n\tisb" : "=r"(ticks) : : "memory");
  return ticks;
}
// dsb: as mfence above.
inline Ticks ticks_before() {
  asm volatile("dsb ish" : : : "memory");
  return ticks_after();
}
#else
constexpr const char* kTimerName = "clock_gettime";

inline Ticks ticks_before() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Ticks>(now.tv_sec) * 1'000'000'000u + static_cast<Ticks>(now.tv_nsec);
}
inline Ticks ticks_after() {
  return ticks_before();
}
#endif

// The same moment on both clocks.
struct Moment {
  Ticks ticks = 0;
  double ns = 0;
};

// Of several readings the narrowest: between the others this thread may have lost its core.
inline Moment moment() {
  Moment narrowest;
  Ticks width = ~Ticks{0};
  for (int i = 0; i < 64; ++i) {
    timespec now{};
    const Ticks before = ticks_before();
    clock_gettime(CLOCK_MONOTONIC, &now);
    const Ticks after = ticks_after();
    if (after - before >= width) continue;
    width = after - before;
    narrowest = {before + width / 2,
                 static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec)};
  }
  return narrowest;
}

// 50 ms against a reading that is off by 0.1 us at most: right to a few millionths.
inline double measure_ns_per_tick() {
  const Moment first = moment();
  const timespec pause{0, 50'000'000};
  nanosleep(&pause, nullptr);
  const Moment last = moment();
  return (last.ns - first.ns) / static_cast<double>(last.ticks - first.ticks);
}

}  // namespace rdmalloc::bench
