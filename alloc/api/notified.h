// How many ranges other libraries' caches were notified of before their pages went. Counted by the
// notifiers (regcache/notifiers), printed with the allocator's statistics.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdmalloc {

struct Notified {
  std::atomic<std::uint64_t> open_mpi{0}, ucx{0}, libfabric{0};
};
inline constinit Notified ranges_notified;

}  // namespace rdmalloc
