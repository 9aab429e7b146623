// The insides of the page heap, for the files that it is made of: page_heap.cc (taking, freeing,
// growing), page_heap_region.cc (regions of heaps), page_heap_purge.cc (what the purge thread
// does), page_heap_rebuild.cc (walks over everything: fork, checks), and for parked.cc, which
// stands before it. Everything below wants the lock, but where it says otherwise.
#pragma once

#include "alloc/os/os.h"
#include "alloc/os/topology.h"
#include "alloc/pages/free_spans.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc::page_heap_state {

struct PageHeap {
  Lock lock;
  std::atomic<SliceIndex> frontier{0};
  FreeSpans dirty;
  FreeSpans spared;
  FreeSpans clean;
  AgeList dirty_by_age;                       // dirty and spared ones
  std::atomic<std::uint64_t> used_slices;     // written under the lock, read by anybody
  std::atomic<std::uint64_t> dirty_slices;    // likewise; spared ones are dirty
  std::atomic<std::uint64_t> retired_slices;  // likewise; they count as used
  std::atomic<std::uint32_t> spare_ms;        // written and read by anybody
  std::uint64_t limit_slices = UINT64_MAX;    // set once at initialisation
  std::uint64_t clean_slices;
  std::uint64_t purging_slices;
  std::uint64_t large_spans;
  std::uint64_t slab_spans;
  std::uint64_t next_generation;
};
extern constinit PageHeap heap;

inline FreeSpans& family(SpanKind kind) {
  if (kind == SpanKind::kFreeClean) return heap.clean;
  return kind == SpanKind::kFreeSpared ? heap.spared : heap.dirty;
}

inline std::uint32_t now_ms() {
  return static_cast<std::uint32_t>(os::coarse_ms());
}

inline SliceIndex first_of(SliceIndex slice) {
  return arena.first[slice].load(std::memory_order_relaxed);
}
inline void set_first(SliceIndex slice, SliceIndex first) {
  arena.first[slice].store(first, std::memory_order_relaxed);
}

inline void add_used(std::int64_t slices) {
  heap.used_slices.store(
      heap.used_slices.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(slices),
      std::memory_order_relaxed);
}
inline void add_dirty(std::int64_t slices) {
  heap.dirty_slices.store(
      heap.dirty_slices.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(slices),
      std::memory_order_relaxed);
}

// Enters a span, whose neighbours are not of its family, into the lists. `near`: see AgeList.
void insert_free(SliceIndex slice, std::uint32_t slices, SpanKind kind, SliceIndex near = 0);
// Takes a span out of the lists; returns a hint for what takes its place by age.
SliceIndex remove_free(SliceIndex slice, std::uint32_t slices, SpanKind kind);

enum class Age { kOldest, kOwn };
// Joins a span on its way into the lists with free neighbours of its family. Of dirty spans joined
// the oldest age is kept, so that a neighbour that is freed again and again can't put a purge off
// for ever (I7). With kOwn the span's own age counts: after a refused purge, or the next pass would
// begin with it again.
// `near`: see AgeList.
void join_and_insert(SliceIndex slice, std::uint32_t slices, SpanKind kind, Age age = Age::kOldest,
                     SliceIndex near = 0);
// Cuts `wanted` slices at `at` out of the free span [slice, +slices) and puts the rest back. What
// is cut is kReserved. The metadata of the pieces is written before the word that makes them
// visible.
void cut(SliceIndex slice, std::uint32_t slices, SpanKind kind, SliceIndex at,
         std::uint32_t wanted);

// Makes a span that was taken one in use: a block of it may be handed out then.
void publish_locked(SliceIndex slice, SpanWord word);

}  // namespace rdmalloc::page_heap_state
