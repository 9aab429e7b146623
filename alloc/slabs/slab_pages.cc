// Which pages of a slab in use can go, and its blocks while they are in flight.
#include "alloc/slabs/slab_pages.h"

#include <bit>

#include "alloc/core/order_for_fork.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/events.h"
#include "alloc/slabs/block_position.h"
#include "alloc/slabs/slab_lists.h"

namespace rdmalloc {
namespace {

// The blocks that a purge of pages has in flight, for the child of a fork, where the purge ends.
// Written under the lock, together with the bitmap and before it. So a child that finds the lock
// held knows no more than that these bits may be set; one that finds it free, that they are clear
// and no other thread has the blocks.
struct InPurge {
  // 0: none. Relaxed: a thread that asks for a slab holds a lock that the purge took since it wrote
  // the slab's slice, or takes before it clears it.
  std::atomic<SliceIndex> slice;
  std::uint64_t blocks[kBitmapWords];
};
constinit InPurge in_purge = {};

static_assert(std::size_t{kSlabPageWords} * 64 * 4096 >= 8 * kSliceBytes,
              "512 KiB of the smallest pages");

// A bit for each page in [first, last].
SlabPages pages_between(std::size_t first, std::size_t last) {
  SlabPages pages{};
  for (std::size_t page = first; page <= last; ++page)
    pages.bits[page / 64] |= std::uint64_t{1} << page % 64;
  return pages;
}

SlabPages pages_of(std::uint32_t block, const ClassInfo& info) {
  std::size_t first = std::size_t{block} * info.block_bytes;
  int shift = std::countr_zero(arena.page_bytes);
  return pages_between(first >> shift, (first + info.block_bytes - 1) >> shift);
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

void note_touched(SliceIndex slice, std::uint32_t slices, const SlabPages& touched) {
  bool is_any_left = false;
  for (std::uint32_t part = 0; part < slices; ++part) {
    std::uint16_t purged = arena.purged_pages[slice + part].load(std::memory_order_relaxed);
    auto reused = static_cast<std::uint16_t>(purged & pages_in_slice(touched, part));
    auto left = static_cast<std::uint16_t>(purged & ~reused);
    is_any_left |= left != 0;
    if (reused == 0) continue;
    arena.purged_pages[slice + part].store(left, std::memory_order_relaxed);
    events_note_reuse_pages(slice + part, reused);
  }
  arena.span(slice).has_purged_pages = is_any_left;
}

constexpr SlabPages kAllPages = {{~std::uint64_t{0}, ~std::uint64_t{0}}};

// Pages on which no block that is out lies, and that are not given back yet. `blocks`, zeroed, gets
// the blocks that touch them, all of them free.
SlabPages purgeable_pages(SliceIndex slice, SpanWord word, std::uint64_t* blocks) {
  const ClassInfo& info = class_info(word.size_class);
  std::uint32_t count = slab_blocks_in(word.size_class, word.slices), words = (count + 63) / 64;
  Bitmap bitmap = arena.bitmap(slice);
  std::size_t used_bytes = std::size_t{count} * info.block_bytes;
  SlabPages pages = pages_between(0, (used_bytes - 1) >> std::countr_zero(arena.page_bytes));
  auto in_a_slice = static_cast<std::uint32_t>(kSliceBytes / arena.page_bytes);
  for (std::uint32_t part = 0; part < word.slices; ++part) {
    std::uint64_t purged = arena.purged_pages[slice + part].load(std::memory_order_relaxed);
    pages.bits[part * in_a_slice / 64] &= ~(purged << part * in_a_slice % 64);
  }
  // Givers may set bits meanwhile; what was set stays set.
  std::uint64_t is_free[kBitmapWords];
  for (std::uint32_t w = 0; w < words; ++w) {
    is_free[w] = bitmap[w].load(std::memory_order_relaxed);
    for_each_bit(bits_of_word(count, w) & ~is_free[w], [&](std::uint32_t bit) {
      SlabPages kept = pages_of(w * 64 + bit, info);
      for (std::uint32_t i = 0; i < kSlabPageWords; ++i) pages.bits[i] &= ~kept.bits[i];
    });
  }
  if (pages.is_empty()) return pages;
  for (std::uint32_t w = 0; w < words; ++w)
    for_each_bit(is_free[w], [&](std::uint32_t bit) {
      SlabPages on = pages_of(w * 64 + bit, info);
      if ((on.bits[0] & pages.bits[0]) | (on.bits[1] & pages.bits[1]))
        blocks[w] |= std::uint64_t{1} << bit;
    });
  return pages;
}
}  // namespace

SlabPages pages_take(SliceIndex slice, SpanWord word) {
  for (std::uint64_t& bits : in_purge.blocks) bits = 0;
  SlabPages pages = purgeable_pages(slice, word, in_purge.blocks);
  order_for_fork();
  in_purge.slice.store(slice, std::memory_order_relaxed);
  order_for_fork();
  std::int32_t taken = 0;
  for (std::uint32_t w = 0; w < kBitmapWords; ++w) {
    if (in_purge.blocks[w] == 0) continue;
    taken += std::popcount(in_purge.blocks[w]);
    // Acquire: as in slab_take_from(). The kernel is to find the pages as their last users left
    // them.
    arena.bitmap(slice)[w].fetch_and(~in_purge.blocks[w], std::memory_order_acquire);
  }
  arena.span(slice).free_blocks.fetch_sub(taken, std::memory_order_acq_rel);
  // With no block held the slab could go away; pages that hold no block are never touched anyway.
  if (taken != 0) return pages;
  in_purge.slice.store(0, std::memory_order_relaxed);
  return {};
}

void pages_put(SliceIndex slice, const SlabPages& purged) {
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  for (std::uint32_t part = 0; part < word.slices; ++part) {
    std::uint16_t here = pages_in_slice(purged, part);
    if (here == 0) continue;
    span.has_purged_pages = true;
    arena.purged_pages[slice + part].fetch_or(here, std::memory_order_relaxed);
  }
  std::int32_t given = 0;
  for (std::uint32_t w = 0; w < kBitmapWords; ++w) {
    if (in_purge.blocks[w] == 0) continue;
    given += std::popcount(in_purge.blocks[w]);
    // Under the lock, where no thread takes them before this purge is off the record.
    arena.bitmap(slice)[w].fetch_or(in_purge.blocks[w], std::memory_order_seq_cst);
  }
  span.free_blocks.fetch_add(given, std::memory_order_acq_rel);
  // Its heap was destroyed meanwhile: as a free span it is one thing again, dirty.
  if (!is_slab(word.kind)) pages_touch_all(slice, word.slices);
  order_for_fork();
  in_purge.slice.store(0, std::memory_order_relaxed);
}

void pages_touch_blocks(SliceIndex slice, const ClassInfo& info, void* const* blocks,
                        std::uint32_t count) {
  SlabPages touched{};
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(blocks[i]) - arena.address_of(slice);
    SlabPages of_block = pages_of(index_at(offset, info), info);
    for (std::uint32_t p = 0; p < kSlabPageWords; ++p) touched.bits[p] |= of_block.bits[p];
  }
  note_touched(slice, arena.span(slice).load().slices, touched);
}

void pages_touch_all(SliceIndex slice, std::uint32_t slices) {
  note_touched(slice, slices, kAllPages);
}

bool blocks_are_free(SliceIndex slice, SpanWord word, std::uintptr_t low, std::uintptr_t high,
                     bool has_turn) {
  const ClassInfo& info = class_info(word.size_class);
  std::uintptr_t base = arena.address_of(slice);
  std::uintptr_t end =
      base + std::uintptr_t{slab_blocks_in(word.size_class, word.slices)} * info.block_bytes;
  if (low < base) low = base;
  if (high > end) high = end;
  if (low >= high) return true;
  std::uint32_t first = index_at(low - base, info), last = index_at(high - 1 - base, info);
  for (std::uint32_t i = first; i <= last;) {
    std::uint32_t count = 64 - i % 64 <= last - i ? 64 - i % 64 : last - i + 1;
    std::uint64_t wanted = bits_from(i % 64, count);
    std::uint64_t bits = arena.bitmap(slice)[i / 64].load(std::memory_order_relaxed);
    if (has_turn) bits |= blocks_in_purge(slice, i / 64);
    if ((bits & wanted) != wanted) return false;
    i += count;
  }
  return true;
}

bool slab_is_in_purge(SliceIndex slice) {
  return in_purge.slice.load(std::memory_order_relaxed) == slice;
}

std::uint64_t blocks_in_purge(SliceIndex slice, std::uint32_t word) {
  return slab_is_in_purge(slice) ? in_purge.blocks[word] : 0;
}

void pages_forget(SliceIndex slice, std::uint32_t slices) {
  for (std::uint32_t part = 0; part < slices; ++part)
    arena.purged_pages[slice + part].store(0, std::memory_order_relaxed);
  arena.span(slice).has_purged_pages = false;
}

SpanWord pages_in_purge() {
  SliceIndex slice = in_purge.slice.load(std::memory_order_relaxed);
  return slice == 0 ? SpanWord{} : arena.span(slice).load();
}

void pages_end_purge() {
  SliceIndex slice = in_purge.slice.load(std::memory_order_relaxed);
  pages_forget(slice, arena.span(slice).load().slices);
  pages_put(slice, {});
}

}  // namespace rdmalloc
