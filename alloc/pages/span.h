// Spans: what the allocator knows of each run of 64 KiB slices. All of it lies outside the memory
// it describes (I4), in arrays indexed by slice that are as long as the arena.
//
//     slice      0    1    2    3    4    5    6    7    8 ...            frontier
//              +----+----+---------+----+-------------------+----+------+- - - - -
//     spans    |rsv |slab| large   |free|  slab of 512 KiB  |free| large|  never used
//              +----+----+---------+----+-------------------+----+------+- - - - -
//     class_map   0    7   L    L    0    60 60 60 60 ...     0    L
//     first       0    1   2    2    4    5  5  5  5          13   14
//
// Spans tile [0, frontier) without a gap. The word of the first slice is the truth: kind, class and
// length in one 64-bit store, so that a reader at any moment (a fork child, range_foreach)
// sees a tiling. Everything else here can be rebuilt from the words.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/core/shard.h"
#include "alloc/core/size_class.h"

namespace rdmalloc {

// What shards take of the arena at once (segments.h): 4 MiB.
inline constexpr std::uint32_t kSegmentSlices = (std::size_t{4} << 20) / kSliceBytes;

// How much of a segment is free. With its heap's lock; of the central one's, once there are shards.
struct SegmentFree {
  std::uint8_t slices;
  std::uint8_t clean_slices;  // of them
};

// Index of a slice in the arena; 0 is never handed out and means "none".
using SliceIndex = std::uint32_t;

enum class SpanKind : std::uint8_t {
  kNone = 0,      // slice was never part of a span
  kReserved,      // not for allocation: slice 0, or a span between two states
  kFreeClean,     // free; its pages read as zero
  kFreeDirty,     // free; its pages are backed and hold old bytes
  kFreeRetained,  // the same, left by a buffer: slabs don't cut it up while it is young
  kPurging,       // in flight: not handed out while its pages are given back (I3)
  kSlab,          // blocks of one class
  kLarge,         // one block
  kHeapSlab,      // the same two, of a heap of the user (heaps/heap.h)
  kHeapLarge,
  kHeapFree,  // of a region of such a heap (heaps/heap_regions.h): free, but for that heap only
  kQuick,     // free, for a block of that length only (page_heap_quick.cc)
  kRetired,   // such a region whose heap is no more, before plain pages are back (region_pages.h)
};
constexpr bool is_slab(SpanKind kind) {
  return kind == SpanKind::kSlab || kind == SpanKind::kHeapSlab;
}
constexpr bool is_large(SpanKind kind) {
  return kind == SpanKind::kLarge || kind == SpanKind::kHeapLarge;
}
constexpr bool is_in_use(SpanKind kind) {
  return is_slab(kind) || is_large(kind);
}
constexpr bool is_dirty(SpanKind kind) {
  return kind == SpanKind::kFreeDirty || kind == SpanKind::kFreeRetained;
}
constexpr bool is_free(SpanKind kind) {
  return kind == SpanKind::kFreeClean || is_dirty(kind);
}

// A large block of at least this many slices, more than 128 KiB, is a buffer: from there on glibc
// maps blocks one by one, and programs transfer them. Where one lay the next one is to lie, with
// its registration alive.
inline constexpr std::uint32_t kBufferSlices = 3;

inline constexpr unsigned kNodeMask = 0x3f;  // Span::node

struct SpanWord {
  SpanKind kind;
  std::uint8_t size_class;
  bool is_zero;  // a large span that was clean when calloc took it, which did not write to it
  std::uint32_t slices;
  std::uint16_t heap = 0;  // 14 bits: the heap of the user that the span belongs to, 0 for none
  std::uint8_t shard = 0;  // of a slab that is no heap's: its shard
};
//     63      50 49   42   41   40   34 33  30 29      0
//    | heap 14  | shard 8 |zero| class 7 | kind 4 | slices 30 |
constexpr std::uint64_t pack(SpanWord word) {
  return static_cast<std::uint64_t>(word.slices) | static_cast<std::uint64_t>(word.kind) << 30 |
         static_cast<std::uint64_t>(word.size_class) << 34 |
         static_cast<std::uint64_t>(word.is_zero) << 41 |
         static_cast<std::uint64_t>(word.shard) << 42 | static_cast<std::uint64_t>(word.heap) << 50;
}
constexpr SpanWord unpack(std::uint64_t bits) {
  return {static_cast<SpanKind>(bits >> 30 & 0xf),
          static_cast<std::uint8_t>(bits >> 34 & 0x7f),
          (bits >> 41 & 1) != 0,
          static_cast<std::uint32_t>(bits & 0x3fffffff),
          static_cast<std::uint16_t>(bits >> 50),
          static_cast<std::uint8_t>(bits >> 42 & 0xff)};
}
static_assert(static_cast<unsigned>(SpanKind::kRetired) < 16 && kHeapClass < 128 &&
              kShardLimit <= 256);
// What the class map says of a span's slices.
constexpr std::uint8_t map_class_of(SpanWord word) {
  if (!is_in_use(word.kind)) return 0;
  return word.heap != 0 ? static_cast<std::uint8_t>(kHeapClass) : word.size_class;
}

// Whether `a` comes before `b`: times in milliseconds wrap after 49 days.
constexpr bool is_before(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) < 0;
}

