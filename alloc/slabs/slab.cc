#include "alloc/slabs/slab.h"

#include <bit>

#include "alloc/core/lock.h"
#include "alloc/core/report.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/purge.h"
#include "alloc/slabs/block_position.h"

namespace rdmalloc {
namespace {

// Slabs with free blocks, by how many: bucket 0 is the fullest quarter. Giving back takes no lock,
// so a slab may stand in a bucket that is too full for it; it is moved when it is met.
constexpr unsigned kBuckets = 4;

struct alignas(128) SlabClass {
  Lock lock;
  SliceIndex head[kBuckets] = {};
  std::uint32_t slabs = 0;
  std::uint32_t listed = 0;
};
constinit SlabClass classes[kClasses];

unsigned bucket_of(std::int32_t free_blocks, std::uint32_t slab_blocks) {
  if (free_blocks <= 0) return 0;
  auto bucket =
      static_cast<unsigned>(static_cast<std::uint32_t>(free_blocks) * kBuckets / (slab_blocks + 1));
  return bucket < kBuckets ? bucket : kBuckets - 1;
}

std::uint32_t words_of(const ClassInfo& info) {
  return (info.slab_blocks + 63) / 64;
}

// ---- lists. All under the class's lock. ----

void list(SlabClass& slabs, SliceIndex slice, unsigned bucket) {
  Span& span = arena.span(slice);
  span.bucket = static_cast<std::uint8_t>(bucket);
  span.previous = 0;
  span.next = slabs.head[bucket];
  if (span.next != 0) arena.span(span.next).previous = slice;
  slabs.head[bucket] = slice;
  slabs.listed += 1;
  // seq_cst: see give_back_word.
  span.is_listed.store(1, std::memory_order_seq_cst);
}

void unlist(SlabClass& slabs, SliceIndex slice) {
  Span& span = arena.span(slice);
  if (span.next != 0) arena.span(span.next).previous = span.previous;
  (span.previous != 0 ? arena.span(span.previous).next : slabs.head[span.bucket]) = span.next;
  slabs.listed -= 1;
  span.is_listed.store(0, std::memory_order_seq_cst);
}

bool has_free_bits(SliceIndex slice, std::uint32_t words) {
  std::atomic<std::uint64_t>* bits = arena.bitmap(slice);
  for (std::uint32_t w = 0; w < words; ++w)
    if (bits[w].load(std::memory_order_seq_cst) != 0) return true;
  return false;
}

SliceIndex slab_new(SlabClass& slabs, unsigned size_class) {
  const ClassInfo& info = class_info(size_class);
  SliceIndex slice = page_heap_take_slab(info.slab_slices);
  if (slice == 0) return 0;
  std::atomic<std::uint64_t>* bits = arena.bitmap(slice);
  std::uint32_t left = info.slab_blocks;
  for (std::uint32_t w = 0; left > 0; ++w) {
    std::uint32_t here = left < 64 ? left : 64;
    bits[w].store(here == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << here) - 1,
                  std::memory_order_relaxed);
    left -= here;
  }
  Span& span = arena.span(slice);
  span.free_blocks.store(static_cast<std::int32_t>(info.slab_blocks), std::memory_order_relaxed);
  span.scan_word = 0;
  span.is_listed.store(0, std::memory_order_relaxed);
  page_heap_publish_slab(slice, static_cast<std::uint8_t>(size_class));
  slabs.slabs += 1;
  list(slabs, slice, kBuckets - 1);
  return slice;
}

// The fullest slab that has free blocks. Buckets are stale by what was given back since: a slab
// that turns out emptier moves on, at most kMoves of them for each call.
SliceIndex pick(SlabClass& slabs, const ClassInfo& info) {
  constexpr int kMoves = 8;
  int moves = 0;
  for (unsigned bucket = 0; bucket < kBuckets; ++bucket) {
    while (SliceIndex slice = slabs.head[bucket]) {
      std::int32_t free_blocks = arena.span(slice).free_blocks.load(std::memory_order_relaxed);
      unsigned actual = bucket_of(free_blocks, info.slab_blocks);
      if (actual <= bucket || ++moves > kMoves) return slice;
      unlist(slabs, slice);
      list(slabs, slice, actual);
    }
  }
  return 0;
}

// Takes blocks of one slab; stops when it has `wanted` or the slab has no set bit.
std::uint32_t take_from(SliceIndex slice, const ClassInfo& info, void** blocks,
                        std::uint32_t wanted) {
  Span& span = arena.span(slice);
  std::atomic<std::uint64_t>* bitmap = arena.bitmap(slice);
  std::uintptr_t base = arena.address_of(slice);
  std::uint32_t words = words_of(info), got = 0;
  std::uint32_t w = span.scan_word < words ? span.scan_word : 0;
  for (std::uint32_t seen = 0; seen < words && got < wanted;) {
    std::uint64_t bits = bitmap[w].load(std::memory_order_relaxed);
    if (bits == 0) {
      if (++w == words) w = 0;
      ++seen;
      continue;
    }
    // The lowest bits, as many as are wanted.
    std::uint64_t left = bits;
    std::uintptr_t first = base + std::uintptr_t{w} * 64 * info.block_bytes;
    do {
      auto index = static_cast<std::uintptr_t>(std::countr_zero(left));
      blocks[got++] = reinterpret_cast<void*>(first + index * info.block_bytes);
      left &= left - 1;
    } while (left != 0 && got < wanted);
    // Only this lock's holder clears bits, so all that were seen are still there. Acquire: pairs
    // with the release of the fetch_or that set them; what the freeing thread did to the block
    // comes before what its next owner does.
    bitmap[w].fetch_and(~(bits ^ left), std::memory_order_acquire);
  }
  span.scan_word = static_cast<std::uint16_t>(w);
  span.free_blocks.fetch_sub(static_cast<std::int32_t>(got), std::memory_order_acq_rel);
  return got;
}

// Gives a slab, all of whose blocks are in its bitmap, to the page heap.
void release(SlabClass& slabs, SliceIndex slice) {
  if (arena.span(slice).is_listed.load(std::memory_order_relaxed)) unlist(slabs, slice);
  slabs.slabs -= 1;
  page_heap_free(slice);
}

// Whether the span is a slab of this class with no block out. Under the class's lock, where nobody
// takes blocks, it stays so: free_blocks == slab_blocks says that every bit is set and no give-back
// is between its two steps.
bool is_empty_slab(SliceIndex slice, unsigned size_class) {
  SpanWord word = arena.span(slice).load();
  return word.kind == SpanKind::kSlab && word.size_class == size_class &&
         arena.span(slice).free_blocks.load(std::memory_order_acquire) ==
             static_cast<std::int32_t>(class_info(size_class).slab_blocks);
}

// After a give-back: lists the slab if nobody did, and releases it if it is empty and not the last
// one of its class with free blocks (which the next allocation would make again).
void settle(unsigned size_class, SliceIndex slice, bool may_keep) {
  SlabClass& slabs = classes[size_class];
  const ClassInfo& info = class_info(size_class);
  bool released = false;
  {
    LockGuard guard(slabs.lock);
    // By now the span may be something else: a slab of this class it can only be under this lock.
    SpanWord word = arena.span(slice).load();
    if (word.kind != SpanKind::kSlab || word.size_class != size_class) return;
    bool is_listed = arena.span(slice).is_listed.load(std::memory_order_relaxed) != 0;
    if (is_empty_slab(slice, size_class) && !(may_keep && slabs.listed - is_listed == 0)) {
      release(slabs, slice);
      released = true;
    } else if (!is_listed && has_free_bits(slice, words_of(info))) {
      list(slabs, slice,
           bucket_of(arena.span(slice).free_blocks.load(std::memory_order_relaxed),
                     info.slab_blocks));
    }
  }
  if (released) purge_note_dirty();
}

[[noreturn]] void report_bad_free(void* block, std::uintptr_t offset, const ClassInfo& info) {
  bool is_inside = offset / info.block_bytes < info.slab_blocks;
  report_fatal_address(is_inside ? "free() of an address inside a block, not its start"
                                 : "free() of an address that malloc never returned",
                       block);
}

// Sets the bits of `mask` in one bitmap word: the blocks are free from here on.
void give_back_word(unsigned size_class, SliceIndex slice, std::uint32_t word, std::uint64_t mask,
                    std::int32_t count) {
  const ClassInfo& info = class_info(size_class);
  Span& span = arena.span(slice);
  // seq_cst with the load of is_listed below, against the store of is_listed and then the loads of
  // the bitmap in slab_take: of a giver that sees "listed" and a taker that sees "no bits left and
  // unlists", one sees the other. Release: pairs with the fetch_and in take_from.
  std::uint64_t before = arena.bitmap(slice)[word].fetch_or(mask, std::memory_order_seq_cst);
  if (before & mask) [[unlikely]] {
    auto index = word * 64 + static_cast<std::uint32_t>(std::countr_zero(before & mask));
    report_fatal_address("double free() of",
                         reinterpret_cast<void*>(arena.address_of(slice) +
                                                 std::uintptr_t{index} * info.block_bytes));
  }
  // acq_rel: whoever reads slab_blocks from it has every giver's bits before it.
  std::int32_t now = span.free_blocks.fetch_add(count, std::memory_order_acq_rel) + count;
  if (now == static_cast<std::int32_t>(info.slab_blocks) ||
      span.is_listed.load(std::memory_order_seq_cst) == 0) [[unlikely]]
    settle(size_class, slice, true);
}

}  // namespace

