#include "alloc/os/fault.h"

#include <rdmalloc/rdmalloc.h>

#include <cstring>

#include "alloc/os/at_start.h"

namespace rdmalloc::os {
namespace {

constexpr std::size_t kSites = static_cast<std::size_t>(Site::kCount);

struct SiteText {
  const char* name;
  const char* help;
};
constexpr SiteText kTexts[kSites] = {
#define RDMALLOC_SITE(constant, name, help) {name, help},
    RDMALLOC_FAULT_SITES(RDMALLOC_SITE)
#undef RDMALLOC_SITE
};

// Calls left before the failure; 0: not armed.
constinit std::atomic<std::uint64_t> countdown[kSites] = {};
constinit std::atomic<std::uint64_t> fired{0};

}  // namespace

namespace detail {

RDMALLOC_AT_START constinit std::atomic<bool> faults_armed{false};

bool fault_is_due(Site site) {
  auto& left = countdown[static_cast<std::size_t>(site)];
  // Relaxed: a counter, nothing is published by it.
  std::uint64_t seen = left.load(std::memory_order_relaxed);
  while (seen != 0) {
    if (!left.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed)) continue;
    if (seen != 1) return false;
    fired.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

}  // namespace detail

const char* site_name(Site site) {
  return kTexts[static_cast<std::size_t>(site)].name;
}

Site site_named(const char* name, std::size_t length) {
  std::size_t site = 0;
  while (site < kSites && (std::strlen(kTexts[site].name) != length ||
                           std::strncmp(kTexts[site].name, name, length) != 0))
    ++site;
  return static_cast<Site>(site);
}

void arm_fault(Site site, std::uint64_t nth) {
  countdown[static_cast<std::size_t>(site)].store(nth, std::memory_order_relaxed);
  detail::faults_armed.store(true, std::memory_order_relaxed);
}

std::uint64_t faults_fired() {
  return fired.load(std::memory_order_relaxed);
}

}  // namespace rdmalloc::os

using namespace rdmalloc::os;

extern "C" RDMALLOC_API int rdmalloc_fault_is_due(const char* site) {
  if (!detail::faults_armed.load(std::memory_order_relaxed)) return 0;
  Site found = site_named(site, std::strlen(site));
  return found != Site::kCount && detail::fault_is_due(found) ? 1 : 0;
}

extern "C" RDMALLOC_API int rdmalloc_fault_arm(const char* site, std::uint64_t nth) {
  Site found = site_named(site, std::strlen(site));
  if (found == Site::kCount) return 0;
  arm_fault(found, nth);
  return 1;
}

extern "C" RDMALLOC_API int rdmalloc_fault_site(std::size_t number, const char** name,
                                                const char** help) {
  if (number >= kSites) return 0;
  *name = kTexts[number].name;
  *help = kTexts[number].help;
  return 1;
}
