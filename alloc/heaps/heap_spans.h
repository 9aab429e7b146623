// The spans of a heap of the user: taking and freeing them within its budget, and the slabs and
// their bits.
#pragma once

#include <cstdint>

#include "alloc/heaps/heap.h"
#include "alloc/pages/arena.h"
#include "alloc/slabs/block_position.h"
#include "alloc/slabs/slab_pages.h"

namespace rdmalloc {

// A block of a heap, found by its address.
struct HeapBlock {
  Heap* heap;
  SliceIndex slice;           // first of the span
  std::uint64_t packed_word;  // of the span
  std::uint32_t index;        // in its slab; 0 for a large block
  bool is_start;              // the address is the start of a block

  SpanWord word() const { return unpack(packed_word); }
  std::size_t bytes() const {
    return word().kind == SpanKind::kHeapLarge ? std::size_t{word().slices} << kSliceShift
                                               : block_bytes_of(word().size_class);
  }
};

// Whether the address lies in a span of a heap; such a span stays what it is while the caller has a
// live block in it.
inline bool is_of_heap(const void* address) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  return arena.holds(at) && arena.class_at(arena.slice_of(at)) == kHeapClass;
}
// What lies at an address in a span of a heap. `heap` is nullptr when the span is none by now.
// Inline, as what follows: malloc and free are made of them.
inline HeapBlock heap_block_at(const void* address) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  SliceIndex slice = arena.first[arena.slice_of(at)].load(std::memory_order_relaxed);
  HeapBlock block{nullptr, slice, arena.span(slice).word.load(std::memory_order_acquire), 0, false};
  SpanWord word = block.word();
  bool is_slab_of_heap = word.kind == SpanKind::kHeapSlab;
  if (!is_slab_of_heap && word.kind != SpanKind::kHeapLarge) return block;
  block.heap = heaps.at(word.heap);
  std::uintptr_t offset = at - arena.address_of(slice);
  if (!is_slab_of_heap) {
    block.is_start = offset == 0;
    return block;
  }
  const ClassInfo& info = class_info(word.size_class);
  block.index = index_at(offset, info);
  // What is left at the end of a slab is too short for a block.
  block.is_start = std::uintptr_t{block.index} * info.block_bytes == offset &&
                   offset + info.block_bytes <= std::uintptr_t{word.slices} << kSliceShift;
  return block;
}

// ---- live bits. Under the lock of a shard. They return what the bit was. ----

inline std::atomic<std::uint64_t>& live_word(SliceIndex slice, std::uint32_t word) {
  return arena.bitmap(slice).last(kLiveWord + word);
}
struct LiveBit {
  std::atomic<std::uint64_t>& word;
  std::uint32_t index;

  std::uint64_t mask() const { return std::uint64_t{1} << index % 64; }
};
inline LiveBit live_bit_of(const HeapBlock& block) {
  return {live_word(block.slice, block.index / 64), block.index};
}
// Of a block that came from a slab of the heap.
inline LiveBit live_bit_of(const void* block, const ClassInfo& info) {
  auto at = reinterpret_cast<std::uintptr_t>(block);
  SliceIndex slice = arena.first[arena.slice_of(at)].load(std::memory_order_relaxed);
  std::uintptr_t offset = at - arena.address_of(slice);
  std::uint32_t index = index_at(offset, info);
  return {live_word(slice, index / 64), index};
}
// Relaxed: what orders a free before the next malloc of the block is the shard's lock, and the
// class's.
inline bool set_live(const Heap& heap, const LiveBit& bit) {
  std::uint64_t mask = bit.mask();
  if (!heap.is_alone()) return (bit.word.fetch_or(mask, std::memory_order_relaxed) & mask) != 0;
  std::uint64_t before = bit.word.load(std::memory_order_relaxed);
  bit.word.store(before | mask, std::memory_order_relaxed);
  return (before & mask) != 0;
}
inline bool clear_live(const Heap& heap, const LiveBit& bit) {
  std::uint64_t mask = bit.mask();
  if (!heap.is_alone()) return (bit.word.fetch_and(~mask, std::memory_order_relaxed) & mask) != 0;
  std::uint64_t before = bit.word.load(std::memory_order_relaxed);
  bit.word.store(before & ~mask, std::memory_order_relaxed);
  return (before & mask) != 0;
}

// ---- slabs. Under the lock of a shard, or of none. ----

// Takes up to `wanted` free blocks of the class, of the slabs there are, or of a new one when these
// have none. 0: the budget or the memory is used up, or the heap is no more.
std::uint32_t heap_slab_take(Heap& heap, unsigned size_class, void** blocks, std::uint32_t wanted);
// Gives blocks back that are not live. True when spans were freed, or the purge thread waits for
// free blocks: the caller calls heap_note_freed() once it holds no lock. So do all that follow.
[[nodiscard]] bool heap_slab_give_back(Heap& heap, unsigned size_class, void* const* blocks,
                                       std::uint32_t count);
// Frees the empty slabs that were kept for the next allocation.
[[nodiscard]] bool heap_slab_trim(Heap& heap);

// ---- pages of slabs in use (slabs/slab_pages.h), for the purge. With the purge turn. ----

// Whether pages of the heap's slabs go one by one: those of regions stay.
bool heap_gives_pages(const Heap& heap);
// Takes pages of a slab in flight; none when there are none, or the span is no slab of a heap.
SlabPages heap_pages_begin(SliceIndex slice);
// After each begin that returned pages. The heap may have been destroyed meanwhile.
void heap_pages_end(SliceIndex slice, const SlabPages& purged);
// As slab_is_free().
bool heap_slab_is_free(SliceIndex slice, std::uintptr_t low, std::uintptr_t high, bool has_turn);

// Whether the budget leaves `slices` more. With or without a lock.
bool heap_has_budget(const Heap& heap, std::uint64_t slices);

// ---- large blocks. With no lock held. ----

// 0 when the budget or the memory is used up, or the heap is not `handle` any more.
SliceIndex heap_large_take(Heap& heap, std::uint64_t handle, std::uint32_t slices,
                           std::size_t alignment, bool* is_zero);
// The same for a block that outgrew its place: it gets room to grow. 0 is no reason to fail.
SliceIndex heap_large_take_growing(Heap& heap, std::uint64_t handle, std::uint32_t slices);
// False when no large block of the heap begins there.
bool heap_large_free(Heap& heap, SliceIndex slice);
// Makes it fit where it lies: true when it could. `*has_freed` as above.
bool heap_large_resize(Heap& heap, SliceIndex slice, std::uint32_t slices, bool* has_freed);

// ---- for destroy and the child of a fork ----

// Frees every span of the heap and forgets its slabs. No thread can reach the heap.
void heap_free_all_spans(Heap& heap);
// Makes the lists anew from the span words. `is_exact`: the free bits, too, from the live bits; no
// magazine holds a block then.
void heap_rebuild_spans(Heap& heap, bool is_exact);

}  // namespace rdmalloc
