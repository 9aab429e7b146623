#include "alloc/purge/slab_purge.h"

#include <bit>

#include "alloc/heaps/heap_spans.h"
#include "alloc/os/os.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/block_position.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

// What one part of a walk looks at and purges at most, so that a round of the purge thread stays
// short: slices (4 GiB: some hundred microseconds) and slabs that are due (128 MiB at least: 5 ms
// where none has a page to give, 35 ms where each gives several; it stops after any of them). With
// 256 a program that had left 1,400 slabs of which each page holds a block, and then 1,000 others,
// waited six rounds for the first page.
constexpr std::uint32_t kSlicesAtOnce = 1 << 16;
constexpr std::uint32_t kSlabsAtOnce = 2048;

// So many calls in a row that the kernel refuses, each for several pages, show a locked page of a
// run of 64: the run, its half, and so on. After more, as where the program has locked all its
// memory, runs are offered whole until one goes.
constexpr int kMostInVain = 6;

// All with the purge turn.
struct Walk {
  int in_vain = 0;        // such calls since one that it did not refuse
  SliceIndex next = 1;    // where it goes on
  bool is_done = true;    // so far on this way through: nothing to come back for
  bool was_done = false;  // on the last whole way
};
constinit Walk walk;

struct Look {
  SliceIndex slice;
  SpanWord word;
  std::uint32_t seen;
};

// Changes with every block that is taken or comes back; not kNeverSeen, for a slab has at most
// 4,096 blocks.
std::uint32_t looks_now(const Span& span, std::int32_t free_blocks) {
  std::uint32_t takes = span.takes.load(std::memory_order_relaxed);
  return takes << 16 | (static_cast<std::uint32_t>(free_blocks) & 0xffff);
}

// Calls `see` for the slabs in [begin, end) that have a page's worth of free blocks, until it says
// false. Returns where it stopped.
template <typename See>
SliceIndex for_each_slab(SliceIndex begin, SliceIndex end, See see) {
  bool goes_on = true;
  SliceIndex slice = begin;
  for (; slice < end && goes_on; slice = page_heap_next(slice, end)) {
    SpanWord word = arena.span(slice).load();
    if (!is_slab(word.kind) || (word.heap != 0 && !heap_gives_pages(*heaps.at(word.heap))))
      continue;
    std::int32_t free_blocks = arena.span(slice).free_blocks.load(std::memory_order_relaxed);
    if (free_blocks <= 0) continue;
    std::size_t bytes =
        static_cast<std::size_t>(free_blocks) * class_info(word.size_class).block_bytes;
    if (bytes < arena.page_bytes) continue;
    goes_on = see(Look{slice, word, looks_now(arena.span(slice), free_blocks)});
  }
  return slice;
}

// Whether its blocks have stood still for long enough; remembers what it sees.
bool is_due(const Look& look, const SlabPurge& how, std::uint32_t now_ms) {
  Span& span = arena.span(look.slice);
  if (span.seen.load(std::memory_order_relaxed) != look.seen) {
    span.seen.store(look.seen, std::memory_order_relaxed);
    span.seen_since_ms.store(now_ms, std::memory_order_relaxed);
    span.is_settled.store(false, std::memory_order_relaxed);
    return how.everything;
  }
  std::uint32_t still_ms = now_ms - span.seen_since_ms.load(std::memory_order_relaxed);
  bool is_of_huge = huge_is_chunk(look.slice / kSlicesPerChunk * kSlicesPerChunk);
  return how.everything || still_ms >= (is_of_huge ? how.still_huge_ms : how.still_ms);
}

// Purges a run of pages, of which the first lies at `base`. Where the kernel refuses it, its halves
// are offered, and parts of those: one locked page keeps itself. Not where an observer does, whose
// registration is of the whole slab as a rule. Returns the pages that went.
std::uint64_t purge_run(const SlabPurge& how, std::uintptr_t base, unsigned first,
                        unsigned length) {
  GiveBack result = how.purge(base, length * arena.page_bytes, how.reason);
  if (result == GiveBack::kDone) {
    walk.in_vain = 0;
    return bits_from(first, length);
  }
  if (result == GiveBack::kRefused || length == 1 || ++walk.in_vain > kMostInVain) return 0;
  unsigned front = length / 2;
  std::uint64_t purged = purge_run(how, base, first, front);
  return purged | purge_run(how, base + front * arena.page_bytes, first + front, length - front);
}

