#include "alloc/pages/huge_pages.h"

#include "alloc/pages/arena.h"

namespace rdmalloc {
namespace {

constexpr SliceIndex chunk_of(SliceIndex slice) {
  return slice & ~(kSlicesPerChunk - 1);
}
constexpr SliceIndex chunk_after(SliceIndex slice) {
  return chunk_of(slice + kSlicesPerChunk - 1);
}

// Bytes that are likely to be backed in a span: of a slab those of the blocks that are out, since a
// slab hands out by rising address.
std::uint64_t backed_bytes(const Span& span, SpanWord word) {
  if (word.kind == SpanKind::kFreeClean) return 0;
  if (word.kind != SpanKind::kSlab) return std::uint64_t{word.slices} << kSliceShift;
  const ClassInfo& info = class_info(word.size_class);
  std::int32_t free_blocks = span.free_blocks.load(std::memory_order_relaxed);
  if (free_blocks < 0) free_blocks = 0;
  std::uint32_t out = info.slab_blocks - static_cast<std::uint32_t>(free_blocks);
  return std::uint64_t{out} * info.block_bytes;
}

// Whether what is backed fills three quarters of the addresses below the frontier: then huge pages
// cost a third more at most. Walks all spans, no more than 1,024 of them, once for each chunk that
// is entered until it says yes.
bool is_dense(SliceIndex frontier) {
  std::uint64_t backed = 0, wanted = (std::uint64_t{frontier} << kSliceShift) / 4 * 3;
  for (SliceIndex slice = 1; slice < frontier && backed < wanted;) {
    const Span& span = arena.span(slice);
    SpanWord word = span.load();
    backed += backed_bytes(span, word);
    slice += word.slices;
  }
  return backed >= wanted;
}

}  // namespace

bool huge_is_chunk(SliceIndex chunk) {
  return chunk >= arena.huge_from || arena.span(chunk).is_huge;
}

bool huge_is_any(SliceIndex begin, SliceIndex end) {
  if (end > arena.huge_from) return true;
  for (SliceIndex chunk = chunk_of(begin); chunk < end; chunk += kSlicesPerChunk)
    if (arena.span(chunk).is_huge) return true;
  return false;
}

SliceIndex huge_choose_end(SliceIndex frontier, SliceIndex end) {
  if (!arena_may_be_huge()) return end;
  SliceIndex entered = chunk_after(frontier);
  if (entered < kSmallZoneSlices) entered = kSmallZoneSlices;
  if (entered < end && entered < arena.huge_from && is_dense(frontier))
    arena_set_huge_from(entered);
  return end > arena.huge_from ? chunk_after(end) : end;
}

void huge_ask_for_whole(SliceIndex begin, SliceIndex end) {
  begin = chunk_after(begin);
  if (begin < kSmallZoneSlices) begin = kSmallZoneSlices;
  end = chunk_of(end < arena.huge_from ? end : arena.huge_from);
  if (begin >= end || !arena_may_be_huge()) return;
  arena_ask_for_huge(begin, end);
  for (SliceIndex chunk = begin; chunk < end; chunk += kSlicesPerChunk)
    arena.span(chunk).is_huge = true;
}

void huge_ask_again(SliceIndex begin, SliceIndex end) {
  if (!arena_may_be_huge()) return;
  for (; begin < end && begin < arena.huge_from; begin += kSlicesPerChunk)
    if (arena.span(begin).is_huge) arena_ask_for_huge(begin, begin + kSlicesPerChunk);
  arena_ask_for_huge(begin, end);
}

}  // namespace rdmalloc
