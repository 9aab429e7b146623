#include "alloc/pages/huge_pages.h"

#include "alloc/core/vain_looks.h"
#include "alloc/os/os.h"
#include "alloc/os/topology.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {

namespace detail {
constinit std::atomic<std::uint32_t> passed_chunks{0};  // relaxed, as `earned`
}

namespace {

constexpr std::uint32_t kHugeRanges = 4096;
// From this size on a heap is looked at: what is begun of a chunk and not used yet is a small share
// of it. For blocks sooner: those of one MiB and more have it less on top of what they lose anyway
// than slabs that are not full.
constexpr std::uint64_t looked_at_slices(TakenFor what) {
  std::uint64_t mib = what == TakenFor::kOthers ? 44 : 16;
  return (mib << 20) / kSliceBytes;
}
// What is looked at: so many of the latest slices on small pages, and no fewer than that.
constexpr SliceIndex kWindowSlices = (std::size_t{2} << 20) / kSliceBytes;
constexpr SliceIndex kLeastSlices = (std::size_t{1} << 20) / kSliceBytes;
// Spans taken for one purpose tell nothing of those taken for another: so much of it was seen.
constexpr SliceIndex kLeastOfPurpose = kLeastSlices / 4;
constexpr unsigned kPurposes = 3;  // a region of a heap is no block
static_assert(static_cast<unsigned>(TakenFor::kZeroes) == kPurposes - 1);
// The share of their pages that must be resident, in 32nds.
constexpr std::size_t kResident32nds = 31;
// What that earns: the heap's size divided by this, in slices of huge pages.
constexpr std::uint64_t kEarnedDivisor = 4;

// All under the page heap's lock.
struct HugeRanges {
  SliceIndex looked_end = 0;   // what lies below was looked at
  SliceIndex seen_end = 0;     // and that has earned something
  SliceIndex latest_end = 0;   // where the latest range ends: one that begins here prolongs it
  std::int64_t latest_ms = 0;  // when it was asked for
  std::uint32_t count = 0;
  VainLooks looks = {};  // for large blocks, that found too few pages resident
};
constinit HugeRanges ranges;
// How many looks for large blocks are left out at most after vain ones: one for each so many slices
// (64 MiB) of the heap, so that a program which begins to write what it takes is found out while
// that is a small part of it. Each look is some calls of the kernel: blocks of 512 KiB to 4 MiB of
// which a page is written took a tenth of their time for them.
constexpr std::uint64_t kSlicesOfLook = (std::size_t{64} << 20) / kSliceBytes;
// Slices that may have huge pages yet. Relaxed: written under that lock; without it a hint.
constinit std::atomic<std::int64_t> earned{0};
constinit std::atomic<std::uint32_t> earned_for{0};  // a bit for each TakenFor

bool is_marked(SliceIndex chunk, ChunkMark what) {
  const std::atomic<ChunkMark>* chunks = arena.huge_chunks.load(std::memory_order_acquire);
  return chunks != nullptr &&
         chunks[chunk / kSlicesPerChunk].load(std::memory_order_relaxed) == what;
}

// Relaxed: before any page of the chunks is used, under the central page heap's lock.
void mark(SliceIndex begin, SliceIndex end, ChunkMark what) {
  std::atomic<ChunkMark>* chunks = arena.huge_chunks.load(std::memory_order_relaxed);
  for (SliceIndex chunk = begin; chunk < end; chunk += kSlicesPerChunk)
    chunks[chunk / kSlicesPerChunk].store(what, std::memory_order_relaxed);
}

void add_passed(std::uint32_t more) {
  std::atomic<std::uint32_t>& passed = detail::passed_chunks;
  passed.store(passed.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

void ask(SliceIndex begin, SliceIndex end) {
  bool prolongs = begin == ranges.latest_end;
  if (!prolongs && ranges.count == kHugeRanges) return;
  if (arena_want_huge_chunks() != 0) return;
  ranges.count += prolongs ? 0 : 1;
  ranges.latest_end = end;
  ranges.latest_ms = os::coarse_ms();
  arena_ask_for_huge(begin, end);
  if (huge_is_any_passed()) huge_note_use(begin, end);
  mark(begin, end, ChunkMark::kHuge);
  rest_is_new();
}

void spend(SliceIndex slices) {
  earned.store(earned.load(std::memory_order_relaxed) - slices, std::memory_order_relaxed);
}

TakenFor taken_for(SpanWord word) {
  if (word.is_zero) return TakenFor::kZeroes;
  bool is_one_block = is_large(word.kind) || is_span_class(word.size_class);
  return is_one_block && word.slices >= kBufferSlices ? TakenFor::kBuffer : TakenFor::kOthers;
}

// Slices of spans in use, under small pages.
struct Seen {
  std::size_t resident_pages = 0;
  SliceIndex slices[kPurposes] = {};
  SliceIndex all() const {
    SliceIndex sum = 0;
    for (SliceIndex of_one : slices) sum += of_one;
    return sum;
  }
};

void look_at(SliceIndex begin, SliceIndex end, TakenFor what, Seen* seen) {
  while (begin < end) {
    SliceIndex next = chunk_of(begin) + kSlicesPerChunk;
    if (next > end) next = end;
    std::size_t bytes = static_cast<std::size_t>(next - begin) << kSliceShift, pages = 0;
    if (!huge_is_chunk(chunk_of(begin)) &&
        os::count_resident(arena.address_of(begin), bytes, &pages) == 0) {
      seen->slices[static_cast<unsigned>(what)] += next - begin;
      seen->resident_pages += pages;
    }
    begin = next;
  }
}

// Spans of other heaps, whose locks are not held, may be cut and joined meanwhile: then a part is
// seen twice or not at all.
Seen look_at_spans(SliceIndex begin, SliceIndex end) {
  Seen seen;
  for (SliceIndex slice = begin; slice < end;) {
    SliceIndex first = arena.first[slice].load(std::memory_order_relaxed);
    SpanWord word = arena.span(first).load();
    SliceIndex span_end = first + word.slices;
    // The first slice of a free span is known at its ends only.
    bool is_there = first <= slice && slice < span_end;
    if (is_there && is_in_use(word.kind))
      look_at(slice, span_end < end ? span_end : end, taken_for(word), &seen);
    slice = is_there ? span_end : slice + 1;
  }
  return seen;
}

// Looks at what lies right below new addresses, if some of that was not seen yet, and once for each
// MiB of them.
void look_below(SliceIndex end, TakenFor what, std::uint64_t used) {
  if (huge_is_earned(what) || used < looked_at_slices(what)) return;
  if (end >= ranges.looked_end && end < ranges.looked_end + kLeastSlices) return;
  ranges.looked_end = end;
  if (what != TakenFor::kOthers && ranges.looks.leave_out()) return;
  SliceIndex begin = end - kWindowSlices;
  if (begin < ranges.seen_end) begin = ranges.seen_end;
  if (end < begin + kLeastSlices) return;
  Seen seen = look_at_spans(begin, end);
  SliceIndex slices = seen.all();
  std::size_t pages = (std::size_t{slices} << kSliceShift) / os::page_bytes();
  if (slices < kLeastSlices) return;
  bool are_resident = seen.resident_pages >= pages / 32 * kResident32nds;
  std::uint64_t most = used / kSlicesOfLook;
  if (most > VainLooks::kMost) most = VainLooks::kMost;
  if (what != TakenFor::kOthers) ranges.looks.note(are_resident, static_cast<std::uint8_t>(most));
  if (!are_resident) return;
  ranges.seen_end = end;
  std::uint32_t purposes = 0;
  for (unsigned purpose = 0; purpose < kPurposes; ++purpose)
    if (seen.slices[purpose] >= kLeastOfPurpose &&
        used >= looked_at_slices(static_cast<TakenFor>(purpose)))
      purposes |= 1u << purpose;
  earned_for.store(purposes, std::memory_order_relaxed);
  earned.store(static_cast<std::int64_t>(used / kEarnedDivisor), std::memory_order_relaxed);
}

}  // namespace

bool huge_is_chunk(SliceIndex chunk) {
  return is_marked(chunk, ChunkMark::kHuge);
}

bool huge_is_any(SliceIndex begin, SliceIndex end) {
  for (SliceIndex chunk = chunk_of(begin); chunk < end; chunk += kSlicesPerChunk)
    if (huge_is_chunk(chunk)) return true;
  return false;
}

void huge_ask(SliceIndex begin, SliceIndex end, TakenFor what) {
  if (!arena_may_be_huge()) return;
  SliceIndex first = chunk_after(begin), last = chunk_after(end);
  if (first == last) return;
  SliceIndex sure_end = is_for_huge(end - begin, what) ? chunk_of(end) : first;
  // Of several nodes a chunk that two threads' blocks share would be where it is touched first.
  bool may_share = os::node_count() == 1;
  if (may_share) look_below(begin, what, page_heap_used_slices());
  SliceIndex huge_end = first;
  for (; huge_end < last && (huge_end < sure_end || (may_share && huge_is_earned(what)));
       huge_end += kSlicesPerChunk)
    if (huge_end >= sure_end) spend(kSlicesPerChunk);
  if (first < huge_end) ask(first, huge_end);
}

void huge_note_passed(SliceIndex begin, SliceIndex end) {
  SliceIndex first = chunk_after(begin), last = chunk_of(end);
  if (first + kHugeBlockSlices > last || !arena_may_be_huge()) return;
  if (arena_want_huge_chunks() != 0) return;  // small pages for all
  mark(first, last, ChunkMark::kPassed);
  add_passed((last - first) / kSlicesPerChunk);
}

bool huge_was_passed(SliceIndex begin, SliceIndex end) {
  if (!huge_is_any_passed()) return false;
  for (SliceIndex chunk = begin; chunk < end; chunk += kSlicesPerChunk)
    if (!is_marked(chunk, ChunkMark::kPassed)) return false;
  return true;
}

void huge_note_use(SliceIndex begin, SliceIndex end) {
  for (SliceIndex chunk = chunk_of(begin); chunk < end; chunk += kSlicesPerChunk) {
    if (!is_marked(chunk, ChunkMark::kPassed)) continue;
    mark(chunk, chunk + kSlicesPerChunk, ChunkMark::kNone);
    add_passed(~0u);
  }
}

void huge_ask_where_passed(SliceIndex begin, SliceIndex end, TakenFor what) {
  SliceIndex from = begin;  // the first run's: what the span takes right before it counts too
  for (SliceIndex chunk = chunk_after(begin); chunk < end;) {
    SliceIndex run_end = chunk;
    while (run_end < end && is_marked(run_end, ChunkMark::kPassed)) run_end += kSlicesPerChunk;
    if (run_end != chunk) huge_ask(from, run_end < end ? run_end : end, what);
    from = chunk = run_end + kSlicesPerChunk;
  }
}

void huge_ask_for_segment(SliceIndex begin, SliceIndex end, std::uint64_t used) {
  if (!arena_may_be_huge()) return;
  look_below(begin, TakenFor::kOthers, used);
  if (!huge_is_earned(TakenFor::kOthers) || used < looked_at_slices(TakenFor::kOthers)) return;
  spend(end - begin);
  ask(begin, end);
}

void huge_split(std::uintptr_t base, std::size_t bytes) {
  auto split = [](std::uintptr_t page) {
    SliceIndex chunk = chunk_of(arena.slice_of(page));
    // Refused by kernels before Linux 5.14: then it is as it was.
    if (huge_is_chunk(chunk)) os::populate_for_reading(page);
  };
  std::uintptr_t end = base + bytes, last_page = end - os::page_bytes();
  bool begins_within = (base - arena.base) % kChunkBytes != 0;
  bool ends_within = (end - arena.base) % kChunkBytes != 0;
  bool is_one = (base - arena.base) / kChunkBytes == (last_page - arena.base) / kChunkBytes;
  if (begins_within || (is_one && ends_within)) split(base);
  if (ends_within && !is_one) split(last_page);
}

bool huge_is_earned(TakenFor what) {
  if (what == TakenFor::kExact) what = TakenFor::kBuffer;
  return earned.load(std::memory_order_relaxed) > 0 &&
         (earned_for.load(std::memory_order_relaxed) >> static_cast<unsigned>(what) & 1) != 0;
}

std::int64_t huge_asked_ms() {
  return ranges.latest_ms;
}

void huge_ask_again(SliceIndex begin, SliceIndex end) {
  if (!arena_may_be_huge()) return;
  while (begin < end) {
    SliceIndex run = begin;
    while (run < end && huge_is_chunk(run)) run += kSlicesPerChunk;
    arena_ask_for_huge(begin, run);
    begin = run + kSlicesPerChunk;
  }
}

}  // namespace rdmalloc
