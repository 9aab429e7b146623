// Which chunks of the arena are backed by huge pages.
//
// A huge page makes 512 page faults one and 512 TLB entries one, and all of its 2 MiB are resident
// from the first touch on. That pays where the program touches all of it and costs memory
// everywhere else: the rest of a large block's last page, the tail of a slab, a size class that a
// program hardly uses. So the arena has small pages, also where the kernel's setting is `always`
// (MADV_NOHUGEPAGE), but for addresses that were never used before:
//
//   blocks of kHugeBlockSlices and more   the chunks that the block covers wholly, of what the
//                                         program is to write (not of calloc's zeroes)
//   anything                              new chunks, where the program was seen to touch what it
//                                         takes: what it took last on small pages is resident
//
// What is seen (mincore) earns huge pages for a share of the heap's size. After those there are
// small pages again, to be looked at: of a huge page the kernel can't tell what was touched.
//
// The kernel keeps a mapping of its own for each range of addresses that differs from its
// neighbours, 65,530 of them in a process: there are at most kHugeRanges such ranges.
//
// A chunk is asked for before any page of it is used, never later (I1).
//
// All calls under the central page heap's lock, but for huge_is_chunk() and huge_is_any(), of
// slices in use or of the heap whose lock is held; huge_is_earned() and huge_is_any_passed(), which
// are hints without it; and huge_split(), with no lock.
#pragma once

#include <atomic>

#include "alloc/pages/page_heap.h"

namespace rdmalloc {

inline constexpr std::uint32_t kHugeBlockSlices = (std::size_t{8} << 20) / kSliceBytes;

// The chunk that a slice lies in, and the first chunk that begins at a slice or after it.
constexpr SliceIndex chunk_of(SliceIndex slice) {
  return slice & ~(kSlicesPerChunk - 1);
}
constexpr SliceIndex chunk_after(SliceIndex slice) {
  return chunk_of(slice + kSlicesPerChunk - 1);
}

// Whether the first touch of any part of the chunk that begins at this slice backs all of it.
bool huge_is_chunk(SliceIndex chunk);
// Whether any chunk that [begin, end) touches is such a one.
bool huge_is_any(SliceIndex begin, SliceIndex end);

// Whether the program will touch all of such a span, as far as anything is known beforehand.
constexpr bool is_for_huge(std::uint32_t slices, TakenFor what) {
  return slices >= kHugeBlockSlices && what != TakenFor::kZeroes;
}

// Called for slices beyond the frontier, never used, which one span is to take: asks for those of
// the chunks that begin there for which it is worth it.
void huge_ask(SliceIndex begin, SliceIndex end, TakenFor what);
// The same for a new segment of a shard's heap, in which so many slices are in use.
void huge_ask_for_segment(SliceIndex begin, SliceIndex end, std::uint64_t used);

// What the frontier moved over for a block at a far multiple: new still, and where blocks are to
// lie next. Runs shorter than a huge block are not noted.
void huge_note_passed(SliceIndex begin, SliceIndex end);
// Whether any chunk is such. Whether all of these are.
namespace detail {
extern constinit std::atomic<std::uint32_t> passed_chunks;
}
inline bool huge_is_any_passed() {
  return detail::passed_chunks.load(std::memory_order_relaxed) != 0;
}
bool huge_was_passed(SliceIndex begin, SliceIndex end);
// Called before any of these slices is used: their chunks are new no more.
void huge_note_use(SliceIndex begin, SliceIndex end);
// As huge_ask(), for what was passed over of slices below the frontier. For any heap: segments of
// shards have none.
void huge_ask_where_passed(SliceIndex begin, SliceIndex end, TakenFor what);

// Called for memory in flight, before its pages go. Of a huge page at either end a part may be in
// use and not touched yet: that touch would back all of it anew, what was given back too (I7). So
// the kernel is made to have small pages there: it splits the zeroes that it maps for a read.
void huge_split(std::uintptr_t base, std::size_t bytes);
// Whether the program is known to touch what it takes for that.
bool huge_is_earned(TakenFor what);
// When chunks were asked for last (coarse_ms). Perhaps longer ago than 32 bits tell.
std::int64_t huge_asked_ms();
// Called for whole chunks whose mapping is a new one: asks for those that had huge pages.
void huge_ask_again(SliceIndex begin, SliceIndex end);

}  // namespace rdmalloc