std::uint32_t slab_take(unsigned size_class, void** blocks, std::uint32_t wanted) {
  const ClassInfo& info = class_info(size_class);
  SlabClass& slabs = classes[size_class];
  LockGuard guard(slabs.lock);
  std::uint32_t got = 0;
  while (got < wanted) {
    SliceIndex slice = pick(slabs, info);
    if (slice == 0) slice = slab_new(slabs, size_class);
    if (slice == 0) break;
    got += take_from(slice, info, blocks + got, wanted - got);
    if (got == wanted) break;
    // Its bits were all taken. Off the list, then look again: see give_back_word.
    unlist(slabs, slice);
    if (has_free_bits(slice, words_of(info))) list(slabs, slice, 0);
  }
  return got;
}

void slab_give_back(unsigned size_class, void* const* blocks, std::uint32_t count) {
  const ClassInfo& info = class_info(size_class);
  // The group under way: bits of one word of one slab. A run of blocks that were allocated together
  // and are freed together costs one atomic operation for each word.
  std::uintptr_t base = 0;
  std::uint32_t word = 0;
  std::uint64_t mask = 0;
  std::int32_t group = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    BlockPosition at = position_of(blocks[i], info);
    if (!at.is_start) [[unlikely]]
      report_bad_free(blocks[i], at.offset, info);
    std::uint64_t bit = std::uint64_t{1} << at.index % 64;
    if (at.slab != base || at.index / 64 != word) {
      if (group != 0) give_back_word(size_class, arena.slice_of(base), word, mask, group);
      base = at.slab;
      word = at.index / 64;
      mask = 0;
      group = 0;
    }
    if (mask & bit) [[unlikely]]
      report_fatal_address("double free() of", blocks[i]);
    mask |= bit;
    ++group;
  }
  if (group != 0) give_back_word(size_class, arena.slice_of(base), word, mask, group);
}