struct alignas(64) Span {
  // Written under the lock of the page heap that the span is of; read by any thread. Release: pairs
  // with the acquire of readers outside the lock (range_of, range_foreach), who then read
  // generation.
  std::atomic<std::uint64_t> word;
  std::atomic<std::uint64_t> generation;

  // Links by slice index. Free span: list of its bin. Slab: list of its class's bucket.
  SliceIndex next;
  SliceIndex previous;
  // Free dirty or retained span: list by age, oldest first. Span of a heap: list of its spans. Run
  // of a quick list: in `older`, its number.
  SliceIndex younger;
  SliceIndex older;
  union {
    // Free span that is backed, or run of a quick list: when it was freed (os::coarse_ms,
    // wrapping).
    std::uint32_t freed_ms;
    // Slab only. Blocks from this one on were never handed out, and lie on pages that were clean;
    // UINT32_MAX where no page was. Under the lock of its class. Of a span that threads cache,
    // until its first thread has looked: 0 where its pages were clean.
    std::uint32_t new_from;
  };

  // Slab only. Bits set in its bitmap, kept as: set bits first, then add; take bits, then subtract.
  // So at any moment  set bits >= free_blocks, and equal while no flush is between its two steps.
  // Signed: a refill may subtract what a flush has not added yet.
  std::atomic<std::int32_t> free_blocks;
  // Slab only. Whether it is on a list of its class. Written under the class's lock.
  std::atomic<std::uint8_t> is_listed;
  std::uint8_t bucket : 2;  // which list
  // The node whose threads touched its pages first, as far as is known; read while it is free and
  // backed. Written under the page heap's lock while the span is out of use.
  std::uint8_t node : 6;
  // Where the next refill begins to look in the bitmap: at the lowest free block there is, so that
  // few pages are touched. A hint, for a give-back beside a refill may be overwritten. Relaxed.
  std::atomic<std::uint16_t> scan_word;

  // All under the page heap's lock.
  bool has_grown : 1;  // large span: by realloc
  // Written at each cut and read while retained: cut off from the span before it, with which it is
  // one again once both are free. Retained spans are joined no further than that.
  bool is_rest : 1;
  bool is_left_alone : 1;       // within take_backed(): a place that it leaves alone
  SpanKind purged_from : 4;     // span in purging: the family that it returns to when it is refused
  SegmentFree free_in_segment;  // first slice of a segment, whatever it is part of
  // Slab only. Some of its pages are given back (Arena::purged_pages). Under the class's lock.
  bool has_purged_pages;
  // Slices of the longest buffer that began here: so far a cached registration may lie. Written
  // at each cut and read while retained.
  std::uint32_t longest_buffer;

  // Slab only. Counts, wrapping, how often blocks were taken from it. Written under the class's
  // lock.
  std::atomic<std::uint16_t> takes;
  // Slab only, of the purge thread's walk (slab_purge.h): takes and free blocks when it last came
  // by, since when they have been so (coarse_ms, wrapping), and whether no more pages are to be had
  // of them. Relaxed: written with the purge turn, and by the thread that makes the slab, perhaps
  // in the middle of a look at what was here before; then the slab is looked at once more or once
  // less, until it changes.
  std::atomic<bool> is_settled;
  // Large span only: a thread keeps it for its next block (cache/long_block.h). Relaxed: written by
  // the thread that has it, and read by a free() that should not be.
  std::atomic<bool> is_kept;
  std::atomic<std::uint32_t> seen;
  std::atomic<std::uint32_t> seen_since_ms;

  SpanWord load() const { return unpack(word.load(std::memory_order_acquire)); }
  void store(SpanWord value) { word.store(pack(value), std::memory_order_release); }
};
static_assert(sizeof(Span) == 64, "one cache line: neighbours are written by different threads");

}  // namespace rdmalloc
