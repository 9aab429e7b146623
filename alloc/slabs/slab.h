// Slabs: spans of equal blocks, and which of their blocks are free, in bitmaps out of band.
//
// A set bit is a free block that no magazine holds. Taking blocks happens under the class's lock
// and clears bits by word; giving back needs no lock: one fetch_or for each bitmap word that is
// touched, which also shows a block that is freed twice (its bit is set already).
//
//   set bits + blocks in magazines and depot + live blocks == slab_blocks          (for each slab)
//   free_blocks <= set bits, equal while no give-back is between its two steps
//   a slab with set bits is listed, or a thread is on its way to list it
//
// Slabs belong to their class, never to a thread: a thread that dies owns nothing.
#pragma once

#include <cstdint>

#include "alloc/pages/span.h"

namespace rdmalloc {

// Takes up to `wanted` free blocks of the class, fullest slab first, by rising address within a
// slab. Returns how many; 0 means no memory.
std::uint32_t slab_take(unsigned size_class, void** blocks, std::uint32_t wanted);
// Gives blocks of the class back. Aborts with the address when one is no block or is free already.
void slab_give_back(unsigned size_class, void* const* blocks, std::uint32_t count);
// Gives empty slabs that were kept for the next allocation to the page heap.
void slab_trim(unsigned size_class);

struct SlabCounters {
  std::uint64_t slabs;
  std::uint64_t blocks;
  std::uint64_t free_blocks;  // in the bitmaps
};
SlabCounters slab_counters(unsigned size_class);

// For the child of a fork: who holds the class's lock, and making its lists anew from the spans.
std::uint32_t slab_lock_owner(unsigned size_class);
void slab_rebuild(unsigned size_class);

}  // namespace rdmalloc
