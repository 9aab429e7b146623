// Named fault sites: RDMALLOC_FAULT=site:n makes the n-th call at that site fail, so that tests can
// walk every failure the kernel could show us. Disarmed it costs one load, off every fast path.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc::os {

enum class Site : std::uint8_t {
  kReserve,
  kCommit,
  kMapMetadata,
  kWipeOnFork,
  kAdviseHuge,
  kDecommit,
  kThreadCreate,
  kPopulate,
  kUserfault,
  kUserfaultRegister,
  kMapHuge,
  kMoveHuge,
  kReserveOver,
  kCount,
};

// "reserve", "commit", ...: the name used in RDMALLOC_FAULT and in statistics.
const char* site_name(Site site);

// Arms `site`: its n-th call from now on (1: the next) fails. Several sites may be armed.
void arm_fault(Site site, std::uint64_t nth);

namespace detail {
extern std::atomic<bool> faults_armed;
bool fault_is_due(Site site);
}  // namespace detail

// Whether the caller must pretend that the kernel refused.
inline bool should_fail(Site site) {
  // Relaxed: arming happens at start-up or in a test, which synchronises by other means.
  return detail::faults_armed.load(std::memory_order_relaxed) && detail::fault_is_due(site);
}

}  // namespace rdmalloc::os
