// The keys of registered heaps, as the public functions that regcache.h describes.
#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/state.h"
#include "regcache/heaps/registered_heap.h"

using namespace rdmalloc;
using namespace rdmalloc::regcache;

namespace {

// A registered heap, in the allocator and here.
struct Found {
  const Heap* heap;
  const RegisteredHeap* registered;
  std::uint32_t regions;
};

int find(rdmalloc_heap* handle, Found* found) {
  fork_check();
  auto id = reinterpret_cast<std::uintptr_t>(handle);
  found->heap = heap_of_handle(id);
  if (found->heap == nullptr) return -EINVAL;
  std::uint32_t place = found->heap->place.load(std::memory_order_relaxed);
  if (place == 0) return -EINVAL;
  found->registered = registered_heap(place, id);
  if (found->registered == nullptr) return -ECHILD;
  // Acquire: pairs with the release in regions_add(), which comes after the keys'.
  found->regions = found->heap->region_count.load(std::memory_order_acquire);
  return 0;
}

// 0, or -EAGAIN while keys are not there or change: odd turns, from a quiesce to its resume.
int read_key(const rdmalloc_key& from, rdmalloc_key* key) {
  std::atomic<std::uint32_t>& turn = state()->keys_turn;
  // Acquire: pairs with the release at the end of a resume, after which the keys are there.
  std::uint32_t before = turn.load(std::memory_order_acquire);
  auto& keys = const_cast<rdmalloc_key&>(from);
  key->lkey = std::atomic_ref(keys.lkey).load(std::memory_order_relaxed);
  key->rkey = std::atomic_ref(keys.rkey).load(std::memory_order_relaxed);
  key->handle = std::atomic_ref(keys.handle).load(std::memory_order_relaxed);
  key->generation = std::atomic_ref(keys.generation).load(std::memory_order_relaxed);
  // Before the second look: what was read of a change, its odd turn is seen too.
  std::atomic_thread_fence(std::memory_order_acquire);
  bool is_whole = (before & 1) == 0 && turn.load(std::memory_order_relaxed) == before;
  return is_whole ? 0 : -EAGAIN;
}

std::uintptr_t base_of(const HeapRegion& region) {
  return arena.address_of(region.first);
}
std::size_t length_of(const HeapRegion& region) {
  return std::size_t{region.slices} << kSliceShift;
}

}  // namespace

extern "C" RDMALLOC_API int rdmalloc_heap_key(rdmalloc_heap* handle, size_t domain_index,
                                              const void* addr, size_t length, rdmalloc_key* key) {
  Found found;
  if (int error = find(handle, &found)) return error;
  const RegisteredHeap& registered = *found.registered;
  if (key == nullptr || length == 0 || domain_index >= registered.domain_count) return -EINVAL;
  if (state()->domains[registered.domains[domain_index]].has_failed()) return -ENODEV;
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  for (std::uint32_t i = 0; i < found.regions; ++i) {
    const HeapRegion& region = found.heap->regions[i];
    std::uintptr_t inside = low - base_of(region);
    if (inside >= length_of(region) || length > length_of(region) - inside) continue;
    if (registered.regions[i].is_left_over) break;
    return read_key(registered.keys[i * std::size_t{registered.domain_count} + domain_index], key);
  }
  return -EFAULT;
}

extern "C" RDMALLOC_API int rdmalloc_heap_region(rdmalloc_heap* handle, size_t index,
                                                 rdmalloc_heap_region_info* wanted) {
  Found found;
  if (int error = check_struct(wanted)) return error;
  if (int error = find(handle, &found)) return error;
  std::uint32_t at = 0;
  for (std::size_t before = 0; at < found.regions; ++at)
    if (!found.registered->regions[at].is_left_over && before++ == index) break;
  if (at == found.regions) return -ENOENT;
  const HeapRegion& region = found.heap->regions[at];
  std::size_t domain_count = found.registered->domain_count;
  rdmalloc_heap_region_info info = {sizeof info, reinterpret_cast<void*>(base_of(region)),
                                    length_of(region), domain_count,
                                    found.registered->keys + at * domain_count};
  write_struct(info, wanted);
  return 0;
}
