// Magazines: arrays of pointers to free blocks of one class. A block holds no link (I4), so the
// pointers live here, outside the arena, and travel between threads by the whole array.
//
//    header            slots
//   +----+-----+------+----+----+----+- - - -+----+
//   |next|count| NULL | p0 | p1 | p2 |  ...  |p61 |   512 bytes, eight cache lines
//   +----+-----+------+----+----+----+- - - -+----+
//                ^                ^top (one past the last block)        ^end
//
// "Empty" is found by the value: below slot 0 lies a NULL, so popping from an empty magazine loads
// it. "Full" is top == end. There is no counter to keep on the fast path.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/core/pool.h"
#include "alloc/core/size_class.h"

namespace rdmalloc {

struct alignas(64) Magazine {
  std::atomic<std::uint32_t> next_free;  // in a pool or a depot stack
  std::uint32_t count;                   // blocks in it while no bin works on it
  void* bottom;                          // always NULL: what a pop from an empty magazine finds
  void* slots[kMagazineSlots];
};
static_assert(sizeof(Magazine) == 512);
static_assert(offsetof(Magazine, slots) == offsetof(Magazine, bottom) + sizeof(void*));

// A short magazine is a line of its thread's own: the head of a magazine, and its first slots.
// Eight of them are cut from a magazine, which is a sheet then. What a class begins with needs no
// more: 64 threads of ten blocks had 280 KiB of magazines, and 40 of short ones.
inline constexpr std::uint32_t kShortSlots = 6;
inline constexpr std::uint32_t kShortsOfSheet = 8;
static_assert(sizeof(Magazine) / kShortsOfSheet == offsetof(Magazine, slots[kShortSlots]));

// A pair is two neighbours of the pool, which a bin works on as on one run of slots: the second
// one's header are slots too. What a thread takes and frees again in one go lies within it. The
// depot's are single ones: blocks are copied on their way. A pair is never two magazines again: a
// thread that pops from the pool may still read next_free of what it saw there.
inline constexpr std::uint32_t kPairSlots =
    (2 * sizeof(Magazine) - offsetof(Magazine, slots)) / sizeof(void*);
static_assert(kPairSlots == 126);

// What a bin works on.
enum class Length : std::uint8_t { kShort, kWhole, kPair };

// What the fast paths see of a magazine. Written by the thread it belongs to only.
struct Bin {
  void** top;  // one past the last block
  void** end;  // where it is full
};

extern constinit Pool<Magazine> magazines;

}  // namespace rdmalloc
