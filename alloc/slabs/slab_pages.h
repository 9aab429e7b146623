// Pages of slabs in use that are given back: which ones can go, taking their blocks out of reach
// and putting them back, and which of them are touched again. For ordinary slabs and for those of
// heaps of the user, whose bits of free blocks lie alike. All of it under the lock of the slab's
// class.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/pages/span.h"

namespace rdmalloc {

struct SlabShape {
  SliceIndex slice;
  std::uint32_t slices;
  std::uint32_t blocks;
  std::uint32_t block_bytes;

  std::uint32_t words() const { return (blocks + 63) / 64; }
};

inline constexpr std::uint32_t kSlabPageWords = 2;
struct SlabPages {
  std::uint64_t bits[kSlabPageWords];  // a bit for each page of the slab

  bool is_empty() const { return (bits[0] | bits[1]) == 0; }
};
inline constexpr SlabPages kAllSlabPages = {{~std::uint64_t{0}, ~std::uint64_t{0}}};

// The blocks that a purge of pages has out of reach, one slab at a time, for its end and for the
// child of a fork, where the purge ends. Written with the purge turn and under the class's lock,
// together with the bitmap and before it: what stands here while the lock is held says no more than
// that these bits may be set; while it is free, that they are clear and nobody else has the blocks.
struct SlabInPurge {
  // Its class, and above that the heap of the user that it belongs to, 0 for none; all 0: no slab
  // is in purge. One word: a destroy asks, under the lock of a class of its heap, whether the slab
  // is of these, while slabs of others come and go. Relaxed: if it is, the lock orders the rest.
  std::atomic<std::uint32_t> owner;
  bool is_abandoned;  // its heap was destroyed: the span is in purging, and free afterwards
  SlabShape shape;
  std::uint64_t blocks[kBitmapWords];

  unsigned size_class() const { return owner.load(std::memory_order_relaxed) & 0xffff; }
  std::uint16_t heap() const {
    return static_cast<std::uint16_t>(owner.load(std::memory_order_relaxed) >> 16);
  }
  bool is_of(unsigned of_class, std::uint16_t of_heap) const {
    return owner.load(std::memory_order_relaxed) == (std::uint32_t{of_heap} << 16 | of_class);
  }
  void begin(unsigned of_class, std::uint16_t of_heap) {
    owner.store(std::uint32_t{of_heap} << 16 | of_class, std::memory_order_relaxed);
  }
  void end() { owner.store(0, std::memory_order_relaxed); }
};
extern constinit SlabInPurge slab_in_purge;

// Takes the pages out of reach that hold no block that is out and are not given back already;
// none when there are none.
SlabPages slab_pages_take_out(const SlabShape& shape, unsigned size_class, std::uint16_t heap);
// Puts their blocks back, and notes which of the pages were given back.
void slab_pages_put_back(const SlabPages& purged);
// Notes pages that are given back.
void slab_pages_note_purged(const SlabShape& shape, const SlabPages& purged);

// These pages, or those on which these blocks lie, are backed again, or about to be. Of slabs with
// Span::has_purged_pages.
void slab_pages_touch(const SlabShape& shape, const SlabPages& touched);
void slab_pages_touch(const SlabShape& shape, void* const* blocks, std::uint32_t count);
// In the child of a fork: puts the blocks of a purge back that ends there. Twice does no harm but
// to Span::free_blocks, which is counted anew.
void slab_pages_end_in_child();
// In the child of a fork: none of them is given back, as nobody is told of pages there.
void slab_pages_forget(SliceIndex slice, std::uint32_t slices);

}  // namespace rdmalloc
