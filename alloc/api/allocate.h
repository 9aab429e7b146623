// The entry points' common core: what malloc and all its relatives are made of. "No memory" is
// nullptr with errno ENOMEM, set where it is found out, so that the fast paths end in jumps, not in
// calls with something left to do.
#pragma once

#include <cstddef>

#include "alloc/cache/thread_cache.h"
#include "alloc/core/size_class.h"

namespace rdmalloc {

// Above this no object can be (PTRDIFF_MAX: pointer differences must fit).
inline constexpr std::size_t kLargestRequest = PTRDIFF_MAX;

// nullptr, with errno set.
void* out_of_memory();

void* allocate_zeroed(std::size_t bytes);
void* reallocate(void* block, std::size_t bytes);
std::size_t usable_bytes(const void* block);

// A block that this thread holds already; nullptr when that is not what it takes.
[[gnu::always_inline]] inline void* try_allocate(std::size_t bytes) {
  if (bytes > kStepMax) [[unlikely]]
    return nullptr;
  return cache_try_allocate_at(bin_offset_of(bytes));
}
// What it takes otherwise. Cold, and by size, not class: the fast path need not keep the class.
void* allocate_slow(std::size_t bytes);

[[gnu::always_inline]] inline void* allocate(std::size_t bytes) {
  void* block = try_allocate(bytes);
  if (block == nullptr) [[unlikely]]
    return allocate_slow(bytes);
  return block;
}

// What is not taken by size alone: the thread has no block, or it takes a span.
void* allocate_aligned_slow(std::size_t alignment, std::size_t bytes);

// `alignment` is a power of two.
[[gnu::always_inline]] inline void* allocate_aligned(std::size_t alignment, std::size_t bytes) {
  // Of alignments up to 32 KiB, and the shortest spans too, which are aligned to a slice.
  if ((alignment | bytes) >= kSliceBytes) [[unlikely]]
    return allocate_aligned_slow(alignment, bytes);
  void* block = try_allocate(aligned_bytes_of(alignment, bytes));
  if (block == nullptr) [[unlikely]]
    return allocate_aligned_slow(alignment, bytes);
  return block;
}

// What the thread's cache does not take at once. noexcept: operator delete may jump to it.
void release_slow(void* block, unsigned size_class) noexcept;

[[gnu::always_inline]] inline void release(void* block) {
  std::size_t extent = arena.extent();  // before base: see arena.h
  std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(block) - arena.base;
  if (offset >= extent) [[unlikely]] {
    if (block != nullptr) release_slow(block, 0);  // not ours
    return;
  }
  // Relaxed: written before the block was handed out; see arena.h.
  unsigned size_class = arena.class_map[offset >> kSliceShift].load(std::memory_order_relaxed);
  if (!cache_try_free(block, size_class)) [[unlikely]]
    release_slow(block, size_class);
}

}  // namespace rdmalloc
