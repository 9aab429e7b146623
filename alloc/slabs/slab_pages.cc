#include "alloc/slabs/slab_pages.h"

#include <bit>

#include "alloc/fork.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/events.h"

namespace rdmalloc {

constinit SlabInPurge slab_in_purge = {};

namespace {

static_assert(std::size_t{kSlabPageWords} * 64 * 4096 >= 8 * kSliceBytes,
              "512 KiB of the smallest pages");

// A bit for each page in [first, last].
SlabPages pages_between(std::size_t first, std::size_t last) {
  SlabPages pages{};
  for (std::size_t page = first; page <= last; ++page)
    pages.bits[page / 64] |= std::uint64_t{1} << page % 64;
  return pages;
}

SlabPages pages_of(std::size_t block, const SlabShape& shape) {
  std::size_t first = block * shape.block_bytes;
  int shift = std::countr_zero(arena.page_bytes);
  return pages_between(first >> shift, (first + shape.block_bytes - 1) >> shift);
}

template <typename Visit>
void for_each_bit(std::uint64_t bits, Visit visit) {
  for (; bits != 0; bits &= bits - 1) visit(static_cast<std::uint32_t>(std::countr_zero(bits)));
}

// The part of a slab's pages that lies in its `part`-th slice.
std::uint16_t pages_in_slice(const SlabPages& pages, std::uint32_t part) {
  auto in_a_slice = static_cast<std::uint32_t>(kSliceBytes / arena.page_bytes);
  std::uint32_t first = part * in_a_slice;  // a power of two: a slice's pages lie in one word
  return static_cast<std::uint16_t>(pages.bits[first / 64] >> first % 64 &
                                    ((std::uint64_t{1} << in_a_slice) - 1));
}

// Pages on which no block that is out lies, and that are not given back yet. `blocks`, zeroed, gets
// the blocks that touch them, all of them free.
SlabPages purgeable_pages(const SlabShape& shape, std::uint64_t* blocks) {
  std::atomic<std::uint64_t>* bitmap = arena.bitmap(shape.slice);
  std::size_t used_bytes = std::size_t{shape.blocks} * shape.block_bytes;
  SlabPages pages = pages_between(0, (used_bytes - 1) >> std::countr_zero(arena.page_bytes));
  auto in_a_slice = static_cast<std::uint32_t>(kSliceBytes / arena.page_bytes);
  for (std::uint32_t part = 0; part < shape.slices; ++part) {
    std::uint64_t purged = arena.purged_pages[shape.slice + part].load(std::memory_order_relaxed);
    pages.bits[part * in_a_slice / 64] &= ~(purged << part * in_a_slice % 64);
  }
  // Givers may set bits meanwhile; what was set stays set.
  std::uint64_t is_free[kBitmapWords];
  for (std::uint32_t w = 0; w < shape.words(); ++w) {
    std::uint32_t here = shape.blocks - w * 64;
    std::uint64_t all = here < 64 ? (std::uint64_t{1} << here) - 1 : ~std::uint64_t{0};
    is_free[w] = bitmap[w].load(std::memory_order_relaxed);
    for_each_bit(all & ~is_free[w], [&](std::uint32_t bit) {
      SlabPages kept = pages_of(w * 64 + bit, shape);
      for (std::uint32_t i = 0; i < kSlabPageWords; ++i) pages.bits[i] &= ~kept.bits[i];
    });
  }
  if (pages.is_empty()) return pages;
  for (std::uint32_t w = 0; w < shape.words(); ++w)
    for_each_bit(is_free[w], [&](std::uint32_t bit) {
      SlabPages on = pages_of(w * 64 + bit, shape);
      if ((on.bits[0] & pages.bits[0]) | (on.bits[1] & pages.bits[1]))
        blocks[w] |= std::uint64_t{1} << bit;
    });
  return pages;
}

}  // namespace

SlabPages slab_pages_take_out(const SlabShape& shape, unsigned size_class, std::uint16_t heap) {
  SlabInPurge& record = slab_in_purge;
  for (std::uint64_t& bits : record.blocks) bits = 0;
  SlabPages pages = purgeable_pages(shape, record.blocks);
  record.shape = shape;
  record.is_abandoned = false;
  order_for_fork();
  record.begin(size_class, heap);
  order_for_fork();
  std::int32_t taken = 0;
  for (std::uint32_t w = 0; w < shape.words(); ++w) {
    if (record.blocks[w] == 0) continue;
    taken += std::popcount(record.blocks[w]);
    // Acquire: pairs with the release of whoever set them. The kernel is to find the pages as their
    // last users left them.
    arena.bitmap(shape.slice)[w].fetch_and(~record.blocks[w], std::memory_order_acquire);
  }
  arena.span(shape.slice).free_blocks.fetch_sub(taken, std::memory_order_acq_rel);
  // With no block held the slab could go away; pages that hold no block are never touched anyway.
  if (taken == 0) {
    record.end();
    return {};
  }
  return pages;
}

void slab_pages_put_back(const SlabPages& purged) {
  SlabInPurge& record = slab_in_purge;
  slab_pages_note_purged(record.shape, purged);
  std::int32_t given = 0;
  for (std::uint32_t w = 0; w < record.shape.words(); ++w) {
    if (record.blocks[w] == 0) continue;
    given += std::popcount(record.blocks[w]);
    // Under the lock, where nobody takes them before this purge is off the record.
    arena.bitmap(record.shape.slice)[w].fetch_or(record.blocks[w], std::memory_order_seq_cst);
  }
  arena.span(record.shape.slice).free_blocks.fetch_add(given, std::memory_order_acq_rel);
  order_for_fork();
  record.end();
}

void slab_pages_note_purged(const SlabShape& shape, const SlabPages& purged) {
  for (std::uint32_t part = 0; part < shape.slices; ++part) {
    std::uint16_t here = pages_in_slice(purged, part);
    if (here == 0) continue;
    arena.span(shape.slice).has_purged_pages = true;
    arena.purged_pages[shape.slice + part].fetch_or(here, std::memory_order_relaxed);
  }
}

void slab_pages_touch(const SlabShape& shape, const SlabPages& touched) {
  bool is_any_left = false;
  for (std::uint32_t part = 0; part < shape.slices; ++part) {
    std::atomic<std::uint16_t>& of_slice = arena.purged_pages[shape.slice + part];
    std::uint16_t purged = of_slice.load(std::memory_order_relaxed);
    auto reused = static_cast<std::uint16_t>(purged & pages_in_slice(touched, part));
    auto left = static_cast<std::uint16_t>(purged & ~reused);
    is_any_left |= left != 0;
    if (reused == 0) continue;
    of_slice.store(left, std::memory_order_relaxed);
    events_note_reuse_pages(shape.slice + part, reused);
  }
  arena.span(shape.slice).has_purged_pages = is_any_left;
}

void slab_pages_touch(const SlabShape& shape, void* const* blocks, std::uint32_t count) {
  SlabPages touched{};
  std::uintptr_t base = arena.address_of(shape.slice);
  for (std::uint32_t i = 0; i < count; ++i) {
    std::size_t offset = reinterpret_cast<std::uintptr_t>(blocks[i]) - base;
    SlabPages of_block = pages_of(offset / shape.block_bytes, shape);
    for (std::uint32_t p = 0; p < kSlabPageWords; ++p) touched.bits[p] |= of_block.bits[p];
  }
  slab_pages_touch(shape, touched);
}

void slab_pages_end_in_child() {
  // The blocks of an abandoned slab are nobody's.
  if (slab_in_purge.is_abandoned) slab_in_purge.end();
  if (slab_in_purge.size_class() != 0) slab_pages_put_back({});
}

void slab_pages_forget(SliceIndex slice, std::uint32_t slices) {
  // Which pages are given back was perhaps being changed. Nobody is told of pages in a child.
  for (std::uint32_t part = 0; part < slices; ++part)
    arena.purged_pages[slice + part].store(0, std::memory_order_relaxed);
  arena.span(slice).has_purged_pages = false;
}

}  // namespace rdmalloc
