// How a hit on foreign memory is found. It takes no lock. It looks at the hint for its first page,
// which is what was found there last; else it goes down the domain's interval tree, while others
// may turn it round, and leaves a hint: with 100,000 registrations the way down meets some 20 cold
// records, the hint one. Hints are never taken back. The records are never unmapped, so neither can
// fault; what they lead to may be of yesterday, or of another domain, so the steps down are
// bounded, and what is found is taken only after acquire(), by what the record then says. It may
// miss what is there; the slow path, under the lock, does not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "regcache/core/domain.h"

namespace rdmalloc::regcache {

// Whether a record that this thread does not hold says that it is the domain's and covers the
// range. It is asked before acquire() too: to hold another's registration, if only for a moment,
// could make its purge or the closing of its domain fail.
inline bool seems_to_cover(const Domain& domain, Registration* reg, std::uintptr_t low,
                           std::uintptr_t high) {
  // Relaxed: hints only, of what fill_in() writes.
  auto base = std::atomic_ref(reg->head.base).load(std::memory_order_relaxed);
  Extent extent{std::atomic_ref(reg->head.extent).load(std::memory_order_relaxed)};
  return low >= base && high - base <= extent.length() && extent.domain_index() == domain.index;
}

// A record that covers the range, or did; or NULL. Lock-free, any thread. Expected depth of the
// tree is 2 ln n, so 64 steps are enough for 10^9 registrations but for one in many.
inline Registration* find_foreign_in(const Domain& domain, const Stripe& stripe, std::uintptr_t low,
                                     std::uintptr_t high) {
  constexpr int kMostSteps = 64;
  Registration* top = stripe.by_range.root();
  for (int step = 0; top != nullptr && step < kMostSteps; ++step) {
    if (seems_to_cover(domain, top, low, high)) return top;
    Registration* left = top->rest().by_range.left;
    bool goes_left = left != nullptr && left->rest().furthest_end > low;
    top = goes_left ? left : static_cast<Registration*>(top->rest().by_range.right);
  }
  return nullptr;
}
inline Registration* find_foreign(const Domain& domain, std::uintptr_t low, std::uintptr_t high) {
  std::size_t stripe = stripe_of(low, high);
  Registration* found = find_foreign_in(domain, domain.stripes[stripe], low, high);
  return found != nullptr || stripe == kWide ? found
                                             : find_foreign_in(domain, domain.wide(), low, high);
}

}  // namespace rdmalloc::regcache
