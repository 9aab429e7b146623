// Registered heaps as holders of registrations (core/rooms.h): closing a domain, and checkpoints.

#include <utility>

#include "alloc/for_regcache.h"
#include "regcache/core/abandoned.h"
#include "regcache/core/drop.h"
#include "regcache/core/gate.h"
#include "regcache/core/make.h"
#include "regcache/core/rooms.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"
#include "regcache/heaps/registered_heap.h"

namespace rdmalloc::regcache {
namespace {

// Calls fn(heap, index) for each registration of a heap's, [region][domain].
template <class Fn>
void each_registration(Fn fn) {
  for (RegisteredHeap& registered : registered_heaps->places) {
    // Acquire: pairs with the release in give_up().
    if (registered.handle.load(std::memory_order_acquire) == 0) continue;
    std::uint32_t regions = registered.region_count.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < regions * registered.domain_count; ++i) fn(registered, i);
  }
}

int prepare() {
  if (int error = registered_heaps.prepare()) return error;
  // Release: pairs with the acquire of a thread that makes a heap.
  heap_registrar.store(&heap_registrations, std::memory_order_release);
  return 0;
}

bool has_domain(std::size_t domain) {
  // Places are taken under the lock: a place that is taken stays as it is.
  LockGuard guard(registered_heaps->lock);
  for (RegisteredHeap& heap : registered_heaps->places) {
    // Acquire: pairs with the release in give_up().
    if (heap.handle.load(std::memory_order_acquire) == 0) continue;
    for (std::uint32_t i = 0; i < heap.domain_count; ++i)
      if (heap.domains[i] == domain) return true;
  }
  return false;
}

std::uint64_t references(std::size_t domain) {
  std::uint64_t count = 0;
  each_registration([&](RegisteredHeap& heap, std::uint32_t i) {
    if (heap.registrations[i] != nullptr && heap.domains[i % heap.domain_count] == domain) ++count;
  });
  return count;
}

void give_back(State& all, Registration** drops) {
  each_registration([&](RegisteredHeap& heap, std::uint32_t i) {
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
  each_registration([&](RegisteredHeap& registered, std::uint32_t i) {
    Domain& domain = all.domains[registered.domains[i % registered.domain_count]];
    const auto& region = registered.regions[i / registered.domain_count];
    if (!is_to_be_reopened(domain) || region.is_left_over) return;
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

bool end_abandoned_heaps() {
  bool is_some_left = false;
  for (RegisteredHeap& heap : registered_heaps->places) {
    // Acquire: pairs with the release in abandon(). The flag goes with the place.
    if (!heap.is_abandoned.load(std::memory_order_acquire)) continue;
    std::uint64_t handle = heap.handle.load(std::memory_order_acquire);
    is_some_left |= !is_over(rdmalloc_heap_destroy(reinterpret_cast<rdmalloc_heap*>(handle)));
  }
  return is_some_left;
}

}  // namespace

const Holder heap_holder = {prepare,   has_domain,     references,
                            give_back, register_again, end_abandoned_heaps};

}  // namespace rdmalloc::regcache
