// Memory that keeps its pages for good, since a registration over it could not be ended: a device
// may reach them still. Counted by the registration cache, which finds out, and shown by
// our statistics. malloc goes on using it: pages that stay are what a late write needs (I3, I4).
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc {

// Registrations, and their bytes: two over the same range count twice. Relaxed: counters. A child
// of fork has none.
inline constinit std::atomic<std::uint64_t> quarantined_ranges{0}, quarantined_bytes{0};

inline void note_quarantined(std::uint64_t bytes) {
  quarantined_ranges.fetch_add(1, std::memory_order_relaxed);
  quarantined_bytes.fetch_add(bytes, std::memory_order_relaxed);
}
inline void forget_quarantined_bytes(std::uint64_t bytes) {
  quarantined_ranges.fetch_sub(1, std::memory_order_relaxed);
  quarantined_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace rdmalloc
