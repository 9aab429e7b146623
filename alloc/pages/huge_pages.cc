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

// Whether what is backed fills two thirds of the last `latest` slices below the frontier: where it
// goes on like that, huge pages cost half as much again at most. Walks all spans, no more than
// 1,024 of them, once for each chunk that is entered until it says yes.
bool is_dense(SliceIndex frontier, SliceIndex latest) {
  SliceIndex from = frontier > latest ? frontier - latest : 0, slice = 1;
  for (SliceIndex next = 1; next <= from; next += arena.span(next).load().slices) slice = next;
  std::uint64_t backed = 0, wanted = (std::uint64_t{frontier - slice} << kSliceShift) / 3 * 2;
  while (slice < frontier && backed < wanted) {
    const Span& span = arena.span(slice);
    SpanWord word = span.load();
    backed += backed_bytes(span, word);
    slice += word.slices;
  }
  return backed >= wanted;
}

// Where a buffer asks for pages it is the latest that counts: a program begins with a slab for each
// size that it uses, nearly empty, and then goes on with the buffers it is made for. The next slab
// says no more of what comes than all before it.
constexpr SliceIndex kLatestForBuffers = (std::size_t{8} << 20) / kSliceBytes;

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

SliceIndex huge_choose_end(SliceIndex frontier, SliceIndex end, bool is_for_buffer) {
  if (!arena_may_be_huge()) return end;
  SliceIndex entered = chunk_after(frontier);
  if (entered < kSmallZoneSlices) entered = kSmallZoneSlices;
  if (entered < end && entered < arena.huge_from &&
      is_dense(frontier, is_for_buffer ? kLatestForBuffers : frontier))
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