// Purges the runs of pages that the slab can spare. Returns their bytes.
std::uint64_t purge_slab(const Look& look, const SlabPurge& how, std::uint32_t now_ms) {
  unsigned size_class = look.word.size_class;
  bool is_of_heap = look.word.heap != 0;
  SlabPages purged{},
      pages = is_of_heap ? heap_pages_begin(look.slice) : slab_pages_begin(look.slice, size_class);
  bool is_refused = false;
  std::uint64_t bytes = 0;
  if (!pages.is_empty()) {
    for (std::uint32_t w = 0; w < kSlabPageWords; ++w) {
      // A run that crosses from one word into the next is two.
      for (std::uint64_t left = pages.bits[w]; left != 0;) {
        auto first = static_cast<unsigned>(std::countr_zero(left));
        auto length = static_cast<unsigned>(std::countr_one(left >> first));
        std::uint64_t run = bits_from(first, length);
        left &= ~run;
        std::uintptr_t base =
            arena.address_of(look.slice) + (std::size_t{w} * 64 + first) * arena.page_bytes;
        std::uint64_t gone = purge_run(how, base, first, length);
        purged.bits[w] |= gone;
        bytes += static_cast<unsigned>(std::popcount(gone)) * arena.page_bytes;
        is_refused |= gone != run;
      }
    }
    is_of_heap ? heap_pages_end(look.slice, purged)
               : slab_pages_end(look.slice, size_class, purged);
  }
  // What was refused is offered again, when it has stood still as long again.
  Span& span = arena.span(look.slice);
  span.seen_since_ms.store(now_ms, std::memory_order_relaxed);
  span.is_settled.store(!is_refused, std::memory_order_relaxed);
  return bytes;
}

}  // namespace

std::uint64_t slab_purge_walk(const SlabPurge& how) {
  SliceIndex end = page_heap_frontier(), begin = walk.next;
  if (how.everything || begin >= end) begin = 1;
  if (begin == 1) {
    walk.is_done = true;
    walk.in_vain = 0;
  }
  SliceIndex stop = end;
  if (!how.everything && end > begin && end - begin > kSlicesAtOnce) stop = begin + kSlicesAtOnce;
  auto now_ms = static_cast<std::uint32_t>(os::coarse_ms());
  std::uint64_t bytes = 0;
  std::uint32_t slabs = 0;
  bool is_stopped = how.must_stop();
  if (is_stopped) stop = begin;
  walk.next = for_each_slab(begin, stop, [&](const Look& look) {
    bool is_due_now = is_due(look, how, now_ms);
    if (arena.span(look.slice).is_settled.load(std::memory_order_relaxed)) return true;
    if (is_due_now) {
      bytes += purge_slab(look, how, now_ms);
      ++slabs;
    }
    walk.is_done &= arena.span(look.slice).is_settled.load(std::memory_order_relaxed);
    is_stopped = how.must_stop();
    return !is_stopped && (how.everything || slabs < kSlabsAtOnce);
  });
  if (is_stopped) walk.is_done = false;
  walk.was_done = walk.next >= end && walk.is_done;
  return bytes;
}

bool slab_purge_is_done() {
  if (!walk.was_done) return false;
  slab_watch(true);
  bool has_changed = false;
  for_each_slab(1, page_heap_frontier(), [&](const Look& look) {
    const Span& span = arena.span(look.slice);
    has_changed = !span.is_settled.load(std::memory_order_relaxed) ||
                  span.seen.load(std::memory_order_relaxed) != look.seen;
    return !has_changed;
  });
  if (has_changed) slab_watch(false);
  return !has_changed;
}

}  // namespace rdmalloc