void slab_trim(unsigned size_class) {
  SlabClass& slabs = classes[size_class];
  // Empty slabs stand in the emptiest bucket, or in one they entered when they were fuller.
  bool released = false;
  {
    LockGuard guard(slabs.lock);
    for (SliceIndex head : slabs.head) {
      for (SliceIndex slice = head; slice != 0;) {
        SliceIndex next = arena.span(slice).next;
        if (is_empty_slab(slice, size_class)) {
          release(slabs, slice);
          released = true;
        }
        slice = next;
      }
    }
  }
  if (released) purge_note_dirty();
}

SlabCounters slab_counters(unsigned size_class) {
  SlabClass& slabs = classes[size_class];
  const ClassInfo& info = class_info(size_class);
  LockGuard guard(slabs.lock);
  SlabCounters counters{slabs.slabs, std::uint64_t{slabs.slabs} * info.slab_blocks, 0};
  for (SliceIndex head : slabs.head) {
    for (SliceIndex slice = head; slice != 0; slice = arena.span(slice).next) {
      std::int32_t free_blocks = arena.span(slice).free_blocks.load(std::memory_order_relaxed);
      if (free_blocks > 0) counters.free_blocks += static_cast<std::uint64_t>(free_blocks);
    }
  }
  return counters;
}

std::uint32_t slab_lock_owner(unsigned size_class) {
  return classes[size_class].lock.owner();
}

void slab_rebuild(unsigned size_class) {
  SlabClass& slabs = classes[size_class];
  const ClassInfo& info = class_info(size_class);
  slabs.lock.reset();
  LockGuard guard(slabs.lock);
  for (SliceIndex& head : slabs.head) head = 0;
  slabs.slabs = slabs.listed = 0;
  SliceIndex end = page_heap_frontier();
  for (SliceIndex slice = end == 0 ? 0 : 1; slice < end;) {
    SpanWord word = arena.span(slice).load();
    if (word.kind == SpanKind::kSlab && word.size_class == size_class) {
      std::int32_t free_blocks = 0;
      for (std::uint32_t w = 0; w < words_of(info); ++w)
        free_blocks += std::popcount(arena.bitmap(slice)[w].load(std::memory_order_relaxed));
      Span& span = arena.span(slice);
      span.free_blocks.store(free_blocks, std::memory_order_relaxed);
      span.is_listed.store(0, std::memory_order_relaxed);
      slabs.slabs += 1;
      if (free_blocks > 0) list(slabs, slice, bucket_of(free_blocks, info.slab_blocks));
    }
    slice += word.slices;
  }
}

}  // namespace rdmalloc
