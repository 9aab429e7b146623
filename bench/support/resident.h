// A process's own resident memory, as the kernel accounts for it. Allocates nothing.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace rdmalloc::bench {

// The number of KiB after `name` in a file of /proc, in bytes; 0 where there is none.
inline std::uint64_t proc_bytes(const char* path, const char* name) {
  std::array<char, 4096> text{};
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = read(file, text.data(), text.size() - 1);
  close(file);
  const char* line = got > 0 ? std::strstr(text.data(), name) : nullptr;
  unsigned long kib = 0;
  if (line == nullptr || std::sscanf(line + std::strlen(name), " %lu", &kib) != 1) return 0;
  return std::uint64_t{kib} * 1024;
}

// By the page tables. /proc/self/statm is off by what each processor has yet to add to its sum.
inline std::uint64_t resident_bytes() {
  return proc_bytes("/proc/self/smaps_rollup", "\nRss:");
}
// Of them in huge pages.
inline std::uint64_t huge_bytes() {
  return proc_bytes("/proc/self/smaps_rollup", "\nAnonHugePages:");
}
inline std::uint64_t peak_resident_bytes() {
  return proc_bytes("/proc/self/status", "\nVmHWM:");
}

inline double mib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

struct Residence {
  double peak_mib;     // so far
  double end_mib;      // at once
  double settled_mib;  // and after a time in which nothing is called
};
inline Residence look_and_settle(double settle_s) {
  Residence found{0, mib(resident_bytes()), 0};
  // The kernel's account of the peak lags behind as statm does.
  found.peak_mib = std::max(mib(peak_resident_bytes()), found.end_mib);
  if (settle_s > 0) usleep(static_cast<useconds_t>(settle_s * 1e6));
  found.settled_mib = mib(resident_bytes());
  return found;
}

}  // namespace rdmalloc::bench
