// Registered heaps at a checkpoint (checkpoint/checkpoint.h).
#include <utility>

#include "alloc/heaps/heap.h"
#include "alloc/pages/arena.h"
#include "regcache/checkpoint/checkpoint.h"
#include "regcache/core/drop.h"
#include "regcache/core/make.h"
#include "regcache/core/state.h"
#include "regcache/heaps/registered_heap.h"

namespace rdmalloc::regcache {
namespace {

// Calls fn(heap, its handle, index) for each registration of a heap's, [region][domain].
template <class Fn>
void each_registration(State& all, Fn fn) {
  for (RegisteredHeap& registered : all.heaps) {
    // Acquire: pairs with the release in give_up().
    std::uint64_t handle = registered.handle.load(std::memory_order_acquire);
    if (handle == 0) continue;
    std::uint32_t regions = registered.region_count.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < regions * registered.domain_count; ++i) fn(registered, handle, i);
  }
}

}  // namespace

std::uint64_t heap_references(State& all, std::size_t domain) {
  std::uint64_t count = 0;
  each_registration(all, [&](RegisteredHeap& heap, std::uint64_t, std::uint32_t i) {
    if (heap.registrations[i] != nullptr && heap.domains[i % heap.domain_count] == domain) ++count;
  });
  return count;
}

void let_go_of_heaps(State& all, Registration** drops) {
  each_registration(all, [&](RegisteredHeap& heap, std::uint64_t, std::uint32_t i) {
    Registration* reg = std::exchange(heap.registrations[i], nullptr);
    store_key(heap.keys[i], {});
    if (reg == nullptr) return;
    std::size_t domain = heap.domains[i % heap.domain_count];
    LockGuard guard(all.domains[domain].lock);
    let_go(reg, &drops[domain]);
  });
}

int register_heaps_again(State& all) {
  int first_error = 0;
  each_registration(all, [&](RegisteredHeap& registered, std::uint64_t handle, std::uint32_t i) {
    Domain& domain = all.domains[registered.domains[i % registered.domain_count]];
    const Heap* heap = heap_of_handle(handle);
    if (heap == nullptr || !is_to_be_reopened(domain)) return;
    const HeapRegion& region = heap->regions[i / registered.domain_count];
    Registration*& reg = registered.registrations[i];
    int error = make_heaps(domain, arena.address_of(region.first),
                           std::size_t{region.slices} << kSliceShift, registered.access, &reg);
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

}  // namespace rdmalloc::regcache
