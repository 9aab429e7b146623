// Ownership queries: lock-free reads of the span words.
#include <errno.h>
#include <rdmalloc/rdmalloc.h>

#include "alloc/cache/depot.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/core/sized_struct.h"
#include "alloc/heaps/heap_spans.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/purge_turn.h"
#include "alloc/slabs/slab.h"

using namespace rdmalloc;

namespace {

// Fills `range` for the span that begins at `slice`; false when it is not in use.
bool describe(SliceIndex slice, rdmalloc_range* range) {
  const Span& span = arena.span(slice);
  SpanWord word = span.load();
  if (!is_in_use(word.kind)) return false;
  range->base = reinterpret_cast<void*>(arena.address_of(slice));
  range->length = std::size_t{word.slices} << kSliceShift;
  range->block_bytes = is_slab(word.kind) ? class_info(word.size_class).block_bytes : range->length;
  range->generation = span.generation.load(std::memory_order_relaxed);
  bool is_one_block = range->block_bytes == range->length;
  range->flags = is_one_block ? RDMALLOC_RANGE_LARGE : RDMALLOC_RANGE_SLAB;
  range->heap = nullptr;
  if (word.heap != 0) {
    std::uint64_t handle = heaps.at(word.heap)->handle.load(std::memory_order_relaxed);
    range->flags |= RDMALLOC_RANGE_HEAP;
    // None while it is being destroyed.
    if (is_live(handle)) range->heap = reinterpret_cast<rdmalloc_heap*>(handle);
  }
  return true;
}

// The last address of a range that is not empty; one that wraps ends with the address space, so
// that an observer may clamp its length to SIZE_MAX.
std::uintptr_t last_of(const void* base, std::size_t length) {
  auto begin = reinterpret_cast<std::uintptr_t>(base);
  std::uintptr_t last = begin + length - 1;
  return last < begin ? UINTPTR_MAX : last;
}

std::uintptr_t last_of_arena() {
  return arena.base + arena.extent() - 1;
}

}  // namespace

extern "C" {

bool rdmalloc_owns(const void* ptr) {
  auto address = reinterpret_cast<std::uintptr_t>(ptr);
  return arena.holds(address) && arena.slice_of(address) < page_heap_frontier() &&
         arena.slice_of(address) != 0;
}

int rdmalloc_range_of(const void* ptr, struct rdmalloc_range* range) {
  if (int error = check_struct(range)) return error;
  auto address = reinterpret_cast<std::uintptr_t>(ptr);
  if (!arena.holds(address)) return -EFAULT;
  SliceIndex slice = arena.slice_of(address);
  if (arena.class_at(slice) == 0) return -EFAULT;
  SliceIndex first = arena.first[slice].load(std::memory_order_relaxed);
  rdmalloc_range found = {};
  if (!describe(first, &found)) return -EFAULT;
  // The caller keeps a block alive, so the span stands still; without one this may be a torn
  // answer, but never one that does not hold the address.
  if (address - reinterpret_cast<std::uintptr_t>(found.base) >= found.length) return -EFAULT;
  write_struct(found, range);
  return 0;
}

int rdmalloc_range_foreach(rdmalloc_range_fn fn, void* arg) {
  if (fn == nullptr) return -EINVAL;
  SliceIndex end = page_heap_frontier();
  for (SliceIndex slice = end == 0 ? 0 : 1; slice < end; slice = page_heap_next(slice, end)) {
    rdmalloc_range range{};
    range.size = sizeof range;
    if (describe(slice, &range)) {
      int result = fn(&range, arg);
      if (result != 0) return result;
    }
  }
  return 0;
}

bool rdmalloc_range_is_idle(const void* base, size_t length) {
  // Pairs with the fence in publish_locked() (page_heap.cc); see the header for what it is good
  // for.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  auto begin = reinterpret_cast<std::uintptr_t>(base);
  if (length == 0 || arena.extent() == 0) return true;
  std::uintptr_t last = last_of(base, length);
  std::uintptr_t arena_last = last_of_arena();
  if (last < arena.base || begin > arena_last) return true;
  if (begin < arena.base) begin = arena.base;
  if (last > arena_last) last = arena_last;
  // Acquire: pairs with the release in page_heap_free().
  for (SliceIndex slice = arena.slice_of(begin); slice <= arena.slice_of(last); ++slice)
    if (arena.class_map[slice].load(std::memory_order_acquire) != 0) return false;
  return true;
}

bool rdmalloc_range_is_free(const void* base, size_t length) {
  if (rdmalloc_range_is_idle(base, length)) return true;
  fork_check();
  bool has_turn = purge_turn_is_mine();
  auto low = reinterpret_cast<std::uintptr_t>(base);
  std::uintptr_t last = last_of(base, length);
  // The range touches the arena, since it is not idle.
  if (low < arena.base) low = arena.base;
  if (last > last_of_arena()) last = last_of_arena();
  std::uintptr_t high = last + 1;
  SliceIndex end = arena.slice_of(last) + 1;
  for (SliceIndex slice = arena.slice_of(low); slice < end; ++slice) {
    // Acquire: pairs with the release in page_heap_free().
    if (arena.class_map[slice].load(std::memory_order_acquire) == 0) continue;
    SliceIndex first = arena.first[slice].load(std::memory_order_relaxed);
    std::uintptr_t from = arena.address_of(slice), to = arena.address_of(slice + 1);
    if (from < low) from = low;
    if (to > high) to = high;
    if (!slab_is_free(first, from, to, has_turn) && !heap_slab_is_free(first, from, to, has_turn))
      return false;
  }
  return true;
}

void rdmalloc_caches_flush(void) {
  fork_check();
  cache_flush_this_thread();
  depot_empty();
}

int rdmalloc_arena_extent(uintptr_t* base, size_t* length) {
  if (base == nullptr || length == nullptr) return -EINVAL;
  if (!ensure_initialised()) return -ENOMEM;
  *base = arena.base;
  *length = arena.extent();
  return 0;
}

}  // extern "C"
