// Segments: what the page heap is divided into among shards.
//
//   arena     | central | shard 1 | shard 2 | shard 1 | central  central | shard 3 | ...
//             0        4 MiB     8 MiB ...
//
// All addresses come from the central page heap, which is the first shard's too: a program of one
// thread has no other. Each further shard has a page heap of its own, of the same kind, behind a
// lock of its own. It is made of segments that it takes from the central one, and what is too long
// for it is the central one's business. What is freed goes to the heap that the segment belongs to;
// neighbours of different heaps are never joined.
//
// A shard keeps a few segments that are free as a whole and gives back those beyond: dirty ones are
// what the next shard that lacks one gets. So what a shard can hold and does not use is bounded by
// kept segments and the rests of those where something lives; all of it is dirty, retained or clean
// as in the central heap, purged by age, and bounded by the ceiling. Before an allocation fails,
// all shards give what is free back, and then are asked themselves (page_heap_take.cc).
//
// The design is that of snmalloc's local ranges and of jemalloc's arenas, at the grain of a
// segment.
#pragma once

#include <cstdint>

#include "alloc/pages/span.h"

namespace rdmalloc {

// The longest span that a shard's own heap serves; while shards are few, and their threads do not
// meet at the central heap. Spans of a quarter of a segment to a whole one leave much of it unused:
// two threads with eight blocks of 1 to 4 MiB each, 32 MiB at most, held 138 MiB in them, and 95 of
// the central heap's; sixteen on as many processors move 0.2 cache lines an operation, and 3.6.
inline constexpr std::uint32_t kSegmentMost = kSegmentSlices;
inline constexpr std::uint32_t kSegmentMostOfFew = kSegmentSlices / 4;
inline constexpr unsigned kFewShards = 4;

// Makes the page heap of a shard; false: no memory, and its threads use the central one.
bool page_heap_make_shard(unsigned shard);

// Gives all segments that are free as a whole to the central heap. No lock is held.
void segments_gather();

// How much may be dirty at all, of which shards may keep a part as whole segments.
void segments_fit(std::uint64_t ceiling_bytes);

}  // namespace rdmalloc
