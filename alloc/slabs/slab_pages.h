// Pages of slabs in use, malloc's and those of heaps of the user: which of them can go, and their
// blocks while a purge has them in flight.
//
// A few blocks that are out, live or in caches, hold a whole slab in place: 512 KiB of it for one
// block of 1.5 KiB. Its pages on which none of them lies can go all the same. Their blocks, all
// free, leave the bitmap while that happens, and are handed out as before afterwards:
//
//    pages       |    0    |    1    |    2    |    3    |
//    free bits   | 1  1  1  1  1  0  1  1  1  1  1  1  1 |      0: a block that is out
//    in flight   | 0  0  0  1  1  0  1  0  0  0  0  0  0 |      pages 0, 2 and 3 go
//
// One slab at a time, with the purge turn. "The lock" is that of the slab's class.
#pragma once

#include <cstdint>

#include "alloc/core/size_class.h"
#include "alloc/pages/span.h"

namespace rdmalloc {

inline constexpr std::uint32_t kSlabPageWords = 2;
struct SlabPages {
  std::uint64_t bits[kSlabPageWords];  // a bit for each page of the slab

  bool is_empty() const { return (bits[0] | bits[1]) == 0; }
};

// ---- under the lock ----

// Takes pages in flight that hold no block that is out and are not given back already; none when
// there are none. `word` is the slab's.
SlabPages pages_take(SliceIndex slice, SpanWord word);
// Puts their blocks back; `purged` are the pages that were given back.
void pages_put(SliceIndex slice, const SlabPages& purged);
// These pages are backed again, or about to be: those of blocks that are handed out, or all, when
// the slab ends.
void pages_touch_blocks(SliceIndex slice, const ClassInfo& info, void* const* blocks,
                        std::uint32_t count);
void pages_touch_all(SliceIndex slice, std::uint32_t slices);
// Whether each block of the slab that touches [low, high) is free, in no cache. Those in flight
// count as free for the thread with the purge turn.
bool blocks_are_free(SliceIndex slice, SpanWord word, std::uintptr_t low, std::uintptr_t high,
                     bool has_turn);

// Whether a purge has pages of this slab in flight. Under a lock that the slab is put back under.
bool slab_is_in_purge(SliceIndex slice);

// ---- for the child of a fork ----

// Bits of the blocks in flight in a word of the slab's bitmap.
std::uint64_t blocks_in_purge(SliceIndex slice, std::uint32_t word);
// No page is known to be given back: no observer is notified of pages in a child.
void pages_forget(SliceIndex slice, std::uint32_t slices);
// The word of the slab with pages in flight; of kind kNone: there is none.
SpanWord pages_in_purge();
// Sets the bits of its blocks, where the purge does not go on. Twice does no harm but to
// free_blocks: the lists are to be made anew, for which the caller has orphaned the lock.
void pages_end_purge();

}  // namespace rdmalloc
