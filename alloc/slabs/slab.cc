#include "alloc/slabs/slab.h"

#include <algorithm>
#include <bit>

#include "alloc/core/purge_signal.h"
#include "alloc/core/report.h"
#include "alloc/core/shard.h"
#include "alloc/os/os.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/in_flight.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/segments.h"
#include "alloc/slabs/block_position.h"
#include "alloc/slabs/cached_spans.h"
#include "alloc/slabs/slab_pages.h"
#include "alloc/slabs/slab_state.h"

namespace rdmalloc {

namespace slab_state {

namespace {

// Of the first shard; those of the others are mapped as they come to be, and backed where used.
constinit SlabClass first_classes[kClasses];
constinit std::atomic<SlabClass*> classes_of_shard[kShardLimit] = {};

}  // namespace

constinit Spare spare[kClasses];

SlabClass& slabs_of(unsigned shard, unsigned size_class) {
  if (shard == 0) [[likely]]
    return first_classes[size_class];
  // Acquire: pairs with the release in slab_make_shard().
  return classes_of_shard[shard].load(std::memory_order_acquire)[size_class];
}

}  // namespace slab_state

void list(SlabLists& lists, SliceIndex slice, unsigned bucket) {
  Span& span = arena.span(slice);
  span.bucket = bucket & (kBuckets - 1);
  span.previous = 0;
  span.next = lists.head[bucket];
  if (span.next != 0) arena.span(span.next).previous = slice;
  lists.head[bucket] = slice;
  lists.listed.store(listed_in(lists) + 1, std::memory_order_relaxed);
  // seq_cst: see give_back_word().
  span.is_listed.store(1, std::memory_order_seq_cst);
}

void unlist(SlabLists& lists, SliceIndex slice) {
  Span& span = arena.span(slice);
  if (span.next != 0) arena.span(span.next).previous = span.previous;
  (span.previous != 0 ? arena.span(span.previous).next : lists.head[span.bucket]) = span.next;
  lists.listed.store(listed_in(lists) - 1, std::memory_order_relaxed);
  span.is_listed.store(0, std::memory_order_seq_cst);
}

void slab_begin(SliceIndex slice, std::uint32_t blocks) {
  Bitmap bits = arena.bitmap(slice);
  Span& span = arena.span(slice);
  span.free_blocks.store(static_cast<std::int32_t>(blocks), std::memory_order_relaxed);
  std::uint32_t word = 0;
  for (; blocks >= 64; blocks -= 64)
    bits[word++].store(~std::uint64_t{0}, std::memory_order_relaxed);
  if (blocks != 0) bits[word].store((std::uint64_t{1} << blocks) - 1, std::memory_order_relaxed);
  span.scan_word.store(0, std::memory_order_relaxed);
  span.is_listed.store(0, std::memory_order_relaxed);
  span.has_purged_pages = false;
  span.is_settled.store(false, std::memory_order_relaxed);
  span.seen.store(kNeverSeen, std::memory_order_relaxed);
}

std::uint32_t slab_take_from(SliceIndex slice, const ClassInfo& info, std::uint32_t words,
                             void** end, std::uint32_t wanted, std::uint32_t below) {
  Span& span = arena.span(slice);
  Bitmap bitmap = arena.bitmap(slice);
  std::uintptr_t base = arena.address_of(slice);
  std::uint32_t got = 0;
  std::uint32_t w = span.scan_word.load(std::memory_order_relaxed);
  if (w >= words) w = 0;
  for (std::uint32_t seen = 0; seen < words && got < wanted;) {
    std::atomic<std::uint64_t>& word = bitmap[w];
    std::uint64_t bits = word.load(std::memory_order_relaxed);
    if (w * 64 + 64 > below) [[unlikely]]
      bits = w * 64 < below ? bits & bits_from(0, below - w * 64) : 0;
    if (bits == 0) {
      if (++w == words) w = 0;
      ++seen;
      continue;
    }
    // The lowest bits, as many as are wanted.
    std::uint64_t left = bits;
    std::uintptr_t first = base + std::uintptr_t{w} * 64 * info.block_bytes;
    auto index = static_cast<std::uint32_t>(std::countr_zero(bits));
    if ((bits & (bits + (std::uint64_t{1} << index))) == 0) {
      // One run of neighbours, as in a new slab: no look at each.
      auto run = static_cast<std::uint32_t>(std::popcount(bits));
      if (run > wanted - got) run = wanted - got;
      left &= ~bits_from(index, run);
      std::uintptr_t block = first + std::uintptr_t{index} * info.block_bytes;
      for (; run != 0; --run, block += info.block_bytes)
        *(end - ++got) = reinterpret_cast<void*>(block);
    } else {
      do {
        auto bit = static_cast<std::uintptr_t>(std::countr_zero(left));
        *(end - ++got) = reinterpret_cast<void*>(first + bit * info.block_bytes);
        left &= left - 1;
      } while (left != 0 && got < wanted);
    }
    // Only this lock's holder clears bits, so all that were seen are still there. Acquire: pairs
    // with the release of the fetch_or that set them; what the freeing thread did to the block
    // comes before what its next owner does.
    word.fetch_and(~(bits ^ left), std::memory_order_acquire);
    std::uint32_t taken_to = w * 64 + static_cast<std::uint32_t>(std::bit_width(bits ^ left));
    if (taken_to > span.new_from) span.new_from = taken_to;
  }
  span.scan_word.store(static_cast<std::uint16_t>(w), std::memory_order_relaxed);
  span.free_blocks.fetch_sub(static_cast<std::int32_t>(got), std::memory_order_acq_rel);
  auto takes = span.takes.load(std::memory_order_relaxed);
  span.takes.store(static_cast<std::uint16_t>(takes + 1), std::memory_order_relaxed);
  if (span.has_purged_pages) [[unlikely]]
    pages_touch_blocks(slice, info, end - got, got);
  return got;
}

using namespace slab_state;

namespace {

// Set while the purge thread relies on being notified when slabs change (slab_watch).
constinit std::atomic<bool> is_watched{false};

bool has_free_bits(SliceIndex slice, std::uint32_t words) {
  Bitmap bits = arena.bitmap(slice);
  for (std::uint32_t w = 0; w < words; ++w)
    if (bits[w].load(std::memory_order_seq_cst) != 0) return true;
  return false;
}

SliceIndex slab_new(SlabClass& slabs, unsigned shard, unsigned size_class) {
  const ClassInfo& info = class_info(size_class);
  SliceIndex slice = page_heap_take_slab(shard, info.slab_slices);
  if (slice == 0) return 0;
  slab_begin(slice, info.slab_blocks);
  page_heap_publish_slab(slice, static_cast<std::uint8_t>(size_class), 0,
                         static_cast<std::uint8_t>(shard));
  add_slabs(slabs, 1);
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

// Gives a slab, all of whose blocks are in its bitmap, to the page heap.
void release(SlabClass& slabs, SliceIndex slice) {
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  if (span.is_listed.load(std::memory_order_relaxed)) unlist(slabs, slice);
  // As a free span it is one thing again, dirty, and purged as a whole.
  if (span.has_purged_pages) pages_touch_all(slice, word.slices);
  add_slabs(slabs, 0u - 1);
  page_heap_free(slice);
}

// Whether the slab has no block out. Under the class's lock, where no thread takes blocks, it stays
// so: free_blocks == slab_blocks says that every bit is set and no give-back is between its two
// steps.
bool is_empty_slab(SliceIndex slice, unsigned size_class) {
  return arena.span(slice).free_blocks.load(std::memory_order_acquire) ==
         static_cast<std::int32_t>(class_info(size_class).slab_blocks);
}

// After a give-back: lists the slab if no thread did, and releases it if it is empty and not the
// last one of its class with free blocks (which the next allocation would make again).
void list_or_release(unsigned size_class, SliceIndex slice) {
  std::uint64_t seen = arena.span(slice).word.load(std::memory_order_acquire);
  SpanWord word = unpack(seen);
  if (!is_slab_of(word, size_class)) return;
  SlabClass& slabs = slabs_of(word.shard, size_class);
  const ClassInfo& info = class_info(size_class);
  bool released = false;
  {
    LockGuard guard(slabs.lock);
    // By now the span may be something else, a slab of another shard too: the thread that gives
    // blocks back to that one lists it.
    if (arena.span(slice).word.load(std::memory_order_acquire) != seen) return;
    std::uint32_t is_listed = arena.span(slice).is_listed.load(std::memory_order_relaxed);
    std::uint32_t kept = shard_count() == 1 ? 1 : kSlabsKept;
    note_use(slabs);
    if (is_empty_slab(slice, size_class) && listed_in(slabs) - is_listed >= kept) {
      release(slabs, slice);
      released = true;
    } else if (is_listed == 0 && has_free_bits(slice, words_of(info))) {
      list(slabs, slice,
           bucket_of(arena.span(slice).free_blocks.load(std::memory_order_relaxed),
                     info.slab_blocks));
    }
    note_spare(slabs, size_class);
  }
  if (released) purge_note_dirty();
}

// Takes blocks of the shard's slabs; where they have none left, of new ones if it may. Under the
// class's lock.
[[gnu::always_inline]] inline std::uint32_t take_or_make(SlabClass& slabs, unsigned shard,
                                                         unsigned size_class, void** blocks,
                                                         std::uint32_t wanted, bool may_make) {
  const ClassInfo& info = class_info(size_class);
  std::uint32_t got = 0;
  note_use(slabs);
  while (got < wanted) {
    SliceIndex slice = pick(slabs, info);
    if (slice == 0 && may_make) slice = slab_new(slabs, shard, size_class);
    if (slice == 0) break;
    got += slab_take_from(slice, info, words_of(info), blocks + wanted - got, wanted - got);
    if (got == wanted) return got;
    // Its bits were all taken. Off the list, then look again: see give_back_word().
    unlist(slabs, slice);
    if (has_free_bits(slice, words_of(info))) list(slabs, slice, 0);
    note_spare(slabs, size_class);
  }
  std::copy(blocks + wanted - got, blocks + wanted, blocks);
  return got;
}

// Takes blocks of slabs that the shard has. Under the class's lock.
[[gnu::noinline]] std::uint32_t take(SlabClass& slabs, unsigned shard, unsigned size_class,
                                     void** blocks, std::uint32_t wanted) {
  return take_or_make(slabs, shard, size_class, blocks, wanted, false);
}

// Takes blocks of slabs of other shards. What those can spare is all where no thread works any
// more, and otherwise, on the same node, all but the slab at hand: without that one each shard's
// first allocation would be from the slab that another works with, and so all of them under one
// lock. With `everything`, because there is no other memory: any block of any shard.
std::uint32_t take_from_others(unsigned shard, unsigned size_class, void** blocks,
                               std::uint32_t wanted, bool everything) {
  unsigned count = shard_count(), most = count - 1;
  if (!everything && most > kShardsAsked) most = kShardsAsked;
  std::atomic<std::uint8_t>& from = slabs_of(shard, size_class).asked;
  std::uint8_t first = from.load(std::memory_order_relaxed);
  bool may_spare = spare[size_class].shards.load(std::memory_order_relaxed) != 0;
  std::uint32_t slabs_left = count <= kFewShards ? kSlabsKept : kSlabsLeft;
  bool has_looked = false;
  for (unsigned asked = 1; asked <= most; ++asked) {
    unsigned other = other_shard(shard, first, asked, count);
    SlabClass& theirs = slabs_of(other, size_class);
    bool is_near = are_near(shards[other], shards[shard]);
    bool is_left = everything || rdmalloc::is_left(shards[other]);
    // Looked at last: the line of a shard at work is its threads'.
    if (!is_left && (!is_near || !may_spare)) continue;
    has_looked = true;
    if (listed_in(theirs) < (is_left ? 1 : slabs_left + 1)) continue;
    // Not waited for: there are more to ask.
    if (everything) {
      theirs.lock.lock();
    } else if (!theirs.lock.try_lock()) {
      continue;
    }
    std::uint32_t got = take(theirs, other, size_class, blocks, wanted);
    theirs.lock.unlock();
    if (got == 0) continue;
    from.store(static_cast<std::uint8_t>((first + asked - 1) % (count - 1)),
               std::memory_order_relaxed);
    shards[shard].steals.fetch_add(1, std::memory_order_relaxed);
    return got;
  }
  if (has_looked)
    from.store(static_cast<std::uint8_t>((first + most) % (count - 1)), std::memory_order_relaxed);
  return 0;
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
  // the bitmap in take_or_make(): the giver sees that the slab is off the list, or the taker sees
  // the bits. Release: pairs with the fetch_and in slab_take_from().
  std::uint64_t before = arena.bitmap(slice)[word].fetch_or(mask, std::memory_order_seq_cst);
  if (before & mask) [[unlikely]] {
    auto index = word * 64 + static_cast<std::uint32_t>(std::countr_zero(before & mask));
    report_fatal_address("double free() of",
                         reinterpret_cast<void*>(arena.address_of(slice) +
                                                 std::uintptr_t{index} * info.block_bytes));
  }
  // Not before the bits, which a taker might pass by; nor after they are counted, when the slab may
  // be another one.
  if (word < span.scan_word.load(std::memory_order_relaxed))
    span.scan_word.store(static_cast<std::uint16_t>(word), std::memory_order_relaxed);
  // Release: a thread that reads slab_blocks from it has every giver's bits before it. seq_cst: see
  // slab_note_change().
  std::int32_t now = span.free_blocks.fetch_add(count, std::memory_order_seq_cst) + count;
  if (now == static_cast<std::int32_t>(info.slab_blocks) ||
      span.is_listed.load(std::memory_order_seq_cst) == 0) [[unlikely]]
    list_or_release(size_class, slice);
}

// Once, whatever is in flight.
std::uint32_t take_at_once(unsigned shard, unsigned size_class, void** blocks,
                           std::uint32_t wanted) {
  if (is_span_class(size_class)) return cached_spans_take(shard, size_class, blocks, wanted);
  bool has_others = shard_count() != 1;
  std::uint32_t got = 0;
  if (has_others) [[unlikely]] {
    // Fewer than wanted will do for this time.
    got = slab_take_own(shard, size_class, blocks, wanted);
    if (got == 0) got = take_from_others(shard, size_class, blocks, wanted, false);
    if (got != 0) return got;
  }
  SlabClass& slabs = slabs_of(shard, size_class);
  {
    LockGuard guard(slabs.lock);
    got = take_or_make(slabs, shard, size_class, blocks, wanted, true);
  }
  if (got == 0 && has_others) got = take_from_others(shard, size_class, blocks, wanted, true);
  return got;
}

}  // namespace

// A slab with pages that were never used is the one that fills, and the latest.
std::uint32_t slab_state::take_used(SlabClass& slabs, unsigned size_class, void** blocks,
                                    std::uint32_t wanted) {
  constexpr int kLooks = 4;
  const ClassInfo& info = class_info(size_class);
  std::uint32_t got = 0;
  int looks = 0;
  for (SliceIndex head : slabs.head) {
    for (SliceIndex slice = head; slice != 0 && got < wanted && looks < kLooks; ++looks) {
      const Span& span = arena.span(slice);
      got += slab_take_from(slice, info, words_of(info), blocks + wanted - got, wanted - got,
                            span.new_from);
      slice = span.next;
    }
  }
  if (got != 0) note_use(slabs);
  std::copy(blocks + wanted - got, blocks + wanted, blocks);
  return got;
}

std::uint32_t slab_take_own(unsigned shard, unsigned size_class, void** blocks,
                            std::uint32_t wanted) {
  SlabClass& slabs = slabs_of(shard, size_class);
  if (listed_in(slabs) == 0) return 0;
  LockGuard guard(slabs.lock);
  return take(slabs, shard, size_class, blocks, wanted);
}

std::uint32_t slab_take_used(unsigned shard, unsigned size_class, void** blocks,
                             std::uint32_t wanted) {
  SlabClass& slabs = slabs_of(shard, size_class);
  if (listed_in(slabs) == 0) return 0;
  LockGuard guard(slabs.lock);
  return take_used(slabs, size_class, blocks, wanted);
}

std::uint32_t slab_take_used_of_others(unsigned shard, unsigned size_class, void** blocks,
                                       std::uint32_t wanted) {
  unsigned count = shard_count();
  if (count > kFewShards) return take_due(shard, size_class, blocks, wanted);
  if (!may_take_beyond(shard, size_class)) return 0;
  for (unsigned other = 0; other < count; ++other) {
    SlabClass& theirs = slabs_of(other, size_class);
    bool is_near = are_near(shards[other], shards[shard]);
    if (other == shard || !is_near || listed_in(theirs) == 0 || !theirs.lock.try_lock()) continue;
    note_block_beyond(shard, size_class);
    std::uint32_t got = take_used(theirs, size_class, blocks, wanted);
    theirs.lock.unlock();
    if (got == 0) continue;
    shards[shard].steals.fetch_add(1, std::memory_order_relaxed);
    return got;
  }
  return 0;
}

std::uint32_t slab_take(unsigned shard, unsigned size_class, void** blocks, std::uint32_t wanted) {
  MemoryWait wait;
  for (;;) {
    std::uint32_t got = take_at_once(shard, size_class, blocks, wanted);
    purge_note_new_pages();
    if (got != 0 || page_heap_is_over_limit(class_info(size_class).slab_slices) || !wait.again())
      return got;
  }
}

std::uint64_t slab_slices_held(unsigned shard) {
  std::uint64_t slices = 0;
  for (unsigned c = 1; c < kFirstSpanClass; ++c) {
    const SlabClass& slabs = slabs_of(shard, c);
    std::uint32_t all = slabs.slabs.load(std::memory_order_relaxed), listed = listed_in(slabs);
    if (listed > kSlabsKept) listed = kSlabsKept;
    if (all > listed) slices += std::uint64_t{all - listed} * class_info(c).slab_slices;
  }
  return slices;
}

unsigned slab_shard_of(const void* block, unsigned size_class) {
  SliceIndex slice = arena.slice_of(position_of(block, class_info(size_class)).slab);
  return arena.span(slice).load().shard;
}

bool slab_make_shard(unsigned shard) {
  if (classes_of_shard[shard].load(std::memory_order_relaxed) != nullptr) return true;
  std::uintptr_t base = 0;
  if (os::map_metadata(sizeof(SlabClass) * kClasses, &base) != 0) return false;
  // Zeroed, as the first ones are. Release: see slabs_of().
  classes_of_shard[shard].store(reinterpret_cast<SlabClass*>(base), std::memory_order_release);
  return true;
}

void slab_give_back(unsigned size_class, void* const* blocks, std::uint32_t count) {
  if (is_span_class(size_class)) return cached_spans_give_back(size_class, blocks, count);
  const ClassInfo& info = class_info(size_class);
  // The group under way: bits of one word of one slab. A run of blocks that were allocated together
  // and are freed together costs one atomic operation for each word.
  std::uintptr_t base = 0;
  std::uint32_t word = 0;
  std::uint64_t mask = 0;
  std::int32_t group = 0;
  for (std::uint32_t i = 0; i < count;) {
    BlockPosition at = position_of(blocks[i], info);
    if (!at.is_start) [[unlikely]]
      report_bad_free(blocks[i], at.offset, info);
    if (at.slab != base || at.index / 64 != word) {
      if (group != 0) give_back_word(size_class, arena.slice_of(base), word, mask, group);
      base = at.slab;
      word = at.index / 64;
      mask = 0;
      group = 0;
    }
    // Blocks that are freed in the order of their birth lie one behind the other.
    std::uint32_t run = 1;
    if (is_behind(blocks + i, blocks + count, info))
      run = run_length(blocks + i, at.index, count - i, info);
    std::uint64_t bits = bits_from(at.index % 64, run);
    if (mask & bits) [[unlikely]]
      report_fatal_address(
          "double free() of",
          blocks[i + static_cast<std::uint32_t>(std::countr_zero(mask & bits)) - at.index % 64]);
    mask |= bits;
    group += static_cast<std::int32_t>(run);
    i += run;
  }
  if (group != 0) give_back_word(size_class, arena.slice_of(base), word, mask, group);
  slab_note_change();
}

// seq_cst with the store before it, of bits or of a magazine in the depot, against slab_watch() and
// then the watcher's looks at both: it sees those, or we that it wants to be notified.
void slab_note_change() {
  if (is_watched.load(std::memory_order_seq_cst) && is_watched.exchange(false))
    purge_note_slab_change();
}

void slab_watch(bool wanted) {
  is_watched.store(wanted, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool slab_is_watched() {
  return is_watched.load(std::memory_order_seq_cst);
}

SlabPages slab_pages_begin(SliceIndex slice, unsigned size_class) {
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  if (!is_slab_of(word, size_class) || is_span_class(size_class)) return {};
  LockGuard guard(slabs_of(word.shard, size_class).lock);
  if (span.word.load(std::memory_order_acquire) != pack(word)) return {};  // it was, until now
  return pages_take(slice, word);
}

void slab_pages_end(SliceIndex slice, unsigned size_class, const SlabPages& purged) {
  {
    LockGuard guard(slabs_of(arena.span(slice).load().shard, size_class).lock);
    pages_put(slice, purged);
  }
  list_or_release(size_class, slice);
}

bool slab_is_free(SliceIndex slice, std::uintptr_t low, std::uintptr_t high, bool has_turn) {
  const Span& span = arena.span(slice);
  SpanWord word = span.load();
  if (word.kind != SpanKind::kSlab || is_span_class(word.size_class)) return false;
  // A thread that takes one of them later sees what the caller has done before it asks.
  LockGuard guard(slabs_of(word.shard, word.size_class).lock);
  return span.word.load(std::memory_order_acquire) == pack(word) &&
         blocks_are_free(slice, word, low, high, has_turn);
}

namespace {

// Empty slabs stand in the emptiest bucket, or in one they entered when they were fuller.
bool release_empty(unsigned shard, unsigned size_class) {
  SlabClass& slabs = slabs_of(shard, size_class);
  if (listed_in(slabs) == 0) return false;
  bool released = false;
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
  note_spare(slabs, size_class);
  return released;
}

}  // namespace

void slab_trim_idle(unsigned shard, unsigned size_class) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  SlabClass& slabs = slabs_of(shard, size_class);
  std::uint32_t uses = slabs.uses.load(kRelaxed);
  if (uses == slabs.uses_when_trimmed.load(kRelaxed)) return;
  if (uses != slabs.uses_at_last_look.load(kRelaxed))
    return slabs.uses_at_last_look.store(uses, kRelaxed);
  slabs.uses_when_trimmed.store(uses, kRelaxed);
  if (release_empty(shard, size_class)) purge_note_dirty();
}

void slab_trim(unsigned size_class) {
  bool released = false;
  for (unsigned shard = 0; shard < shard_count(); ++shard)
    released |= release_empty(shard, size_class);
  if (released) purge_note_dirty();
}

}  // namespace rdmalloc
