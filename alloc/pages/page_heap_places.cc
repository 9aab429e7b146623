// Which backed spans are left alone: those of another node, and buffers' latest places.
#include "alloc/os/topology.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc::page_heap_state {

namespace {

// Places of buffers that are left alone, those left last: on the quick list, and retained spans. A
// program that leaves more of them at once has gone on to something else, or loses few
// registrations of many; it may leave half its memory. Slabs take the others until so many are
// left; of those of 256 KiB at most, which cost least to register, all but the 16 left last.
constexpr std::uint32_t kPlaces = 32, kShortPlaces = 16, kShortSlices = 4;

bool is_kept_while_young(SliceIndex backed, std::uint32_t slices) {
  std::uint32_t age_ms = now_ms() - arena.span(backed).freed_ms;
  if (age_ms >= shared.retain_ms.load(std::memory_order_relaxed)) return false;
  std::uint64_t limit = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  return limit == UINT64_MAX ||
         page_heap_used_slices() + page_heap_dirty_slices() + slices <= limit >> kSliceShift;
}

// Calls visit(slice) for the retained spans among them.
template <class Visit>
void for_latest_places(const PageHeap& heap, Visit visit) {
  constexpr std::uint32_t kMostLooks = 4 * kPlaces;
  std::uint32_t places = heap.quick.buffers, looks = 0;
  for (SliceIndex s = heap.dirty_by_age.youngest();
       s != 0 && places < kPlaces && looks < kMostLooks; s = arena.span(s).older, ++looks) {
    SpanWord word = arena.span(s).load();
    if (word.kind != SpanKind::kFreeRetained) continue;
    if (places < kShortPlaces || word.slices > kShortSlices) visit(s);
    ++places;
  }
}

}  // namespace

bool is_far_and_young(SliceIndex backed, std::uint32_t slices) {
  return arena.span(backed).node != os::this_node() && is_kept_while_young(backed, slices);
}

bool are_few_places(const PageHeap& heap) {
  return heap.quick.buffers + heap.retained_spans <= kPlaces;
}

bool is_left_alone(const PageHeap& heap, SliceIndex retained, std::uint32_t slices) {
  if (!is_kept_while_young(retained, slices)) return false;
  if (are_few_places(heap)) return true;
  bool is_latest = false;
  for_latest_places(heap, [&](SliceIndex place) { is_latest |= place == retained; });
  return is_latest;
}

void mark_left_alone(const PageHeap& heap, bool are_marked) {
  for_latest_places(heap, [=](SliceIndex place) {
    Span& span = arena.span(place);
    span.is_left_alone = are_marked && is_kept_while_young(place, span.load().slices);
  });
}

}  // namespace rdmalloc::page_heap_state
