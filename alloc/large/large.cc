#include "alloc/large/large.h"

#include <errno.h>

#include "alloc/cache/long_block.h"
#include "alloc/cache/take_back.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/core/report.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/in_flight.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {
namespace {

// The first slice of the large block that starts at `block`; 0 when none does.
SliceIndex slice_of_block(const void* block) {
  auto address = reinterpret_cast<std::uintptr_t>(block);
  if (!arena.holds(address) || address % kSliceBytes != 0) return 0;
  SliceIndex slice = arena.slice_of(address);
  if (arena.class_at(slice) != kLargeClass) return 0;
  return arena.first[slice].load(std::memory_order_relaxed) == slice ? slice : 0;
}
// Of one that the program has not freed. Reads the span's record, which a free() is not to wait
// for.
SliceIndex slice_in_use(const void* block) {
  SliceIndex slice = slice_of_block(block);
  return slice != 0 && !arena.span(slice).is_kept.load(std::memory_order_relaxed) ? slice : 0;
}

[[noreturn]] void report_wild_free(const void* block) {
  auto address = reinterpret_cast<std::uintptr_t>(block);
  if (!arena.holds(address))
    report_fatal_address("free() of an address that malloc never returned", block);
  SliceIndex slice = arena.slice_of(address);
  bool is_start =
      address % kSliceBytes == 0 && arena.first[slice].load(std::memory_order_relaxed) == slice;
  if (arena.class_at(slice) == kLargeClass && !is_start)
    report_fatal_address("free() of an address inside a block, not its start", block);
  report_fatal_address("double free(), or free() of an address that malloc never returned", block);
}

// A large span for the request; 0 when there is no memory.
SliceIndex take_slices(std::size_t bytes, std::size_t alignment, bool* is_zero) {
  // A caller that asks for zeroes may write few of them.
  TakenFor what = is_zero != nullptr ? TakenFor::kZeroes : TakenFor::kBuffer;
  bool is_unused = false;
  if (is_zero == nullptr) is_zero = &is_unused;
  if (!ensure_initialised()) return 0;
  fork_check();
  if (bytes > arena.extent() || alignment > arena.extent()) return 0;
  std::uint32_t slices = slices_for(bytes);
  unsigned shard = cache_shard_for_large();
  *is_zero = false;
  if (alignment <= kSliceBytes) {
    if (SliceIndex slice = cache_take_long(slices)) return slice;
    if (SliceIndex slice = page_heap_take_quick(shard, slices)) return slice;
  }
  MemoryWait wait;
  for (;;) {
    SliceIndex slice = page_heap_take_large(shard, slices, alignment, is_zero, 0, what);
    if (slice != 0 && *is_zero) cache_give_up_spans(slices);
    purge_note_new_pages();
    if (slice != 0 || page_heap_is_over_limit(slices) || !wait.again()) return slice;
  }
}

[[gnu::cold, gnu::noinline]] SliceIndex take_after_take_back(std::size_t bytes,
                                                             std::size_t alignment, bool* is_zero) {
  if (bytes > arena.extent() || alignment > arena.extent()) return 0;
  TakeBack take_back;
  while (take_back.again(slices_for(bytes)))
    if (SliceIndex slice = take_slices(bytes, alignment, is_zero)) return slice;
  return 0;
}

}  // namespace

void* large_allocate(std::size_t bytes, std::size_t alignment, bool* is_zero) {
  SliceIndex slice = take_slices(bytes, alignment, is_zero);
  if (slice == 0) slice = take_after_take_back(bytes, alignment, is_zero);
  if (slice == 0) {
    errno = ENOMEM;
    return nullptr;
  }
  return reinterpret_cast<void*>(arena.address_of(slice));
}

void* large_allocate_growing(std::size_t bytes) {
  if (bytes <= arena.extent() / 4) {
    fork_check();
    std::uint32_t slices = slices_for(bytes);
    bool is_new = false;
    if (SliceIndex slice = page_heap_take_growing(cache_shard_for_large(), slices, &is_new)) {
      // Arrays leave a span of each length that they grow through in the thread's cache.
      if (is_new) cache_give_up_spans(slices);
      purge_note_new_pages();
      return reinterpret_cast<void*>(arena.address_of(slice));
    }
  }
  return large_allocate(bytes, 1, nullptr);
}

void large_free(void* block) {
  if (block == nullptr) return;
  SliceIndex slice = slice_of_block(block);
  if (slice == 0) report_wild_free(block);
  if (cache_keep_long(slice)) return;
  if (!page_heap_free(slice)) report_wild_free(block);
  purge_note_dirty();
}

bool large_resize(void* block, std::size_t bytes) {
  fork_check();
  SliceIndex slice = slice_in_use(block);
  if (slice == 0) report_wild_free(block);
  if (bytes > arena.extent()) return false;
  std::uint32_t slices = slices_for(bytes), have = arena.span(slice).load().slices;
  if (slices == have) return true;
  if (slices > have) {
    bool has_grown = page_heap_grow(slice, slices);
    purge_note_new_pages();
    return has_grown;
  }
  page_heap_shrink(slice, slices);
  purge_note_dirty();
  return true;
}

std::size_t large_bytes(const void* block) {
  SliceIndex slice = slice_in_use(block);
  return slice == 0 ? 0 : std::size_t{arena.span(slice).load().slices} << kSliceShift;
}

}  // namespace rdmalloc
