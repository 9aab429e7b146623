#include "alloc/pages/huge_pages.h"

#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {
namespace {

constexpr std::uint32_t kHugeRanges = 4096;
// A heap has huge pages for its slabs from this size on: one chunk that is only begun is less than
// a hundredth of it.
constexpr std::uint64_t kLargeHeapSlices = (std::uint64_t{256} << 20) / kSliceBytes;
// The latest slices, and the share of them that must be blocks of slabs, in eighths.
constexpr SliceIndex kLatestSlices = (std::size_t{16} << 20) / kSliceBytes;
constexpr std::uint64_t kDenseEighths = 7;
// Chunks asked for at once: a sixteenth of the heap, for a look and a system call each.
constexpr std::uint64_t kStepDivisor = 16;

// All under the page heap's lock.
struct HugeRanges {
  SliceIndex slabs_end = 0;   // chunks up to here were asked for by huge_ask_for_slabs()
  SliceIndex latest_end = 0;  // where the latest range ends: one that begins here prolongs it
  std::uint32_t count = 0;
};
constinit HugeRanges ranges;

constexpr SliceIndex chunk_of(SliceIndex slice) {
  return slice & ~(kSlicesPerChunk - 1);
}
constexpr SliceIndex chunk_after(SliceIndex slice) {
  return chunk_of(slice + kSlicesPerChunk - 1);
}

void ask(SliceIndex begin, SliceIndex end) {
  bool prolongs = begin == ranges.latest_end;
  if (!prolongs && ranges.count == kHugeRanges) return;
  if (arena_want_huge_chunks() != 0) return;
  ranges.count += prolongs ? 0 : 1;
  ranges.latest_end = end;
  arena_ask_for_huge(begin, end);
  std::atomic<bool>* chunks = arena.huge_chunks.load(std::memory_order_relaxed);
  // Relaxed: before any page of the chunk is used, under the central page heap's lock.
  for (SliceIndex chunk = begin; chunk < end; chunk += kSlicesPerChunk)
    chunks[chunk / kSlicesPerChunk].store(true, std::memory_order_relaxed);
}

// Bytes that are surely touched in a span: blocks of slabs of small blocks that are out. A block
// that is a span, or nearly a page, may have hardly been written: 100 bytes at an alignment of 64
// KiB take a page of it.
std::uint64_t dense_bytes(const Span& span, SpanWord word) {
  if (word.kind != SpanKind::kSlab) return 0;
  const ClassInfo& info = class_info(word.size_class);
  if (info.block_bytes > kHugeSlabBlock) return 0;
  std::int32_t free_blocks = span.free_blocks.load(std::memory_order_relaxed);
  if (free_blocks < 0) free_blocks = 0;
  std::uint32_t out = info.slab_blocks - static_cast<std::uint32_t>(free_blocks);
  return std::uint64_t{out} * info.block_bytes;
}
std::uint64_t dense_bytes(SliceIndex begin, SliceIndex end) {
  std::uint64_t bytes = 0;
  // Some of it may be other heaps', whose locks are not held.
  for (SliceIndex slice = begin; slice < end; slice = page_heap_next(slice, end))
    bytes += dense_bytes(arena.span(slice), arena.span(slice).load());
  return bytes;
}
bool is_dense(std::uint64_t bytes, SliceIndex slices) {
  return bytes >= (std::uint64_t{slices} << kSliceShift) / 8 * kDenseEighths;
}

// Whether what lies right below the frontier is.
bool is_dense_below(SliceIndex frontier) {
  SliceIndex begin = arena.first[frontier - kLatestSlices].load(std::memory_order_relaxed);
  // The first slice of a free span is known at its ends only.
  if (begin == 0 || begin > frontier - kLatestSlices) return false;
  return is_dense(dense_bytes(begin, frontier), frontier - begin);
}

// Whether the latest segments of a shard's heap are, which lie among those of other heaps.
bool is_dense_of_heap(unsigned heap, SliceIndex end) {
  constexpr unsigned kMostLooks = 256;
  std::uint64_t bytes = 0;
  SliceIndex seen = 0;
  for (unsigned looks = 0; looks < kMostLooks && seen < kLatestSlices && end > kSegmentSlices;
       ++looks) {
    end -= kSegmentSlices;
    if (arena.heap_of_segment[end / kSegmentSlices].load(std::memory_order_relaxed) != heap)
      continue;
    SliceIndex begin = arena.first[end].load(std::memory_order_relaxed);
    if (begin == end) bytes += dense_bytes(end, end + kSegmentSlices);
    seen += kSegmentSlices;
  }
  return seen == kLatestSlices && is_dense(bytes, seen);
}

}  // namespace

bool huge_is_chunk(SliceIndex chunk) {
  const std::atomic<bool>* chunks = arena.huge_chunks.load(std::memory_order_acquire);
  return chunks != nullptr && chunks[chunk / kSlicesPerChunk].load(std::memory_order_relaxed);
}

bool huge_is_any(SliceIndex begin, SliceIndex end) {
  for (SliceIndex chunk = chunk_of(begin); chunk < end; chunk += kSlicesPerChunk)
    if (huge_is_chunk(chunk)) return true;
  return false;
}

void huge_ask_for_slabs(SliceIndex frontier) {
  std::uint64_t used = page_heap_used_slices();
  if (used < kLargeHeapSlices || frontier < ranges.slabs_end || !arena_may_be_huge()) return;
  if (!is_dense_below(frontier)) return;
  SliceIndex begin = chunk_after(frontier);
  SliceIndex end = begin + chunk_after(static_cast<SliceIndex>(used / kStepDivisor));
  if (end > arena.extent() / kSliceBytes || arena_commit(end) != 0) return;
  ask(begin, end);
  ranges.slabs_end = end;
}

void huge_ask_for_segment(SliceIndex begin, SliceIndex end, unsigned heap) {
  if (page_heap_used_slices() < kLargeHeapSlices || !arena_may_be_huge()) return;
  if (is_dense_of_heap(heap, begin)) ask(begin, end);
}

SliceIndex huge_end(SliceIndex end) {
  return end < arena.committed && huge_is_chunk(chunk_of(end)) ? chunk_after(end) : end;
}

void huge_ask_for_block(SliceIndex begin, SliceIndex end) {
  if (end - begin < kHugeBlockSlices || !arena_may_be_huge()) return;
  begin = chunk_after(begin);
  end = chunk_of(end);
  if (begin < end) ask(begin, end);
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
