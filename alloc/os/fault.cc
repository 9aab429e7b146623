#include "alloc/os/fault.h"

namespace rdmalloc::os {
namespace {

constexpr std::size_t kSites = static_cast<std::size_t>(Site::kCount);
constexpr const char* kNames[kSites] = {
    "reserve",  "commit",        "map_metadata", "wipe_on_fork", "advise_huge",
    "decommit", "thread_create", "populate",     "userfault",    "userfault_register",
    "map_huge", "move_huge",     "reserve_over",
};
// Calls left before the failure; 0: not armed.
constinit std::atomic<std::uint64_t> countdown[kSites] = {};

}  // namespace

namespace detail {

constinit std::atomic<bool> faults_armed{false};

bool fault_is_due(Site site) {
  auto& left = countdown[static_cast<std::size_t>(site)];
  // Relaxed: a counter, nothing is published by it.
  std::uint64_t seen = left.load(std::memory_order_relaxed);
  while (seen != 0) {
    if (left.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed)) return seen == 1;
  }
  return false;
}

}  // namespace detail

const char* site_name(Site site) {
  return kNames[static_cast<std::size_t>(site)];
}

void arm_fault(Site site, std::uint64_t nth) {
  countdown[static_cast<std::size_t>(site)].store(nth, std::memory_order_relaxed);
  detail::faults_armed.store(true, std::memory_order_relaxed);
}

}  // namespace rdmalloc::os
