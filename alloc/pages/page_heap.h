// The page heap: all spans that are not in use, and the cutting and joining of them. One for each
// shard, of segments that it takes from the central one (segments.h).
//
// Three families of free spans, kept apart and never joined with each other:
//
//   retained  backed by pages, left by a buffer, perhaps registered still; by one above 4 MiB only
//             once there are threads, or something that may register memory (places.h)
//   dirty     backed by pages, left by anything else
//   clean     reads as zero, costs nothing
//
//   a buffer takes           retained, else dirty, else clean
//   a slab or a small span   dirty, else retained that is old or not among the 32 latest, else
//                            neighbours of both, else clean, else any retained
//
// So a buffer that was freed and is asked for again comes back at the same address, its pages there
// and its registration alive, whatever was allocated in between: a cache of registrations knows
// addresses, and a slab that cut the span would send the next buffer elsewhere. What that may cost
// is bounded by what bounds dirty memory: a retained span is old once free memory of its age is
// given back. Fit is best within a bin (exact sizes to 4 MiB, sixteen bins to a doubling above).
//
// Equations that hold whenever the locks are free (page_heap_is_valid checks them):
//   slices in use + free dirty + free retained + free clean + in flight == frontier
//   no two neighbours of a heap are free and of one family, but for retained ones of different
//   buffers, and dirty and retained ones of different NUMA nodes;  first[] of both ends of a span
//   == its first slice;  class_map is 0 for all slices of a free span
//
// Lock order: a slab class's lock, a shard's page heap's, the central one's; no thread holds those
// of two shards, but for page_heap_is_valid(). Under the central one: raw mprotect, mincore and
// MADV_HUGEPAGE at growth, nothing else that enters the kernel.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "alloc/pages/arena.h"

