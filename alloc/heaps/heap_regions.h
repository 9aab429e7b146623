// Heaps whose memory is taken whole, when they are made: those that are registered, so that malloc
// in them never has to (I1), and those of pages that must be asked for by themselves. All spans of
// such a heap lie in its regions, and nothing else does, from the making of the heap until its end
// (I13):
//
//    region   |#####|   free   |##|######|      free      |      one registration in each domain
//
//    region slices == slices of its spans + slices on free_spans              (under the span lock)
//
// A region is as long as one registration may be, and no block crosses from one to the next, though
// they may be neighbours. Its pages are of the kind that the heap asked for (pages/region_pages.h);
// where it asked for none, of the one that RDMALLOC_HUGE names, or, for all that one create or grow
// takes, the arena's own. They are backed at the beginning and stay; what is free in it is out of
// the page heap's sight, so no purge takes it (I3).
#pragma once

#include <cstdint>

#include "alloc/heaps/heap.h"

namespace rdmalloc {

// Whether spans of this heap come from its regions. Any moment while the heap is there.
inline bool has_regions(const Heap& heap) {
  return heap.region_count.load(std::memory_order_relaxed) != 0;
}

// ---- under the span lock ----

// Takes a span, which is kReserved until it is published. 0: there is none.
SliceIndex region_take(Heap& heap, std::uint32_t slices, std::size_t alignment);
void region_free(Heap& heap, SliceIndex slice);
// Grows a large block where it lies. False when what is behind it is in use, or another region.
bool region_grow(Heap& heap, SliceIndex slice, std::uint32_t slices);
void region_shrink(Heap& heap, SliceIndex slice, std::uint32_t slices);
// The lists of what is free, made anew from the words.
void regions_rebuild(Heap& heap);

// ---- with no lock held; calls the registrar of heaps ----

// Adds regions of `bytes` together, backed by pages and registered. By one thread at a time. 0, or
// a negative errno with nothing left behind and a warning that says what to do.
int regions_add(Heap& heap, std::uint64_t handle, std::uint64_t bytes);
// Gives all of them back, but for those with a bit in `kept`. No span is left in them. Pages of
// another kind than the arena's stay there until region_pages_restore().
void regions_end(Heap& heap, std::uint64_t kept);
// Binds the regions to the heap's NUMA node again: a process that was restored from a checkpoint
// has its pages wherever they were written. What can't be is said, and stays where it is.
void regions_bind_again(Heap& heap);

}  // namespace rdmalloc
