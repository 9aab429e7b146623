// Heaps of the user: allocators with spans of their own. No page holds blocks of two heaps, and
// destroying a heap gives exactly its spans back.
//
//    threads
//       |  a caller takes a shard that no other is in
//       v
//    shards    a magazine for each class, behind a lock; one shard at first, more when threads meet
//       |  halves of magazines
//       v
//    classes   slabs with free blocks, behind a lock for each class
//       |  empty slabs, large blocks
//       v
//    spans     a list and the budget, behind a lock
//       |
//       v
//    page heap, or the heap's own regions (heap_regions.h)
//
// The shards belong to the heap, not to threads. So a thread that ends leaves nothing behind, what
// the magazines of a heap hold is bounded whatever the number of threads (kMostShards shards of
// kShardBytes), and they can be emptied by anyone: for the budget, by the purge thread when no
// caller came since it looked last, and by destroy.
//
// A slab has two bits for each block, in the bitmap of its first slice: free bits in the first
// half, live bits in the second. A live block is in the program's hands.
//
//    free bits + blocks in magazines + live bits + blocks on pages in purging == blocks
//                                                                                 (for each slab)
//    span_slices == the sum of the spans whose word names the heap, <= budget_slices
//
// A live bit changes under the lock of a shard: by an atomic operation, since the blocks of one
// word may be in several shards, but while the heap has one shard by a load and a store. Free bits
// change under the lock of the class. The child of a fork believes the span words and the live
// bits, and makes all else anew (heap_rebuild_spans()).
//
// Span words name a heap by its slot, the index in the pool. All spans of a heap are gone before
// its slot is used again; handles, which the user keeps, have a generation besides.
//
// Lock order: a shard, a class, the spans, the page heap. Every function that was handed a heap
// looks at `handle` again under the first of them that it takes: destroy clears it and then passes
// through each lock, so callers that still find the heap there are waited for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/cache/magazine.h"
#include "alloc/core/lock.h"
#include "alloc/core/pool.h"
#include "alloc/core/size_class.h"
#include "alloc/heaps/heap_registrar.h"
#include "alloc/pages/free_spans.h"
#include "alloc/pages/span.h"
#include "alloc/slabs/slab_lists.h"

namespace rdmalloc {

// At once. A slot takes 12 of the 14 bits that a span word has for it.
inline constexpr std::uint32_t kMostHeaps = 4095;
// Two bits for each block would fit with 32 as well.
inline constexpr std::uint32_t kSmallestHeapBlock = 64;
inline constexpr std::uint32_t kMostShards = 16;
// Bytes of blocks in the magazines of one shard: sixteen full ones.
inline constexpr std::uint32_t kShardBytes = 16 * kMagazineBytes;

struct alignas(64) HeapClass : SlabLists {
  Lock lock;
};

struct alignas(64) HeapShard {
  Lock lock;
  std::uint32_t calls;         // for the purge thread, which empties a shard that no caller came to
  std::uint32_t calls_at_age;  // what it was when the purge thread looked
  std::uint32_t drop_cursor;   // class that is emptied next when the shard holds too much
  // Of the blocks in the magazines. Written under the lock, read for statistics.
  std::atomic<std::uint64_t> held_bytes;
  // Blocks handed out here less those given back here; a sum over the shards is what is live.
  // Written under the lock, read for statistics.
  std::atomic<std::int64_t> live_bytes;
  std::atomic<std::int64_t> live_blocks;
  Magazine* magazines[kClasses];

  std::uint64_t held() const { return held_bytes.load(std::memory_order_relaxed); }
  void count_held(std::int64_t change) {
    held_bytes.store(held() + static_cast<std::uint64_t>(change), std::memory_order_relaxed);
  }
};

// A run of slices that is the heap's as a whole, from its making until the heap's end.
struct HeapRegion {
  SliceIndex first;
  std::uint32_t slices;
  PageKind pages;  // what was put there; kAny: the arena's own
  bool is_kept;    // never to be handed out again: see HeapRegistrar::add