namespace rdmalloc {

// What a span is taken for.
enum class TakenFor : std::uint8_t {
  kOthers,  // slabs, and blocks below kBufferSlices
  kBuffer,  // a block
  kZeroes,  // one of calloc's: the program may leave most of it as it is
  kExact,   // as kBuffer, of a heap of the user, or a region of one: not a slice longer
  kRegion,  // of a heap of the user: no pages that are there already, if other addresses will do
  kSlabAnywhere,  // a slab, where no buffer's place is worth more than new pages (places.h)
};
constexpr bool is_buffer(TakenFor what) {
  return what == TakenFor::kBuffer || what == TakenFor::kExact || what == TakenFor::kZeroes;
}

// Blocks of up to 4 MiB are kept whole for the next one of their length (page_heap_quick.cc).
inline constexpr std::uint32_t kLongestQuick = 64;
// A buffer of up to 4 MiB takes a free place that is longer by one part in so many, or less, as a
// whole: what would be left of it serves few, and has to be joined again.
inline constexpr std::uint32_t kWholeParts = 8;
constexpr std::uint32_t longest_whole(std::uint32_t slices) {
  return slices <= kLongestQuick ? slices + slices / kWholeParts : slices;
}
// What is cut for it from a longer one has, from 1 MiB on, one of eight lengths to a doubling: so
// it serves the next buffers of all sizes.
constexpr std::uint32_t slices_to_cut(std::uint32_t slices) {
  std::uint32_t step = std::bit_floor(slices) / kWholeParts;
  return step <= 1 || slices > kLongestQuick ? slices : (slices + step - 1) / step * step;
}
static_assert([] {
  for (std::uint32_t slices = 1; slices <= kLongestQuick; ++slices)
    if (slices_to_cut(slices) > longest_whole(slices)) return false;
  return true;
}());

// Takes a span for a slab of `slices` slices, aligned to its size, out of the heap of the shard
// that the caller is of, if that has or gets one. It is kReserved until the caller has written its
// bitmap and publishes it. Returns 0 ("none") when there is no memory.
SliceIndex page_heap_take_slab(unsigned shard, std::uint32_t slices);
// `owner`: the heap of the user that the span is for, 0 for none; here and below. `shard`: where
// there is none.
void page_heap_publish_slab(SliceIndex slice, std::uint8_t size_class, std::uint16_t owner = 0,
                            std::uint8_t shard = 0);

// Takes and publishes the slab of a class of spans, whose one block is the caller's. 0: no memory.
SliceIndex page_heap_take_span(unsigned shard, unsigned size_class);
// The same of up to `wanted` runs of that length, those freed last. Returns how many there were.
std::uint32_t page_heap_take_quick_spans(unsigned shard, unsigned size_class, SliceIndex* spans,
                                         std::uint32_t wanted);

// Takes and publishes as a large span the run of that length that was freed last. 0: there is none.
SliceIndex page_heap_take_quick(unsigned shard, std::uint32_t slices);

// The shard to take regions of heaps of the user for: they are the central heap's, and none comes
// from what is left in segments. The page_heap_region_* functions hold that heap's lock only.
inline constexpr unsigned kNoShard = UINT32_MAX;
// Takes and publishes a large span of `slices` slices at a multiple of `alignment` bytes (a power
// of two; a slice comes for free). `*is_zero` tells whether its pages read as zero. 0: no memory.
SliceIndex page_heap_take_large(unsigned shard, std::uint32_t slices, std::size_t alignment,
                                bool* is_zero, std::uint16_t owner = 0,
                                TakenFor what = TakenFor::kBuffer);

// Takes and publishes a span for a large block that has grown before and found no room behind it:
// somewhat longer than `slices`, and where there is room behind it. 0: no such place, which is no
// reason to fail. Longer by one part in kGrowingParts, and to whole chunks; by less where that
// saves new pages. `*is_new` tells whether it took such.
inline constexpr std::uint32_t kGrowingParts = 6;
SliceIndex page_heap_take_growing(unsigned shard, std::uint32_t slices, bool* is_new,
                                  std::uint16_t owner = 0);

// Whether RDMALLOC_LIMIT or the room of a small cgroup, and not a lack of free spans, refuses
// `more` slices. Any thread.
bool page_heap_is_over_limit(std::uint32_t more);

// The room that a small cgroup leaves: spans in use take more only after caches were emptied
// (TakeBack), which then widens it. Set outside malloc, where there is no RDMALLOC_LIMIT.
void page_heap_set_room(std::uint64_t bytes);  // UINT64_MAX: no such cgroup any more
bool page_heap_room_is_set();
// To what was set, or to an eighth above what is in use: after a purge, by whichever thread purged.
void page_heap_narrow_room();
void page_heap_widen_room(std::uint32_t more);
bool page_heap_is_over_room(std::uint64_t more);

// RDMALLOC_LIMIT, or the room of a small cgroup, in slices; UINT64_MAX: neither.
std::uint64_t page_heap_limit_slices();

// Publishes a span that was taken out of a region as a large block of its heap.
void page_heap_publish_large(SliceIndex slice, std::uint16_t owner);

// The program has lowered RLIMIT_AS: arena_give_up_rest(). Not from malloc.
void page_heap_fit_limit();

// Takes a span out of use: its pages are dirty from now on. The caller calls purge_note_dirty()
// once it holds no lock. False: another thread has freed it at this moment.
bool page_heap_free(SliceIndex slice);
// In the child of a fork: the same for one that a vanished thread kept (Span::is_kept). A child of
// that child, born at any moment of it, frees it once, and loses it at no moment.
void page_heap_recover_kept(SliceIndex slice);
// The same for blocks of a class of spans. Stops at one that is none, and returns how many it was.
std::uint32_t page_heap_free_spans(unsigned span_class, void* const* blocks, std::uint32_t count);
// The same for a slab some of whose pages a purge has in flight: all of it is from now on, until
// page_heap_purge_end().
void page_heap_free_in_flight(SliceIndex slice);

// Grows or shrinks a large span where it lies. False when the neighbour is in use (grow).
bool page_heap_grow(SliceIndex slice, std::uint32_t slices);
void page_heap_shrink(SliceIndex slice, std::uint32_t slices);

// ---- regions of heaps of the user (page_heap_region.cc, heaps/heap_regions.h) ----
//
// A region is a run of slices that is some heap's as a whole. It is in use as far as the page heap
// is concerned, whatever of it the heap hands out: no span outside the heap is ever cut from it or
// joined with it, and no purge is offered it. The heap keeps its own lists of what is free there;
// here only the words change. In order that the words tile at each moment, what is cut off gets its
// word before the span that it is cut from is shortened.

// Makes a large span of malloc's a region of a heap, free as a whole.
void page_heap_region_make(SliceIndex slice, std::uint16_t owner);
// Ends the region: what is the heap's of these slices is dirty from now on; or, with `is_kept`, out
// of reach for ever. No block of the heap is in use there.
void page_heap_region_end(SliceIndex slice, std::uint32_t slices, bool is_kept);
// Ends one whose pages are not the arena's own: it is retired until page_heap_region_restored().
void page_heap_region_retire(SliceIndex slice, std::uint32_t slices);
// The first retired region from `from` on; 0: there is none.
SliceIndex page_heap_next_retired(SliceIndex from, std::uint32_t* slices);
// Its pages are the arena's own again, none of them backed: it is clean.
void page_heap_region_restored(SliceIndex slice);
// Slices of retired regions. Written under the lock, read by any thread.
std::uint64_t page_heap_retired_slices();
// Of a region all of whose pages are new: what was notified as purged is to be notified as reused.
void page_heap_region_note_new_pages(SliceIndex slice, std::uint32_t slices);
// Cuts `wanted` slices at `at` out of the free span at `slice`; until they are published they are
// kReserved.
void page_heap_region_cut(SliceIndex slice, SliceIndex at, std::uint32_t wanted);
// Takes a span of the region out of use. It is joined with nothing.
void page_heap_region_free(SliceIndex slice);
// Makes two neighbours that are free one.
void page_heap_region_join(SliceIndex before, SliceIndex after);
// Grows a large block by the first slices of the free span behind it; shortens one.
void page_heap_region_grow(SliceIndex slice, std::uint32_t slices);
void page_heap_region_shrink(SliceIndex slice, std::uint32_t slices);

// ---- for the purge thread (purge.cc) ----

// Which dirty spans a purge takes. Times are coarse_ms.
struct PurgeChoice {
  bool any_age;                 // all of them, oldest first
  std::int64_t whole_until_ms;  // freed until then: whole huge pages of it, and small pages
  std::int64_t part_until_ms;   // freed until then, the earlier time: also parts of huge pages
  std::uint32_t most;           // slices at once
};
// The arena may end within a huge page, which is backed to its end. Makes what lies there dirty
// once the choice allows it: freed with the free span that ends there, or when huge pages were last
// asked for. Not before: what is taken next is to lie right behind.
void page_heap_enter_rest(const PurgeChoice& choice);
// Whether there is such a rest, which is in no count. Takes the central lock.
bool page_heap_has_rest();
// What a pass has offered last, without a gap.
struct PurgeOffered {
  SliceIndex begin = 0, end = 0;
  bool has_more = false;  // behind it lies what this pass may offer next
};
// Takes the oldest dirty slices that the choice allows, which are in flight then: their word says
// kPurging. Returns 0 when there are none. Of a span that begins with what was offered last, what
// lies behind that: the front is young from then on.
SliceIndex page_heap_purge_begin(const PurgeChoice& choice, PurgeOffered* last,
                                 std::uint32_t* slices);
// Cuts a span in purging in two; the second one starts at slice + front.
void page_heap_purge_split(SliceIndex slice, std::uint32_t front);
// Puts it back: clean when its pages are gone, else into its family, freed at `freed_ms` whatever
// the age of the neighbours that it joins; with `has_more` at theirs where that is older, for what
// lies behind it is offered next.
void page_heap_purge_end(SliceIndex slice, bool is_clean, std::uint32_t freed_ms,
                         bool has_more = false);

// Pages of a slab in use were given back: the span of `slice` gets a new generation.
void page_heap_note_part_purged(SliceIndex slice);

struct PageHeapCounters {
  std::uint64_t used_slices;   // in use by slabs and large spans
  std::uint64_t dirty_slices;  // free and backed, dirty and retained
  std::uint64_t purging_slices;
  std::uint64_t frontier_slices;
  std::uint64_t large_spans;
  std::uint64_t slab_spans;
  std::uint64_t segments;       // that shards have of the central heap (segments.h)
  std::uint64_t segment_moves;  // how often one came to a shard or went from it
};
PageHeapCounters page_heap_counters();
// Slices that are free and backed, of all shards; read without the locks, for the purge thread's
// decisions.
std::uint64_t page_heap_dirty_slices();
// Whether so much has become dirty in some shard since the last look that another one is worth its
// cost, which is a cache line of each shard. Says so once. With RDMALLOC_LIMIT or room always.
bool page_heap_dirty_has_grown();
// After a look: so many slices more may become dirty. Keeps the next look before that.
void page_heap_allow_dirty(std::uint64_t more);
// Slices in use, likewise.
std::uint64_t page_heap_used_slices();
// Of the heap that has the shard's slabs.
std::uint64_t page_heap_used_slices_of(unsigned shard);
// RDMALLOC_LIMIT: spans in use never take more than this. At initialisation.
void page_heap_set_limit(std::uint64_t bytes);
// How long a retained span is left to buffers: the decay time.
void page_heap_set_retain_ms(std::uint64_t retain_ms);
// End of the slices that were ever part of a span. Acquire: the words below it are there.
SliceIndex page_heap_frontier();
// End of the slices that are reserved. Takes the lock: what page_heap_reaches() asks the kernel for
// and gives up again is no one's.
SliceIndex page_heap_reserved();
// Whether `slices` fit below the frontier, if all there were free, or would with what is missing
// behind it: what the kernel refused may have been more than that. The frontier stays, for what is
// passed over has no huge pages later on, and a rest that lies there is counted nowhere.
bool page_heap_reaches(std::uint32_t slices);
// The first slice of the span after the one at `slice`, for walks below `end` without the lock.
// Spans may be cut and joined meanwhile: a slice that is no span's first any more belongs to a
// longer one, whose end the walk goes on from.
inline SliceIndex page_heap_next(SliceIndex slice, SliceIndex end) {
  std::uint32_t slices = arena.span(slice).load().slices;
  SliceIndex next = slice + (slices != 0 ? slices : 1);
  while (next < end && arena.first[next].load(std::memory_order_relaxed) != next) ++next;
  return next;
}

// For the child of a fork (fork.cc): makes the lists anew from the words where the lock was held.
// Spans that are being purged are dirty afterwards, unless their purge goes on in this process.
void page_heap_rebuild(bool purge_goes_on);
// Puts spans back, as dirty, that were in flight and whose purge will not go on in the child.
void page_heap_end_purges();
// Walks everything and checks the equations above. Takes the lock. Cold; tests and checked builds.
bool page_heap_is_valid();

}  // namespace rdmalloc
