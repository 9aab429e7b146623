// The arena: one range of addresses that all blocks come from, and the metadata arrays beside it.
//
// Reserved once with PROT_NONE and made usable from the bottom up, so every index is relative to
// `base` and any pointer at all can be looked up without a fault: one compare tells owned from not.
// Where address space is short (RLIMIT_AS), less is reserved at first, and arena and arrays grow,
// each inside its window. The windows are as wide as the limit may be raised to.
//
//   base                       frontier        committed          reserved             extent
//    |-- spans, used and free ----|-- zero, RW ----|-- PROT_NONE ----|-- not ours yet ----|
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/pages/span.h"

namespace rdmalloc {

// The words of one slab's bitmap. The first eight of each slice, a cache line, lie beside those of
// its neighbours, and the next 24 behind the first ones of all 64: a slab of eight slices, which
// has no more than eight, needs no page of bitmaps for itself and one more. Behind those in turn
// lie the last 32, of slabs of 16-byte blocks and for the live bits of heaps of the user.
//
//     |s0: 0-7|s1: 0-7| ... |s0: 8-31     |s1: 8-31     | ... |s0: 32-63      |s1: 32-63      | ...
//
inline constexpr std::uint32_t kBitmapGroup = 64;  // slices whose words lie together
inline constexpr std::uint32_t kLastWords = 32;    // of a slice: its last words
class Bitmap {
 public:
  Bitmap(std::atomic<std::uint64_t>* bitmaps, SliceIndex slice) {
    // The slice's group begins at group * kBitmapWords. Each pointer is to where word 0 would lie.
    std::size_t at = slice, number = at % kBitmapGroup, group = at - number;
    first_ = bitmaps + group * (kBitmapWords - kFirst) + at * kFirst;
    others_ = bitmaps + group * (kBitmapWords - kOthers) + at * kOthers + kBefore * kFirst;
    last_ = bitmaps + (2 * at - number) * kLastWords + kBefore * kLastWords;
  }
  std::atomic<std::uint64_t>& operator[](std::uint32_t word) const {
    if (word >= kLastWords) [[unlikely]]
      return last_[word];
    return (word < kFirst ? first_ : others_)[word];
  }
  // A word that is from 32 on.
  std::atomic<std::uint64_t>& last(std::uint32_t word) const { return last_[word]; }

 private:
  static constexpr std::size_t kFirst = 8;
  static constexpr std::size_t kOthers = kLastWords - kFirst;
  static constexpr std::size_t kBefore = kBitmapGroup - 1;
  static_assert(kBitmapWords == 2 * kLastWords);
  std::atomic<std::uint64_t>* first_;
  std::atomic<std::uint64_t>* others_;
  std::atomic<std::uint64_t>* last_;
};

enum class ChunkMark : std::uint8_t {
  kNone,
  kHuge,    // huge pages were asked for
  kPassed,  // passed over as the frontier moved, and not used since
};

struct Arena {
  // Read by every fast path; written once, before the first block is handed out. While the extent
  // is 0 every address is foreign. Its release store comes last and pairs with the acquire in
  // extent(): a thread that sees it sees base and the tables.
  std::atomic<std::size_t> published_extent{0};
  std::uintptr_t base = 0;
  // Class of the blocks in each slice: 0 free or never used, kLargeClass for spans of one block,
  // kHeapClass for spans of a heap of the user.
  // Bytes are written under the page heap's lock before a block of the span is handed out; a thread
  // that frees such a block got its address from there by way of the program's own ordering.
  std::atomic<std::uint8_t>* class_map = nullptr;

  // First slice of the span that a slice belongs to: all slices of a span in use, the two ends of a
  // free one.
  std::atomic<SliceIndex>* first = nullptr;
  Span* spans = nullptr;
  std::atomic<std::uint64_t>* bitmaps = nullptr;  // kBitmapWords for each slice: see Bitmap
#if RDMALLOC_CHECKED
  std::atomic<std::uint64_t>* in_use = nullptr;  // kBitmapWords for each slice (slabs/in_use.h)
#endif
  std::atomic<std::uint8_t>* page_events = nullptr;  // PageEvent bits of each slice (events.h)
  // A bit for each page of a slice. Purged: of a slab in use, given back since it was last touched;
  // written under its class's lock. Reused: touched again, to be notified (events.h).
  std::atomic<std::uint16_t>* purged_pages = nullptr;
  std::atomic<std::uint16_t>* reused_pages = nullptr;
  // The page heap of each segment (segments.h): a shard's number, 0 for the central one.
  std::atomic<std::uint8_t>* heap_of_segment = nullptr;

  // A byte for each chunk (huge_pages.h), since a block of 400 GiB marks all of its chunks. Null
  // until the first is marked. Release: pairs with the acquire of readers, the table is there.
  std::atomic<std::atomic<ChunkMark>*> huge_chunks{nullptr};

  SliceIndex reserved = 0;   // slices reserved, under the page heap's lock
  SliceIndex committed = 0;  // slices usable, likewise
  std::size_t page_bytes = 0;
  std::size_t room_bytes = 0;  // address space there was at first; pools are sized by it

  std::size_t extent() const {
    return published_extent.load(std::memory_order_acquire);
  }
  bool holds(std::uintptr_t address) const {
    std::size_t length = extent();  // first: base is only good once this is
    return address - base < length;
  }
  SliceIndex slice_of(std::uintptr_t address) const {
    return static_cast<SliceIndex>((address - base) >> kSliceShift);
  }
  SliceIndex slice_of(const void* address) const {
    return slice_of(reinterpret_cast<std::uintptr_t>(address));
  }
  std::uintptr_t address_of(SliceIndex slice) const {
    return base + (static_cast<std::uintptr_t>(slice) << kSliceShift);
  }
  Span& span(SliceIndex slice) const {
    return spans[slice];
  }
  Bitmap bitmap(SliceIndex slice) const {
    return {bitmaps, slice};
  }
  std::uint8_t class_at(SliceIndex slice) const {
    return class_map[slice].load(std::memory_order_relaxed);
  }
};

extern constinit Arena arena;

// Reserves the arena and its metadata. 0, or -ENOMEM with everything undone. Called once, from
// initialisation; may be called again after a failure.
int arena_reserve();
// Makes slices [0, wanted) usable, growing geometrically. Under the page heap's lock. 0 or -ENOMEM.
int arena_commit(SliceIndex wanted);
// Whether it would. Only the kernel knows what its limits leave, so it is asked, and what it
// granted is given up again. Under the page heap's lock.
bool arena_would_commit(SliceIndex wanted);
// Makes Arena::heap_of_segment usable, which is not before there is a second shard. Under the
// central page heap's lock. 0 or -ENOMEM.
int arena_want_segments();
// Makes Arena::huge_chunks usable, which is not before a block or a slab wants huge pages. Under
// the central page heap's lock. 0 or -ENOMEM.
int arena_want_huge_chunks();
// Gives up what is reserved and not usable yet, as the program has lowered RLIMIT_AS: the kernel
// counts it. It is reserved anew where it is needed, as far as the limit allows. Under the page
// heap's lock, and not from malloc.
void arena_give_up_rest();
// Whether huge pages may be asked for at all (RDMALLOC_HUGE).
bool arena_may_be_huge();
// Asks for huge pages under slices that are committed and were never used. Refused where the kernel
// has none: nothing is lost but speed.
void arena_ask_for_huge(SliceIndex begin, SliceIndex end);

}  // namespace rdmalloc
