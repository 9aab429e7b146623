// The insides of the page heap, for the files that it is made of:
//
//   page_heap.cc             free spans; what is freed, grown, shortened
//   page_heap_take.cc        taking, and the order in which places are tried
//   page_heap_neighbours.cc  free neighbours taken as one
//   page_heap_places.cc      what is left to buffers, and to threads of another node
//   page_heap_others.cc      what other shards have free
//   page_heap_quick.cc       the quick list
//   segments.cc              which heap has which segment
//   page_heap_region.cc      regions of heaps of the user
//   page_heap_purge.cc       the purge thread's part
//   page_heap_rebuild.cc     walks over everything: fork, checks, counters
//
// Everything below wants the lock of the heap that it is given, but where it says otherwise.
#pragma once

#include "alloc/core/lock.h"
#include "alloc/core/vain_looks.h"
#include "alloc/os/os.h"
#include "alloc/os/sanitizers.h"
#include "alloc/os/topology.h"
#include "alloc/pages/free_spans.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/places.h"
#include "alloc/pages/segments.h"

namespace rdmalloc::page_heap_state {

// The runs that were freed last, for blocks of the same length (page_heap_quick.cc).
struct QuickList {
  static constexpr unsigned kRuns = 128, kRunsOfOneLength = 1024;  // at most
  static constexpr std::uint32_t kLongest = kLongestQuick;
  std::uint32_t count;
  std::uint32_t buffers;  // of kBufferSlices and more
  std::uint32_t slices;   // of all of them
  std::uint32_t puts;     // wrapping; what it was at a run's is the run's Span::older
  // Bit n - 1: there are runs of n slices. Relaxed: without the lock a hint.
  std::atomic<std::uint64_t> lengths;
  // At n - 1, of those the one freed last and the one freed first: the ends of a list by
  // Span::next.
  SliceIndex latest[kLongest];
  SliceIndex oldest[kLongest];

