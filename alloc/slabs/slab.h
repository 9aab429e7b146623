// Slabs: spans of equal blocks, and which of their blocks are free, in bitmaps out of band.
//
// A set bit is a free block that no magazine holds. Taking blocks happens under a lock, one for
// each class and shard, and clears bits by word; giving back needs no lock: one fetch_or for each
// bitmap word that is touched, which also shows a block that is freed twice (its bit is set
// already).
//
//   set bits + blocks in magazines and depot + deferred ones (0021) + live blocks
//     + blocks on pages in purging
//     == slab_blocks                                                               (for each slab)
//   free_blocks <= set bits, equal while no give-back is between its two steps
//   a slab with set bits is listed, or a thread is on its way to list it
//
// Spans that threads cache (is_span_class) are slabs of one block without any of that; slab_take()
// and slab_give_back() leave them to cached_spans.h.
//
// Slabs belong to their class and shard (core/shard.h), never to a thread: a thread that dies owns
// nothing. "The class's lock" is that of the class in the slab's shard, which the span's word
// names.
#pragma once

#include <cstdint>

#include "alloc/pages/span.h"
#include "alloc/slabs/slab_pages.h"

namespace rdmalloc {

// Takes up to `wanted` free blocks of the class of the shard's slabs, fullest first. Within a slab
// the lowest address comes last, so that allocations that pop them walk upwards through memory.
// Returns how many.
std::uint32_t slab_take_own(unsigned shard, unsigned size_class, void** blocks,
                            std::uint32_t wanted);
// The same, without those whose pages were never used.
std::uint32_t slab_take_used(unsigned shard, unsigned size_class, void** blocks,
                             std::uint32_t wanted);
// The same of another shard's slabs: on few shards as may_take_beyond() allows, on more half as
// many blocks as slab_give_back_from() gave back to those of others.
std::uint32_t slab_take_used_of_others(unsigned shard, unsigned size_class, void** blocks,
                                       std::uint32_t wanted);
// As slab_take_own(); where the shard's slabs have none, of those that other shards can spare; else
// of a new one. 0 means no memory.
std::uint32_t slab_take(unsigned shard, unsigned size_class, void** blocks, std::uint32_t wanted);
// Gives blocks of the class back, each to the slab it is of. Aborts with the address when one is no
// block or is free already.
void slab_give_back(unsigned size_class, void* const* blocks, std::uint32_t count);
// The same of blocks that threads of the shard have no room for.
void slab_give_back_from(unsigned shard, unsigned size_class, void* const* blocks,
                         std::uint32_t count);
// Gives empty slabs that were kept for the next allocation to the page heap.
void slab_trim(unsigned size_class);
// The same for one shard, if no thread used its slabs of the class since the last call.
void slab_trim_idle(unsigned shard, unsigned size_class);
// Slabs with free blocks that a shard among several keeps although they are empty, for what it
// allocates next, and that others leave it where they are few. With one, slabs of few blocks went
// from shard to shard by way of the page heap.
inline constexpr std::uint32_t kSlabsKept = 8;
// That others leave it where they are more. With eight, each came to have slabs for all that
// threads hand on: 16 that hand on 64 to 1,024 B had 50 MiB after 25 s, and have 29.
inline constexpr std::uint32_t kSlabsLeft = 2;
// Slices of the shard's slabs, but for kSlabsKept of each class that have free blocks. Read without
// locks: a guess.
std::uint64_t slab_slices_held(unsigned shard);
// The shard of the slab that the block, which the caller holds, is of.
unsigned slab_shard_of(const void* block, unsigned size_class);
// For cache/shards.cc: makes the lists of a shard that is not counted yet; false when there is no
// memory for it.
bool slab_make_shard(unsigned shard);

// ---- pages of slabs in use (slab_pages.h), for the purge. With the purge turn. ----

// Takes pages of the slab in flight; none when there are none, or the span is no slab of this
// class.
SlabPages slab_pages_begin(SliceIndex slice, unsigned size_class);
// After each begin that returned pages; `purged` are those that were given back.
void slab_pages_end(SliceIndex slice, unsigned size_class, const SlabPages& purged);
// Whether the span is a slab, and each of its blocks that touches [low, high) free, in no cache.
// Those whose pages a purge has in flight count as free for the thread with the purge turn.
bool slab_is_free(SliceIndex slice, std::uintptr_t low, std::uintptr_t high, bool has_turn);
// Whether the purge thread is to be notified, once, when blocks are next given back to any slab
// (purge_note_slab_change). A full fence comes after it.
void slab_watch(bool wanted);
// Notifies it if so: blocks went to a slab, a heap's too, or to the depot, by a seq_cst store. Any
// thread, with no lock held.
void slab_note_change();
// Whether it still is to be notified. seq_cst.
bool slab_is_watched();

struct SlabCounters {
  std::uint64_t slabs;
  std::uint64_t blocks;
  std::uint64_t free_blocks;  // in the bitmaps
};
SlabCounters slab_counters(unsigned size_class);

// For the child of a fork: whether the lock of the class in that shard was held, or is to be taken
// for held, and making its lists anew from the spans.
void slab_orphan(unsigned shard, unsigned size_class);
bool slab_is_orphaned(unsigned shard, unsigned size_class);
void slab_rebuild(unsigned shard, unsigned size_class);

}  // namespace rdmalloc
