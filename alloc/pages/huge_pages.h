// Which chunks of the arena are backed by huge pages.
//
// A huge page makes 512 page faults one and 512 TLB entries one, and all of its 2 MiB are resident
// from the first touch on. That pays where the program touches all of it and costs memory
// everywhere else: the rest of a large block's last page, the tail of a slab, a size class that a
// program hardly uses. So the arena has small pages, also where the kernel's setting is `always`
// (MADV_NOHUGEPAGE), but for two kinds of addresses that were never used before:
//
//   large blocks of kHugeBlockSlices and more    the chunks that the block covers wholly
//   slabs of blocks of up to kHugeSlabBlock      new chunks, once the heap is large and its latest
//                                                slabs are full: what is backed and not in use is
//                                                part of one chunk then
//
// The kernel keeps a mapping of its own for each range of addresses that differs from its
// neighbours, 65,530 of them in a process: there are at most kHugeRanges such ranges.
//
// A chunk is asked for before any page of it is used, never later (I1). All calls under the
// central page heap's lock, but for huge_is_chunk() and huge_is_any(): of slices in use, or of the
// heap whose lock is held.
#pragma once

#include "alloc/pages/span.h"

namespace rdmalloc {

inline constexpr std::uint32_t kHugeBlockSlices = (std::size_t{8} << 20) / kSliceBytes;
inline constexpr std::uint32_t kHugeSlabBlock = 4096;

// Whether the first touch of any part of the chunk that begins at this slice backs all of it.
bool huge_is_chunk(SliceIndex chunk);
// Whether any chunk that [begin, end) touches is such a one.
bool huge_is_any(SliceIndex begin, SliceIndex end);

// Called before a slab of small blocks takes addresses from the frontier on: asks for the next
// chunks where that is worth it.
void huge_ask_for_slabs(SliceIndex frontier);
// The same for a new segment of that shard's heap, whose lock is held too.
void huge_ask_for_segment(SliceIndex begin, SliceIndex end, unsigned heap);
// Called before the slices from the frontier to `end` are used. Returns the end to use instead:
// where that lies in a huge page, the end of the page, which is backed with its first slice.
SliceIndex huge_end(SliceIndex end);
// Called for new slices that one large block is to take: asks for the chunks it covers.
void huge_ask_for_block(SliceIndex begin, SliceIndex end);
// Called for whole chunks whose mapping is a new one: asks for those that had huge pages.
void huge_ask_again(SliceIndex begin, SliceIndex end);

}  // namespace rdmalloc