  // The shortest length from `least` to `most` that there are runs of; 0: there is none.
  std::uint32_t find(std::uint32_t least, std::uint32_t most) const {
    if (least > kLongest) return 0;
    std::uint64_t longer = lengths.load(std::memory_order_relaxed) >> (least - 1);
    if (longer == 0) return 0;
    std::uint32_t length = least + static_cast<std::uint32_t>(std::countr_zero(longer));
    return length <= most ? length : 0;
  }
  bool has(std::uint32_t length) const { return find(length, length) != 0; }
};

// What one of few shards knows of the others' page heaps (page_heap_others.cc). Its threads' only,
// without the lock. Relaxed: hints.
struct OthersSeen {
  std::atomic<std::uint32_t> noted_ms;           // when, by coarse_ms
  std::atomic<std::uint32_t> noted_takes;        // and the shard's own_takes then
  std::atomic<std::uint32_t> left_out;           // takes for which it does not look
  std::atomic<std::uint32_t> still;              // a bit for each: those found still
  std::atomic<std::uint32_t> slices;             // taken of those, or about to be
  std::atomic<std::uint32_t> takes[kFewShards];  // PageHeap::own_takes of each, as last seen
  std::atomic<std::uint32_t> since[kFewShards];  // and the shard's own then
};

// All zero at first: shards' heaps are made of new pages.
struct alignas(64) PageHeap {
  Lock lock;
  // How often the shard's threads took a span, of its quick list or, where shards are few, any.
  // Relaxed, without the lock: a hint for others.
  std::atomic<std::uint32_t> own_takes;
  QuickList quick;
  FreeSpans dirty;
  FreeSpans retained;
  FreeSpans clean;
  AgeList dirty_by_age;                       // dirty and retained ones
  std::uint32_t retained_spans;               // how many
  VainLooks looks_to_join, looks_for_backed;  // over long lists
  std::atomic<std::uint64_t> used_slices;     // written under the lock, read by any thread
  std::atomic<std::uint64_t> dirty_slices;    // likewise; retained ones are dirty
  std::uint64_t clean_slices;
  std::uint64_t purging_slices;
  std::uint64_t large_spans;
  std::uint64_t slab_spans;
  std::uint64_t next_generation;  // a multiple of kGenerations: none left
  std::uint64_t noted_dirty;      // beyond so many dirty slices the sum of all is looked at
  bool counts_segments;    // what of them is free: shards' heaps, and the central one beside them
  std::uint32_t segments;  // a shard's: that are its own
  std::uint32_t whole_segments;   // all free
  std::uint32_t backed_segments;  // of them, not all clean
  SliceIndex backed_from;         // none of those lies below
  unsigned index;                 // the shard
  std::uint64_t moves;            // segments that came or went
  // See is_for_shard(). Relaxed, read and written without the lock: hints.
  std::atomic<std::uint32_t> meetings, takes_alone;
  OthersSeen others;
};

// What there is one of.
struct Shared {
  std::atomic<SliceIndex> frontier{0};             // written under the central heap's lock
  std::atomic<std::uint64_t> retired_slices{0};    // likewise; they count as used
  std::atomic<std::uint32_t> retain_ms{0};         // written and read by any thread
  std::atomic<std::uint64_t> next_generations{0};  // drawn by any heap
  // RDMALLOC_LIMIT, set once at initialisation; or the room that a small cgroup leaves, which is
  // set, widened and narrowed at any time. Relaxed: what is seen late is asked for once more.
  std::atomic<std::uint64_t> limit_slices{UINT64_MAX};
  std::atomic<std::uint64_t> least_room_slices{UINT64_MAX};  // to which it is narrowed
  // With RDMALLOC_LIMIT: slices in use of all heaps, counted before they are taken. Relaxed: it
  // orders nothing, and each addition sees all before it.
  std::atomic<std::uint64_t> limited_slices{0};
  // Whether there is a shard with a heap of its own. Set under the central heap's lock, for ever,
  // before the first segment goes there. Relaxed: the owner of a block there has it from one that
  // saw it.
  std::atomic<bool> has_segments{false};
  // See page_heap_dirty_has_grown(). Relaxed but where it is asked for.
  std::atomic<std::uint64_t> dirty_allowance{1};
  std::atomic<bool> dirty_has_grown{false};
};
extern constinit Shared shared;

// RDMALLOC_LIMIT, or room; UINT64_MAX: none.
inline std::uint64_t limit_slices() {
  return shared.limit_slices.load(std::memory_order_relaxed);
}
inline bool is_room() {
  return shared.least_room_slices.load(std::memory_order_relaxed) != UINT64_MAX;
}
// The room of a cgroup that was small and is not any more. Not UINT64_MAX: a thread that widens
// meanwhile would leave a limit behind that is none of a room.
inline constexpr std::uint64_t kEndlessRoom = UINT64_MAX / 2;

// The heap that all addresses come from.
extern constinit PageHeap central;
inline bool is_central(const PageHeap& heap) {
  return &heap == &central;
}

inline FreeSpans& family(PageHeap& heap, SpanKind kind) {
  if (kind == SpanKind::kFreeClean) return heap.clean;
  return kind == SpanKind::kFreeRetained ? heap.retained : heap.dirty;
}

// Spans that threads cache are as long as their class.
static_assert(longest_whole(kSpanClasses) == kSpanClasses);
// A limit is for what was asked for.
inline std::uint32_t longest_for(TakenFor what, std::uint32_t slices) {
  bool may_be_longer =
      (what == TakenFor::kBuffer || what == TakenFor::kZeroes) && limit_slices() == UINT64_MAX;
  return may_be_longer ? longest_whole(slices) : slices;
}

// The family of what a buffer of that length leaves (places.h). Up to 4 MiB a place in any program:
// where short ones lie joined and are cut anew, the same sizes again and again find other holes
// each time, and take new pages for the twelfth time still (system_calls_test).
inline SpanKind kind_of_place(std::uint32_t slices) {
  bool is_long = slices > QuickList::kLongest;
  return is_long && !page_heap_keeps_places() ? SpanKind::kFreeDirty : SpanKind::kFreeRetained;
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

// Both ends of a span know its first slice.
inline void set_ends(SliceIndex slice, std::uint32_t slices) {
  set_first(slice, slice);
  set_first(slice + slices - 1, slice);
}

// ---- segments (segments.h) ----

constexpr SliceIndex segment_of(SliceIndex slice) {
  return slice & ~(kSegmentSlices - 1);
}
// The heap whose that slice is, 0 for the central one. Relaxed: it changes with the locks of both
// heaps held, and while all of the segment is free. So without a lock it is known of a span in use,
// and with a heap's lock whether a slice is that heap's.
inline unsigned heap_index_of(SliceIndex slice) {
  return arena.heap_of_segment[slice / kSegmentSlices].load(std::memory_order_relaxed);
}
inline SegmentFree& free_in(SliceIndex segment) {
  return arena.span(segment).free_in_segment;
}
inline bool has_segments() {
  return shared.has_segments.load(std::memory_order_relaxed);
}
// The heap of that shard; the central one while there is none.
PageHeap& heap_of_shard(unsigned shard);
inline PageHeap& heap_of(SliceIndex slice) {
  return has_segments() ? heap_of_shard(heap_index_of(slice)) : central;
}
inline bool is_of(const PageHeap& heap, SliceIndex slice) {
  return !has_segments() || heap.index == heap_index_of(slice);
}
// Whether [.., slice) ends before a span of that heap.
inline bool goes_on(const PageHeap& heap, SliceIndex slice) {
  return slice < shared.frontier.load(std::memory_order_relaxed) && is_of(heap, slice);
}

// Gives a shard's heap a segment of the central one, backed or clean; false: no memory. Its lock is
// held, the central one's is taken.
bool segment_adopt(PageHeap& heap, TakenFor what);
// What was put back there may have made a segment free as a whole: gives it to the central heap if
// the shard's has more of them than it keeps. Their lock is held, the central one's is taken.
void segment_give_back(PageHeap& heap, SliceIndex slice, std::uint32_t slices);

// All free, and not all clean.
inline bool is_whole_and_backed(const SegmentFree& free_there) {
  return free_there.slices == kSegmentSlices && free_there.clean_slices != kSegmentSlices;
}
// Counts all free spans of the heap anew.
void count_segments(PageHeap& heap);

// Calls function(heap) for the central heap and those of all shards. No lock needed.
template <class Function>
void for_each_heap(Function function) {
  function(central);
  for (unsigned shard = 1; shard < shard_count(); ++shard) function(heap_of_shard(shard));
}
// Calls function(slice, word) for each span of the heap. It may join and cut spans up to this one's
// end.
template <class Function>
void for_each_span(const PageHeap& heap, Function function) {
  SliceIndex end = shared.frontier.load(std::memory_order_relaxed);
  for (SliceIndex slice = 1; slice < end;) {
    if (!is_of(heap, slice)) {
      slice = segment_of(slice) + kSegmentSlices;
      continue;
    }
    SpanWord word = arena.span(slice).load();
    function(slice, word);
    slice += word.slices;
  }
}

// ---- counts ----

// How many slices are dirty is known to be allowed, and some more (page_heap_dirty_has_grown).
void note_dirty(PageHeap& heap);
// Counts slices that are dirty, or are no more.
inline void add_dirty(PageHeap& heap, std::int64_t slices) {
  std::uint64_t dirty =
      heap.dirty_slices.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(slices);
  heap.dirty_slices.store(dirty, std::memory_order_relaxed);
  if (dirty <= heap.noted_dirty) return;
  note_dirty(heap);
  if (!shared.dirty_has_grown.load(std::memory_order_relaxed))
    shared.dirty_has_grown.store(true, std::memory_order_relaxed);
}
inline void add_used(PageHeap& heap, std::int64_t slices) {
  heap.used_slices.store(
      heap.used_slices.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(slices),
      std::memory_order_relaxed);
}
// Whether the limit, which there is, allows so many more; counts them then.
bool use_within_limit(std::uint64_t slices);
// Counts slices in use; false, and nothing done, where the limit refuses them.
inline bool use(PageHeap& heap, std::uint64_t slices) {
  if (limit_slices() != UINT64_MAX && !use_within_limit(slices)) [[unlikely]]
    return false;
  add_used(heap, static_cast<std::int64_t>(slices));
  return true;
}
inline void unuse(PageHeap& heap, std::uint64_t slices) {
  add_used(heap, -static_cast<std::int64_t>(slices));
  if (limit_slices() != UINT64_MAX && !is_room()) [[unlikely]]
    shared.limited_slices.fetch_sub(slices, std::memory_order_relaxed);
}

// ---- free spans ----

// Enters a span, whose neighbours are not of its family, into the lists. `near`: see AgeList.
void insert_free(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind,
                 SliceIndex near = 0);
// Takes a span out of the lists; returns a hint for what takes its place by age.
SliceIndex remove_free(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind);

// Whether two free neighbours of one family are to be one span. Not those of different nodes; and
// retained spans keep the extent of the buffers that left them: joined with a neighbour, the next
// buffer would begin where that one does, and a cache knows no registration of that range.
bool are_one(SliceIndex before, SliceIndex after, SpanKind kind);
enum class Age { kOldest, kOwn };
// Joins a span on its way into the lists with free neighbours of its family and heap. Of dirty
// spans joined the oldest age is kept, so that a neighbour that is freed again and again can't put
// a purge off for ever (I7). With kOwn the span's own age counts: after a refused purge, or the
// next pass would begin with it again; not for what such a purge offered last, behind which lies
// what it has not. `near`: see AgeList. Returns the span that it is part of.
SliceIndex join_and_insert(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind,
                           Age age = Age::kOldest, SliceIndex near = 0);
// Cuts `wanted` slices at `at` out of the free span [slice, +slices) and puts the rest back. What
// is cut is kReserved. The metadata of the pieces is written before the word that makes them
// visible.
void cut(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SpanKind kind, SliceIndex at,
         std::uint32_t wanted);

// ---- the quick list (page_heap_quick.cc) ----

// Enters the span in use with that word, which is freed at its freed_ms, if it is a block's and
// short enough. What it pushes out becomes a free span.
bool quick_put(PageHeap& heap, SliceIndex slice, SpanWord word);
// Takes the run of that length that was freed last and makes it a span in use with that word. 0:
// there is none.
SliceIndex quick_take(PageHeap& heap, std::uint32_t slices, SpanWord word);
// The one freed first of all; 0: there is none.
SliceIndex quick_oldest(const PageHeap& heap);
// Makes so many runs, the oldest ones, free spans; whether there were any.
bool quick_release(PageHeap& heap, std::uint32_t most = UINT32_MAX);
// The same of the oldest: a few of them, and more until they are twice as long as is wanted.
bool quick_release_for(PageHeap& heap, std::uint32_t slices);
// The same of the shortest run from `slices` to `longest`.
bool quick_release_fitting(PageHeap& heap, std::uint32_t slices, std::uint32_t longest);
// The same of the oldest run of the shortest length in which so many aligned slices fit; the free
// span that it is in. For heaps without segments.
SliceIndex quick_release_place(PageHeap& heap, std::uint32_t slices, Alignment alignment);
// The same of those freed until then (coarse_ms, wrapping).
void quick_release_until(PageHeap& heap, std::uint32_t until_ms);
// The same of the first one that keeps a block which ends there from growing by `wanted` slices;
// false: there is none, or something else is in the way too.
bool quick_release_before(PageHeap& heap, SliceIndex end, std::uint32_t wanted);
// How much may be dirty at all, of which quick lists may keep a part.
void quick_fit(std::uint64_t ceiling_bytes);

// Whether `wanted` slices right behind `end` are free, of any family and not left to threads of
// another node, or can be made so.
bool has_room_at(PageHeap& heap, SliceIndex end, std::uint32_t wanted);
// Takes those slices; they are to belong to the span before them. `rest`: the family of what is
// left of huge pages.
void take_room(PageHeap& heap, SliceIndex begin, std::uint32_t wanted, SpanKind rest);
// Takes [at, at + wanted) out of the clean span [slice, +slices). The first touch of a huge page
// backs all of it, so what is left of one at both ends becomes dirty, of the family `rest`: it is
// counted, preferred by the next allocation, and given back in time. But for the end of one that
// was begun before, and of the one at the frontier: what follows is to lie right behind.
void cut_clean(PageHeap& heap, SliceIndex slice, std::uint32_t slices, SliceIndex at,
               std::uint32_t wanted, SpanKind rest);
// Turns the free clean slices [begin, end) into dirty ones of the family `rest`, freed at
// `since_ms`: they are backed, or about to be, by the huge page of their neighbour. They lie in the
// clean span that begins at `span`.
void make_dirty(PageHeap& heap, SliceIndex span, SliceIndex begin, SliceIndex end, SpanKind rest,
                std::uint32_t since_ms, Age age = Age::kOldest);
// Begins a span that no heap has in its lists, [frontier, end). False when there is no memory.
bool move_frontier(SliceIndex frontier, SliceIndex end);
// Makes slices beyond the frontier a free clean span of the central heap, so that at least `wanted`
// aligned slices fit. Returns that span's first slice, 0 when there is no memory.
SliceIndex extend_frontier(std::uint32_t wanted, Alignment alignment);
// Where the clean span of the central heap begins that ends at the frontier, which it is itself
// where there is none.
inline SliceIndex last_clean(SliceIndex frontier) {
  if (frontier == 0 || !is_of(central, frontier - 1)) return frontier;
  SliceIndex last = first_of(frontier - 1);
  return arena.span(last).load().kind == SpanKind::kFreeClean ? last : frontier;
}
// As extend_frontier(), by what is missing behind that span only: a block that begins there ends at
// the frontier, and what else the huge page there backs lies behind all spans, where
// page_heap_enter_rest() finds it.
SliceIndex extend_last_clean(std::uint32_t wanted, Alignment alignment);

// Generations are drawn in blocks of so many: which was used last is known as exactly as that where
// spans of several heaps meet, and exactly within one. No two spans in use have the same.
inline constexpr std::uint64_t kGenerations = 256;
inline std::uint64_t new_generation(PageHeap& heap) {
  if (heap.next_generation % kGenerations == 0) [[unlikely]]
    heap.next_generation =
        shared.next_generations.fetch_add(kGenerations, std::memory_order_relaxed) + 1;
  return heap.next_generation++;
}
// Of a span that is about to be taken: the line that is written first, often one that no cache has,
// comes while the rest is done. Nothing of it is read (I4).
inline void prefetch_block(SliceIndex slice) {
  __builtin_prefetch(reinterpret_cast<const void*>(arena.address_of(slice)), 1);
}
// Makes a span that was taken one in use: a block of it may be handed out then.
void publish_locked(PageHeap& heap, SliceIndex slice, SpanWord word);
// Writes the class of the slices [begin, end). kOrder: as of __atomic_store_n. Eight at once, the
// last ones where they end, so that few branches go by the length; each byte is written whole.
template <int kOrder>
void set_class(SliceIndex begin, SliceIndex end, std::uint8_t map_class) {
  using Four [[gnu::may_alias, gnu::aligned(1)]] = volatile std::uint32_t;
  using Eight [[gnu::may_alias, gnu::aligned(1)]] = volatile std::uint64_t;
  auto* bytes = reinterpret_cast<std::uint8_t*>(arena.class_map);
  std::uint64_t value = 0x0101010101010101 * map_class;
  if (end - begin < 4 || os::kThreadSanitizer) {
    for (SliceIndex s = begin; s < end; ++s) __atomic_store_n(bytes + s, map_class, kOrder);
    return;
  }
  // With the relaxed stores below a store of each byte in that order.
  std::atomic_thread_fence(kOrder == __ATOMIC_RELEASE ? std::memory_order_release
                                                      : std::memory_order_relaxed);
  if (end - begin < 8) {
    *reinterpret_cast<Four*>(bytes + begin) = static_cast<std::uint32_t>(value);
    *reinterpret_cast<Four*>(bytes + end - 4) = static_cast<std::uint32_t>(value);
    return;
  }
  for (SliceIndex s = begin; end - s > 8; s += 8) *reinterpret_cast<Eight*>(bytes + s) = value;
  *reinterpret_cast<Eight*>(bytes + end - 8) = value;
}
// Release: pairs with the acquire in rdmalloc_range_is_idle(): what was done with the blocks, with
// their keys above all, comes before what is done once nothing is alive there.
inline void clear_class(SliceIndex begin, SliceIndex end) {
  set_class<__ATOMIC_RELEASE>(begin, end, 0);
}
// Says of the slices [begin, end) what their span's first one is, two at once.
inline void set_firsts(SliceIndex begin, SliceIndex end, SliceIndex first) {
  using Two [[gnu::may_alias]] = std::uint64_t;
  std::uint64_t value = std::uint64_t{first} << 32 | first;
  SliceIndex s = begin;
  if (s % 2 != 0) set_first(s++, first);
  for (; s + 1 < end; s += 2)
    __atomic_store_n(reinterpret_cast<Two*>(arena.first + s), value, __ATOMIC_RELAXED);
  if (s < end) set_first(s, first);
}
// What large spans' words say, with the owner as in page_heap.h.
inline SpanWord large_word(bool is_zero, std::uint16_t owner) {
  SpanKind kind = owner != 0 ? SpanKind::kHeapLarge : SpanKind::kLarge;
  return {kind, kLargeClass, is_zero, 0, owner};
}
// What the words of slabs of a class of spans say.
inline SpanWord span_word(unsigned shard, unsigned size_class) {
  return {SpanKind::kSlab,
          static_cast<std::uint8_t>(size_class),
          false,
          0,
          0,
          static_cast<std::uint8_t>(shard)};
}
// Several nodes: pages are the node's whose thread touches them first, and free spans that are
// backed remember whose. The program's own memory policy stays as it is.
inline bool has_nodes() {
  return os::node_count() != 1;
}

// ---- what is left alone (page_heap_places.cc) ----

// Whether a thread here leaves a free span, which is backed, to those of another node: pages that
// are far cost each access, new ones once, and what is old goes back anyway.
bool is_far_and_young(SliceIndex backed, std::uint32_t slices);
inline bool is_left_to_others(SliceIndex backed, std::uint32_t slices) {
  return has_nodes() && is_far_and_young(backed, slices);
}
// The free span, unless it is left to others; then 0.
inline SliceIndex unless_far(SliceIndex found, std::uint32_t slices) {
  return found != 0 && is_left_to_others(found, slices) ? 0 : found;
}
// Whether slabs and other small things leave that retained span alone: another place costs less
// than the registration of the buffer that comes back here. Not for longer than free memory keeps
// its pages anyway, not where pages are short, and the latest of that heap only.
bool is_left_alone(const PageHeap& heap, SliceIndex retained, std::uint32_t slices);
// Whether the heap has no more buffers' places than may be left alone.
bool are_few_places(const PageHeap& heap);
// Says of each span that is left alone that it is, or no longer says so (Span::is_left_alone).
void mark_left_alone(const PageHeap& heap, bool are_marked);

// ---- what other shards have free (page_heap_others.cc), of few shards, without a lock ----

// Notes which others took something, once for each tick of the clock.
void note_others(PageHeap& own);
// Counts a take of its threads'.
inline std::uint32_t count_own_take(PageHeap& own) {
  std::uint32_t takes = own.own_takes.load(std::memory_order_relaxed) + 1;
  own.own_takes.store(takes, std::memory_order_relaxed);
  return takes;
}
inline void count_and_note(PageHeap& own) {
  constexpr std::uint32_t kTakesForEachNote = 8;
  std::uint32_t takes = count_own_take(own);
  if (takes - own.others.noted_takes.load(std::memory_order_relaxed) >= kTakesForEachNote)
    note_others(own);
}
// Of few shards, where the heap `asked` has no pages for so many slices: the next other heap that
// may have them, locked; null: none. `from` is 0 at first. Asked are heaps that are still, and for
// a buffer those that have much free: else each shard would come to hold the most that its threads
// ever needed at once, since threads that outnumber processors carry their load from one to the
// other.
//
// A shard at work keeps a segment and more for itself: where it kept less, blocks that nothing is
// written to went to and fro (a tenth more time). Only as often as may_take_beyond() allows is that
// taken too, or a lock waited for. There a look counts as several, since it takes more lines than
// one at a depot.
PageHeap* lock_other(const PageHeap& asked, unsigned shard, std::uint32_t slices,
                     bool is_for_buffer, unsigned* from);

// ---- free neighbours, taken as one (page_heap_neighbours.cc) ----

// Asks for huge pages under the new part, from `frontier` on and where that passed by, of what one
// span of `slices` takes.
inline void ask_for_huge(SliceIndex taken, std::uint32_t slices, SliceIndex frontier,
                         TakenFor what) {
  SliceIndex end = taken + slices;
  if (taken < frontier && huge_is_any_passed()) [[unlikely]]
    huge_ask_where_passed(taken, end < frontier ? end : frontier, what);
  if (end > frontier) huge_ask(taken > frontier ? taken : frontier, end, what);
}
// Retained neighbours of one node that are `wanted` slices together, made one; the oldest there
// are, which cost the least registrations. 0 when there are none. Left to take_backed(), `resized`
// of bench_memory takes 3 to 5 % more memory.
SliceIndex join_retained(PageHeap& heap, std::uint32_t wanted);
// Takes so many aligned slices of dirty and retained neighbours, the oldest there are. 0 when there
// are none. What short blocks and buffers leave lies beside each other and is of two families: new
// pages would be taken instead. One thread that reallocates 16 blocks to 1 to 256 KiB held 97 MiB
// that way, and 17 by this. `latest`: whether what is left alone is taken as well.
enum class Latest { kLeft, kTaken };
SliceIndex take_backed(PageHeap& heap, std::uint32_t wanted, Alignment alignment, Latest latest);
// Takes so many aligned slices from the start of a dirty span on, of it and of what is free behind
// it, new pages as well: from where the least of those are needed. 0 when there is no such place.
SliceIndex take_backed_and_more(PageHeap& heap, std::uint32_t slices, Alignment alignment);
// A buffer longer than all before it: at the place of the longest one, and on behind that. So it
// needs only the pages that are missing there, and what comes after it, of any size, finds one
// place and not one for each length that was the longest for a time. Not much longer: most of its
// pages would be new, where free ones may lie elsewhere. Buffers of 1 to 64 MiB, each twice as long
// as the one before, take 67 MiB, without it 129.
SliceIndex take_longest_and_more(PageHeap& heap, std::uint32_t slices, Alignment alignment);
// The same of what is left of the huge page that ends before a clean span, and of that span, which
// was found or begun at `frontier`; 0 where no such rest lies there. A buffer that is longer than
// the rest would leave it, and the next one its own: of blocks of 3 MiB a quarter of all addresses,
// between them for as long as they live: after a purge 255 fit 1 GiB, not 330.
SliceIndex take_rest_and_clean(PageHeap& heap, SliceIndex clean, std::uint32_t slices,
                               Alignment alignment, SliceIndex frontier);
// Last resort, when address space is used up: a run of free neighbours of all families.
SliceIndex take_mixed(PageHeap& heap, std::uint32_t wanted, Alignment alignment);

}  // namespace rdmalloc::page_heap_state