  SliceIndex end() const { return first + slices; }
};
inline constexpr std::uint32_t kMostRegions = 64;

// Lies in a pool: all zero at first, and again when it was destroyed.
struct alignas(64) Heap {
  // 0: none. The handle of a live heap; while it is being destroyed kEnding and the id of the
  // thread that does it. Release at the end of create pairs with acquire in heap_of_handle(). What
  // is read under one of the locks is ordered by it.
  std::atomic<std::uint64_t> handle;
  std::atomic<std::uint32_t> next_free;  // pool
  // A power of two; only grows. From 1 to 2 under the lock of the first shard, where is_alone() may
  // be relied on. Release, and acquire: live bits that were changed by a load and a store before
  // come before those that are changed by atomic operations.
  std::atomic<std::uint32_t> active_shards;
  // Written by create and grow. Relaxed: statistics may read it of a slot that is used again.
  std::atomic<std::uint64_t> budget_slices;

  // What lies above is read by each malloc and free, what follows is written by the slow paths.
  alignas(64) Lock span_lock;
  SliceIndex first_span;  // all spans, linked by Span::older and younger
  // Written under span_lock; read by any thread, relaxed.
  std::atomic<std::uint64_t> span_slices;
  std::atomic<std::uint64_t> most_span_slices;
  std::atomic<std::uint64_t> large_blocks;
  std::atomic<std::uint64_t> large_slices;
  // Of the regions, on pages of the kernel's pools.
  std::atomic<std::uint64_t> huge_2m_slices;
  std::atomic<std::uint64_t> huge_1g_slices;

  std::atomic<std::uint64_t> refusals;  // requests that found no budget or no memory. Relaxed

  // Of a heap whose memory was taken whole (heap_regions.h); 0: its spans come from the page heap.
  // Written under span_lock. Release, and acquire where it is read without: the regions are there.
  std::atomic<std::uint32_t> region_count;
  std::atomic<std::uint32_t> grower;  // the thread that adds regions, one at a time; 0: none
  HeapRegion regions[kMostRegions];
  FreeSpans free_spans;  // what is free of the regions. Under span_lock
  // Written by create. What the registrar of heaps calls it by, 0: it is not registered; and what
  // the heap's regions must be like. The first is read for statistics.
  std::atomic<std::uint32_t> place;
  RegionLimits region_limits;

  HeapClass classes[kClasses];
  HeapShard shards[kMostShards];

