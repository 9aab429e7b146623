// Named fault sites: RDMALLOC_FAULT=site:n makes the n-th call at that site fail, so that tests can
// walk every failure the kernel, a registrar or libc could show us, users' tests too. In every
// build; disarmed it costs one load, off every fast path. fault_sites.h lists the sites.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/os/fault_sites.h"

namespace rdmalloc::os {

enum class Site : std::uint8_t {
#define RDMALLOC_SITE(constant, name, help) constant,
  RDMALLOC_FAULT_SITES(RDMALLOC_SITE)
#undef RDMALLOC_SITE
      kCount,
};

// "reserve", "commit", ...: the name used in RDMALLOC_FAULT.
const char* site_name(Site site);
// The site whose name is the first `length` bytes there; kCount: there is none.
Site site_named(const char* name, std::size_t length);

// Arms `site`: its n-th call from now on (1: the next) fails; 0: none does. Several sites may be
// armed.
void arm_fault(Site site, std::uint64_t nth);
// How many calls have been made to fail.
std::uint64_t faults_fired();

namespace detail {
extern std::atomic<bool> faults_armed;
bool fault_is_due(Site site);
}  // namespace detail

// Whether the caller must pretend that the call it is about to make was refused.
inline bool should_fail(Site site) {
  // Relaxed: arming happens at start-up or in a test, which synchronises by other means.
  return detail::faults_armed.load(std::memory_order_relaxed) && detail::fault_is_due(site);
}

}  // namespace rdmalloc::os

// Exported, for our own libraries and tools alone: no header of include/ has them.
extern "C" {
// should_fail() for registrars (regcache/registrars/fault.h). By name: the two libraries may be of
// different builds. False for a name that is none.
int rdmalloc_fault_is_due(const char* site);
// arm_fault(), for programs over librdmalloc.so; false for a name that is none.
int rdmalloc_fault_arm(const char* site, std::uint64_t nth);
// The site with that number and a word on it; false behind the last.
int rdmalloc_fault_site(std::size_t number, const char** name, const char** help);
}
