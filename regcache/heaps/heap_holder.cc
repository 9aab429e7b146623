// Registered heaps as holders of registrations (core/holders.h): closing a domain, and checkpoints.
#include <utility>

#include "regcache/core/drop.h"
#include "regcache/core/gate.h"
#include "regcache/core/holders.h"
#include "regcache/core/make.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"
#include "regcache/heaps/registered_heap.h"

namespace rdmalloc::regcache {
namespace {

// Calls fn(heap, index) for each registration of a heap's, [region][domain].
template <class Fn>
void each_registration(State& all, Fn fn) {
  for (RegisteredHeap& registered : all.heaps) {
    // Acquire: pairs with the release in give_up().
    if (registered.handle.load(std::memory_order_acquire) == 0) continue;
    std::uint32_t regions = registered.region_count.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < regions * registered.domain_count; ++i) fn(registered, i);
  }
}

bool has_domain(State& all, std::size_t domain) {
  // Places are taken under the lock: a place that is taken stays as it is.
  LockGuard guard(all.heaps_lock);
  for (RegisteredHeap& heap : all.heaps) {
    // Acquire: pairs with the release in give_up().
    if (heap.handle.load(std::memory_order_acquire) == 0) continue;
    for (std::uint32_t i = 0; i < heap.domain_count; ++i)
      if (heap.domains[i] == domain) return true;
  }
  return false;
}

std::uint64_t references(State& all, std::size_t domain) {
  std::uint64_t count = 0;
  each_registration(all, [&](RegisteredHeap& heap, std::uint32_t i) {
    if (heap.registrations[i] != nullptr && heap.domains[i % heap.domain_count] == domain) ++count;
  });
  return count;
}

void give_back(State& all, Registration** drops) {
  each_registration(all, [&](RegisteredHeap& heap, std::uint32_t i) {
    Registration* reg = std::exchange(heap.registrations[i], nullptr);
    store_key(heap.keys[i], {});
    if (reg == nullptr) return;
    std::size_t domain = heap.domains[i % heap.domain_count];
    RangeGuard guard(all.domains[domain], reg);
    give_reference_back(reg, &drops[domain]);
  });
}

int register_again(State& all) {
  int first_error = 0;
  each_registration(all, [&](RegisteredHeap& registered, std::uint32_t i) {
    Domain& domain = all.domains[registered.domains[i % registered.domain_count]];
    if (!is_to_be_reopened(domain)) return;
    const auto& region = registered.regions[i / registered.domain_count];
    Registration*& reg = registered.registrations[i];
    int error = make_heaps(domain, region.base, region.length, registered.access, &reg);
    if (error == 0) {
      store_key(registered.keys[i], reg->head.key);
      freezer_here().reregistered.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    reg = nullptr;
    lose_at_resume(domain, error);
    if (first_error == 0) first_error = error;
  });
  return first_error;
}

}  // namespace

const Holder heap_holder = {has_domain, references, give_back, register_again};

}  // namespace rdmalloc::regcache
