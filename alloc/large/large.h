// Blocks that are spans of their own and in no thread's cache: above kCachedMax, aligned to more
// than a slab grants, or above kSmallMax where the thread may cache no more.
#pragma once

#include <cstddef>

namespace rdmalloc {

// A block of at least `bytes`, aligned to `alignment` (a power of two; 64 KiB comes for free).
// `is_zero`: nullptr; or calloc's, which is told whether all bytes are known to be zero.
// nullptr, and errno ENOMEM, when there is no memory.
void* large_allocate(std::size_t bytes, std::size_t alignment, bool* is_zero);

// A block of at least `bytes` for a large block that outgrew its place: it gets room to grow.
// nullptr, and errno ENOMEM, when there is no memory.
void* large_allocate_growing(std::size_t bytes);

// Frees a large block; also where every free() ends that no slab takes: NULL returns, an address
// that is not the start of a block of ours is reported and aborts.
void large_free(void* block);

// Makes a large block fit `bytes` where it lies: true when it could.
bool large_resize(void* block, std::size_t bytes);

// Bytes of the large block at `block`; 0 when there is none.
std::size_t large_bytes(const void* block);

}  // namespace rdmalloc