  bool is(std::uint64_t wanted) const { return handle.load(std::memory_order_relaxed) == wanted; }
  // Under the lock of a shard: whether there is no other, so that no other thread changes live
  // bits.
  bool is_alone() const { return active_shards.load(std::memory_order_acquire) == 1; }
};

extern constinit Pool<Heap> heaps;

// Handles: generation, slot. They are no addresses, so one that is kept too long is harmless.
inline constexpr unsigned kHandleSlotBits = 16;
inline constexpr std::uint64_t kEnding = std::uint64_t{1} << 63;
constexpr std::uint32_t slot_of(std::uint64_t handle) {
  return static_cast<std::uint32_t>(handle & ((std::uint64_t{1} << kHandleSlotBits) - 1));
}
inline std::uint16_t slot_of(const Heap& heap) {
  return static_cast<std::uint16_t>(heaps.index_of(&heap));
}
inline bool is_live(std::uint64_t handle) {
  return handle != 0 && (handle & kEnding) == 0;
}
static_assert(kMostHeaps < 1u << 14 && kMostHeaps < 1u << kHandleSlotBits);

// The class of a request of 0 <= bytes <= kSmallMax.
constexpr unsigned heap_class_of(std::size_t bytes) {
  return class_of(bytes < kSmallestHeapBlock ? kSmallestHeapBlock : bytes);
}

// Where the live bits begin.
inline constexpr std::uint32_t kLiveWord = kBitmapWords / 2;
static_assert(slab_words_in(heap_class_of(0), 1) <= kLiveWord);
static_assert(slab_words_in(class_of(kOneSliceMax + 1), 8) <= kLiveWord, "slabs of eight slices");

// The live heap that the handle names; nullptr when there is none.
inline Heap* heap_of_handle(std::uint64_t handle) {
  std::uint32_t slot = slot_of(handle);
  if (slot == 0 || slot >= heaps.used()) return nullptr;
  Heap* heap = heaps.at(slot);
  // Acquire: pairs with the release at the end of heap_create().
  return heap->handle.load(std::memory_order_acquire) == handle ? heap : nullptr;
}

// ---- heaps.cc ----

// What a heap is made of; all zero but the budget for an ordinary one.
struct HeapPlan {
  std::uint64_t budget_bytes;
  // Its memory is taken whole, when it is made: see heap_regions.h.
  bool has_regions;
  // Registered, by the registrar of heaps (heap_registrar.h).
  rdmalloc_domain* const* domains;
  std::size_t domain_count;
  std::uint32_t access;
  std::uint32_t node;  // NUMA node plus 1; 0: any
  PageKind pages;
};

// 0 or a negative errno, with nothing left behind.
int heap_create(const HeapPlan& plan, std::uint64_t* handle);
// Takes more memory for a heap of regions.
int heap_grow(std::uint64_t handle, std::uint64_t bytes);
// Frees all its blocks. 0, -EINVAL when there is no such heap (any more), or, with nothing changed,
// what its registrar says.
int heap_destroy(std::uint64_t handle);
// The same now, or later by the registrar: -EINPROGRESS.
int heap_abandon(std::uint64_t handle);

// Calls `fn` for each live block; a nonzero answer stops the walk and is returned. No lock is held
// in it. -EINVAL when there is no such heap, or none any more.
int heap_walk(std::uint64_t handle, int (*fn)(void* block, std::size_t usable_bytes, void* arg),
              void* arg);

struct HeapState {
  std::uint64_t budget_bytes;
  std::uint64_t span_bytes;
  std::uint64_t most_span_bytes;
  std::uint64_t live_bytes;
  std::uint64_t live_blocks;
  std::uint64_t refusals;
  std::uint64_t large_bytes;
  std::uint64_t large_blocks;
  std::uint64_t cached_bytes;
  std::uint64_t region_bytes;
  std::uint64_t huge_2m_bytes;  // of region_bytes: on pages of the kernel's pools
  std::uint64_t huge_1g_bytes;
};
HeapState heap_state(const Heap& heap);

// Empties the shards that no caller came to since the last call, and gives back the empty slabs of
// their heaps; with `everything`, of all. By the holder of the purge turn. Whether something is
// left to look at again.
bool heaps_age(bool everything);
// Gives up address space of heaps that were never made, as the program has lowered RLIMIT_AS to
// `limit_bytes`. Not from malloc.
void heaps_fit_limit(std::uint64_t limit_bytes);

struct HeapCounters {
  std::uint64_t heaps;
  std::uint64_t span_bytes;
  std::uint64_t live_bytes;
  std::uint64_t refusals;           // of the heaps there are
  std::uint64_t region_bytes;       // taken whole
  std::uint64_t region_span_bytes;  // the part of span_bytes that lies there
  std::uint64_t huge_2m_bytes;      // of region_bytes: on pages of the kernel's pools
  std::uint64_t huge_1g_bytes;
  std::uint64_t registered;  // heaps
};
HeapCounters heap_counters();

// At the resume of a checkpoint: heaps that were made for a NUMA node are bound to it again.
void heaps_bind_again();

// In the child of a fork, once the page heap is whole again.
void heaps_after_fork(const Forker& forker);
// There, before: the heap's lists are to be made anew.
void heap_orphan(std::uint16_t slot);

}  // namespace rdmalloc
