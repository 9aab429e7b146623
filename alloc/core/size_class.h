// Size classes: which block sizes exist, and all that follows from a size at compile time.
//
//   class 0          no class: an address that is not ours, or a free slice. Its bin is always both
//                    empty and full, so the fast paths need no test for it.
//   class 1 .. 16    multiples of 16 up to 256 bytes
//   class 17 .. 72   eight to a doubling from 256 bytes to 32 KiB: at most 12.5 % is lost; beside
//                    other threads half of them serve (cache/coarse_classes.h)
//   class 73 .. 77   2, 4, 8, 16 and 32 KiB once more, in slabs of one slice: for blocks above
//                    1 KiB where no slab of eight slices is to be had (cache/take_back.h)
//   class 78 .. 81   spans of 64, 128, 192 and 256 KiB that threads cache: slabs of one block
//   kLargeClass      a span that is one block; its bin is like that of class 0
//   kHeapClass       blocks of a heap of the user (heaps/heap.h), of any size; likewise
//
// No block has less than 16 bytes, what every malloc aligns to. One of 8 would break real programs:
// Open MPI 5.0's mtl ofi, where sessions are used, allocates 4 bytes and writes an int 12 bytes
// behind their start, for which glibc's smallest block, of 24, has room. Nothing is known to need
// more than 16.
//
// Small block sizes that are powers of two are naturally aligned, since their slabs are; spans are
// aligned to a slice. Blocks of more than 512 bytes begin with a cache line. (With classes 16 apart
// up to 1 KiB, 104 in all, memory lay in more slabs that were not full and in more magazines:
// larson took a fifth longer.)
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace rdmalloc {

inline constexpr std::size_t kSliceShift = 16;
inline constexpr std::size_t kSliceBytes = std::size_t{1} << kSliceShift;  // unit of span metadata
inline constexpr std::size_t kChunkBytes = std::size_t{2} << 20;           // a huge page
inline constexpr std::uint32_t kSlicesPerChunk = kChunkBytes / kSliceBytes;

inline constexpr std::size_t kFineMax = 256;       // up to here classes are 16 apart
inline constexpr std::size_t kOneSliceMax = 1024;  // up to here a slab is one slice, then eight
inline constexpr std::size_t kSmallMax = 32768;    // above, a block is a span of its own
inline constexpr unsigned kFineClasses = kFineMax / 16;
inline constexpr unsigned kSmallClasses = kFineClasses + 8 * 7;  // seven doublings to 32 KiB
inline constexpr unsigned kFirstShortClass = kSmallClasses + 1;
inline constexpr unsigned kShortClasses = 5;
// Spans of up to so many slices may be blocks that threads cache, one class for each length. Above,
// spans are buffers, whose places the page heap keeps for the next one of their length.
inline constexpr unsigned kFirstSpanClass = kFirstShortClass + kShortClasses;
inline constexpr unsigned kSpanClasses = 4;
inline constexpr std::size_t kCachedMax = kSpanClasses * kSliceBytes;
inline constexpr unsigned kClasses = kFirstSpanClass + kSpanClasses;  // with class 0
inline constexpr unsigned kLargeClass = kClasses;
inline constexpr unsigned kHeapClass = kClasses + 1;
// Bins a thread has: the classes, and the two whose blocks no bin holds.
inline constexpr unsigned kBins = kClasses + 2;

// What a span for a block of `bytes` is long; one of no bytes has an address of its own.
constexpr std::uint32_t slices_for(std::size_t bytes) {
  return static_cast<std::uint32_t>(((bytes == 0 ? 1 : bytes) + kSliceBytes - 1) >> kSliceShift);
}

// Class of 256 < bytes <= 32 KiB: the three bits below the leading one of bytes - 1.
constexpr unsigned geometric_class_of(std::size_t bytes) {
  std::size_t last = bytes - 1;
  unsigned exponent = static_cast<unsigned>(std::bit_width(last)) - 1;
  return kFineClasses + (exponent - 8) * 8 + static_cast<unsigned>(last >> (exponent - 3)) - 7;
}
// Class of kSmallMax < bytes <= kCachedMax.
constexpr unsigned span_class_of(std::size_t bytes) {
  return kFirstSpanClass + static_cast<unsigned>((bytes - 1) >> kSliceShift);
}
constexpr bool is_span_class(unsigned size_class) {
  return size_class >= kFirstSpanClass && size_class < kClasses;
}
// Class of 1 <= bytes <= kCachedMax; of 0 it is class 0, which the slow path turns into class 1.
constexpr unsigned class_of(std::size_t bytes) {
  if (bytes > kSmallMax) return span_class_of(bytes);
  return bytes <= kFineMax ? static_cast<unsigned>((bytes + 15) / 16) : geometric_class_of(bytes);
}

constexpr std::uint32_t block_bytes_of(unsigned size_class) {
  if (is_span_class(size_class))
    return static_cast<std::uint32_t>((size_class - kFirstSpanClass + 1) * kSliceBytes);
  if (size_class >= kFirstShortClass) return (2 * kOneSliceMax) << (size_class - kFirstShortClass);
  if (size_class <= kFineClasses) return size_class * 16;
  unsigned step = size_class - kFineClasses - 1;
  unsigned exponent = 8 + step / 8;
  return (8 + step % 8 + 1) << (exponent - 3);
}

// The class of slabs of one slice that serves for this one; 0 for a class whose slabs are that
// short. Its blocks are powers of two, so they are aligned to what the class's are.
constexpr unsigned short_class_of(unsigned size_class) {
  std::uint32_t bytes = block_bytes_of(size_class);
  if (bytes <= kOneSliceMax) return 0;
  return kFirstShortClass + static_cast<unsigned>(std::bit_width((bytes - 1) / (2 * kOneSliceMax)));
}

// What a block of so many bytes aligned to `alignment` (a power of two) takes of its class: a
// multiple of both. Slabs are aligned to their size, so the class of that many bytes serves: either
// its blocks' step is a multiple of the alignment, or such multiples are block sizes themselves.
constexpr std::size_t aligned_bytes_of(std::size_t alignment, std::size_t bytes) {
  return (bytes + alignment - 1) & (0 - alignment);
}
// That class; 0 when only a span will do.
constexpr unsigned aligned_class_of(std::size_t alignment, std::size_t bytes) {
  if (alignment > kSmallMax || bytes > kSmallMax) return 0;
  return class_of(bytes == 0 ? alignment : aligned_bytes_of(alignment, bytes));
}
constexpr bool aligned_classes_are_right(std::size_t alignment) {
  for (std::size_t bytes = alignment; bytes <= kSmallMax; bytes += alignment)
    if (block_bytes_of(class_of(bytes)) % alignment != 0) return false;
  return true;
}
static_assert([] {
  for (std::size_t alignment = 16; alignment <= kSmallMax; alignment *= 2)
    if (!aligned_classes_are_right(alignment)) return false;
  return true;
}());

// offset * block < 2^40 for each offset in a slab, so the reciprocal divides exactly.
inline constexpr unsigned kReciprocalShift = 40;

// Slices of the longest slabs: those of blocks above 1 KiB.
inline constexpr std::uint32_t kMostSlabSlices = 8;

struct ClassInfo {
  std::uint32_t block_bytes;
  std::uint32_t slab_slices;   // 1 or kMostSlabSlices; of a span class its length
  std::uint32_t slab_aligned;  // slices that slabs are aligned to, a power of two
  std::uint32_t slab_blocks;   // blocks of a slab
  std::uint64_t reciprocal;    // ceil(2^40 / block_bytes): index = offset * reciprocal >> 40
  std::uint16_t magazine_max;  // blocks of a magazine that goes through the depot, at most
  std::uint16_t bin_max;       // blocks of it that a thread's bin works on at most
  std::uint16_t whole;         // with so many it goes through the depot, not back to the slabs
  std::uint16_t depot_max;     // such magazines the depot keeps at most
};

// Blocks that a program takes and frees in one go, for which a thread's bin has room: with one
// magazine's length each such batch came to the slow path, one of 4 KiB four times.
inline constexpr std::uint32_t kBatchBlocks = 64;
// Slots of a magazine; 62 of them and its header are 512 bytes (cache/magazine.h).
inline constexpr std::uint32_t kMagazineSlots = 62;
// Bytes of blocks in one magazine, and in one class of the depot. Large enough that blocks up to
// 512 B travel 62 at a time; small enough that what a thread cycles through in a few classes stays
// in an L2 cache. With 16 KiB the programs sh6 and own-sets take a seventh and a tenth longer,
// larson a sixteenth, and none of them has less memory resident at its peak.
inline constexpr std::uint32_t kMagazineBytes = 32768;
// But so many blocks at least, however large: a thread that replaces the blocks of a few dozen
// classes has up to so many of each free by turns. With 4 it took a spare for the loaded magazine
// at each twelfth operation (1 to 32 KiB). Through the depot go magazines from kLeastWhole on:
// threads that hand blocks over would wait for more of them, and find them in no cache.
inline constexpr std::uint32_t kLeastBlocks = 12;
inline constexpr std::uint32_t kLeastSpans = 8;
inline constexpr std::uint32_t kLeastWhole = 4;
// What a bin of long blocks may hold beyond two magazines: a batch of 4 KiB. With as many blocks of
// 32 KiB a thread that goes through all sizes would have room for two of them. A span has a share
// of its own.
inline constexpr std::uint32_t kBinBytes = (kBatchBlocks + kLeastBlocks) * 4096;
inline constexpr std::uint32_t kDepotBytes = 2 << 20;
// Bytes of blocks that all classes together may hold in the depot while one of them is idle.
inline constexpr std::uint32_t kDepotIdleBytes = 4 << 20;

// Blocks that a bin works on at most, all of them within reach of the fast paths, as far as the
// thread may hold them (cache/shares.h): a batch and the magazine that comes or goes beside it, up
// to kBinBytes, or two magazines. What a thread holds of a class goes to and fro between full and
// empty: between two magazines of a bin, one trip in each direction remained for ever wherever it
// held more than one of them.
constexpr std::uint32_t longest_bin_of(unsigned size_class, std::uint32_t magazine_max) {
  std::uint32_t two = 2 * magazine_max, most = kBatchBlocks + magazine_max,
                of_bytes = kBinBytes / block_bytes_of(size_class);
  if (most > of_bytes && !is_span_class(size_class)) most = of_bytes;
  return most > two ? most : two;
}
struct ClassTable {
  ClassInfo of[kBins];
};

constexpr ClassTable make_class_table() {
  ClassTable table{};
  for (unsigned c = 1; c < kClasses; ++c) {
    ClassInfo& info = table.of[c];
    info.block_bytes = block_bytes_of(c);
    bool is_short = c >= kFirstShortClass || info.block_bytes <= kOneSliceMax;
    info.slab_slices = is_span_class(c) ? c - kFirstSpanClass + 1 : is_short ? 1 : kMostSlabSlices;
    info.slab_aligned = is_span_class(c) ? 1 : info.slab_slices;
    info.slab_blocks =
        static_cast<std::uint32_t>(info.slab_slices * kSliceBytes / info.block_bytes);
    info.reciprocal =
        ((std::uint64_t{1} << kReciprocalShift) + info.block_bytes - 1) / info.block_bytes;
    std::uint32_t blocks = kMagazineBytes / info.block_bytes;
    if (blocks > kMagazineSlots) blocks = kMagazineSlots;
    std::uint32_t least = is_span_class(c) ? kLeastSpans : kLeastBlocks;
    info.whole = static_cast<std::uint16_t>(blocks < kLeastWhole ? kLeastWhole : blocks);
    info.magazine_max = static_cast<std::uint16_t>(blocks < least ? least : blocks);
    info.bin_max = static_cast<std::uint16_t>(longest_bin_of(c, info.magazine_max));
    std::uint32_t magazines = kDepotBytes / (info.magazine_max * info.block_bytes);
    if (magazines < 8 && !is_span_class(c)) magazines = 8;
    info.depot_max = static_cast<std::uint16_t>(magazines);
  }
  return table;
}

inline constexpr ClassTable kClassTable = make_class_table();
inline constexpr const ClassInfo& class_info(unsigned size_class) {
  return kClassTable.of[size_class];
}

// Words of 64 bits that a slab's bitmap needs at most: 64 KiB of 16-byte blocks.
inline constexpr std::uint32_t kBitmapWords = 64;

static_assert(class_of(kSmallMax) == kSmallClasses && block_bytes_of(kSmallClasses) == kSmallMax);
static_assert(class_of(kCachedMax) == kClasses - 1 && block_bytes_of(kClasses - 1) == kCachedMax);
static_assert(block_bytes_of(kFirstSpanClass - 1) == kSmallMax);
static_assert(short_class_of(class_of(kOneSliceMax + 1)) == kFirstShortClass &&
              short_class_of(class_of(4096)) == kFirstShortClass + 1 &&
              short_class_of(class_of(4097)) == kFirstShortClass + 2 &&
              short_class_of(kSmallClasses) == kFirstSpanClass - 1);

}  // namespace rdmalloc
