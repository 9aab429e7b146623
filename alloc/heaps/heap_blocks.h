// Blocks of heaps of the user: what the entry points do with them, by way of a heap's handle or of
// the block's address alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alloc/heaps/heap_spans.h"

namespace rdmalloc {

// A block of at least `bytes`, in heap_allocate() aligned to `alignment` (a power of two). nullptr
// with errno: ENOMEM when the budget or the memory is used up, EINVAL when there is no such heap.
// `*is_zero` tells whether its bytes are known to be zero.
void* heap_malloc(std::uint64_t handle, std::size_t bytes);
void* heap_allocate(std::uint64_t handle, std::size_t bytes, std::size_t alignment, bool* is_zero);

// Where free() ends for a block of a heap. Aborts with the address when it is none, or free.
void heap_block_free(void* block);
// Usable bytes of the block at an address in a heap's span; 0 when there is none.
std::size_t heap_block_bytes(const void* block);
// realloc() of a heap's block: it stays in its heap.
void* heap_block_resize(void* block, std::size_t bytes);

// What freeing blocks asks for (heap_spans.h). With no lock held.
void heap_note_freed();
// Empties a shard's magazines; of all shards of a heap, and frees its empty slabs. Whether spans
// were freed, as in heap_spans.h. The first under the shard's lock, the second with no lock held.
[[nodiscard]] bool heap_shard_flush(Heap& heap, HeapShard& shard);
[[nodiscard]] bool heap_flush(Heap& heap);

}  // namespace rdmalloc
