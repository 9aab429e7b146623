// Taking free spans: for slabs, for buffers, for what grows, and the order in which they are tried.
#include <algorithm>

#include "alloc/os/topology.h"
#include "alloc/pages/events.h"
#include "alloc/pages/page_heap_state.h"

namespace rdmalloc {

using namespace page_heap_state;

namespace {

constexpr FreeSpans::Where kAnywhere = FreeSpans::Where::kAnywhere;

// Which pages a span is taken of. kBacked: those that are there; kOthers: the same, in a heap that
// is not the thread's. kNew: new ones, where the heap was asked for kBacked just now.
enum class Pages : std::uint8_t { kBacked, kOthers, kNew, kAny };
bool are_there(Pages pages) {
  return pages < Pages::kNew;
}

unsigned preferred_node() {
  return has_nodes() ? os::this_node() : FreeSpans::kAnyNode;
}

// Takes the slices from the free span `found` of a dirty family, up to `most` of them if that is
// all of it, or of a longer one what slices_to_cut() says; 0 when there is none.
SliceIndex take_dirty(PageHeap& heap, SliceIndex found, std::uint32_t slices, Alignment alignment,
                      std::uint32_t most = 0) {
  if (found == 0) return 0;
  SpanWord word = arena.span(found).load();
  SliceIndex taken = fit_in(found, word.slices, slices, alignment);
  std::uint32_t left = found + word.slices - taken, whole = slices;
  if (word.slices <= most && taken == found)
    whole = word.slices;
  else if (most > slices)
    whole = std::min(slices_to_cut(slices), left);
  if (whole != slices && use(heap, whole - slices)) slices = whole;
  prefetch_block(taken);
  cut(heap, found, word.slices, word.kind, taken, slices);
  return taken;
}

// `*is_zero`: whether the pages read as zero.
SliceIndex take_clean(PageHeap& heap, std::uint32_t slices, Alignment alignment, TakenFor what,
                      bool* is_zero) {
  // What has no huge pages of its own leaves those of others alone: the rest of a huge page is
  // backed with its first slice.
  bool may_be_huge = is_for_huge(slices, what) || huge_is_earned(what);
  SliceIndex frontier = page_heap_frontier();
  SliceIndex clean = heap.clean.find_best(
      slices, alignment, may_be_huge ? FreeSpans::Where::kAnywhere : FreeSpans::Where::kSmallPages);
  if (clean == 0 && is_central(heap)) {
    // Behind a backed rest it lacks less than all of its slices.
    if (what == TakenFor::kBuffer || what == TakenFor::kExact)
      if (SliceIndex taken =
              take_rest_and_clean(heap, last_clean(frontier), slices, alignment, frontier))
        return taken;
    clean = extend_last_clean(slices, alignment);
  }
  if (clean == 0) clean = heap.clean.find_best(slices, alignment);
  if (clean == 0) return 0;
  // Zeroes cost less where all of it is clean.
  if (what == TakenFor::kBuffer || what == TakenFor::kExact)
    if (SliceIndex taken = take_rest_and_clean(heap, clean, slices, alignment, frontier))
      return taken;
  std::uint32_t length = arena.span(clean).load().slices;
  SliceIndex taken = fit_in(clean, length, slices, alignment);
  ask_for_huge(taken, slices, frontier, what);
  cut_clean(heap, clean, length, taken, slices,
            is_buffer(what) ? kind_of_place(slices) : SpanKind::kFreeDirty);
  *is_zero = true;
  return taken;
}

// A buffer's own place, or one of up to `near` slices; or the place used last, the likeliest to be
// registered still. Not one that is very much longer, while there is another: a long buffer would
// miss it.
SliceIndex find_place(const FreeSpans& retained, std::uint32_t slices, std::uint32_t near,
                      Alignment alignment, unsigned node) {
  constexpr std::uint64_t kMostTimesLonger = 8;
  SliceIndex latest =
      retained.find_latest(slices, alignment, near, kMostTimesLonger * slices, node);
  return latest != 0 ? latest : retained.find_best(slices, alignment, kAnywhere, node);
}

// Of pages that are there. `is_own`: the calling thread's heap, where a buffer longer than all
// takes what it lacks behind the longest.
SliceIndex take_backed_for_buffer(PageHeap& heap, std::uint32_t slices, Alignment alignment,
                                  TakenFor what, bool is_own, bool has_released = false) {
  // With one shard, whose heap has no segments to ask for, a run that is a little longer is cut,
  // and for another length the oldest are as if they had never been kept: one with what is free
  // beside them. With none cut, three buffers of 150 KiB to 1 MiB that are replaced are registered
  // 6 % more often. The same of buffers that few shards leave to the central heap: each would be
  // where the last one of its length was, however long ago, and in no processor's cache.
  constexpr std::uint32_t kTimesLonger = 2;
  unsigned shards = shard_count();
  bool joins =
      shards == 1 || (shards <= kFewShards && is_central(heap) && slices > kSegmentMostOfFew);
  if (joins && !quick_release_fitting(heap, slices, kTimesLonger * slices))
    quick_release_for(heap, slices);
  unsigned node = preferred_node();
  std::uint32_t most = longest_for(what, slices);
  SliceIndex found = find_place(heap.retained, slices, most, alignment, node);
  if (found != 0) return take_dirty(heap, found, slices, alignment, most);
  if (is_own)
    if (SliceIndex taken = take_longest_and_more(heap, slices, alignment)) return taken;
  found = heap.dirty.find_best(slices, alignment, kAnywhere, node);
  if (found == 0 && has_nodes()) {
    found =
        unless_far(find_place(heap.retained, slices, most, alignment, FreeSpans::kAnyNode), slices);
    if (found == 0) found = unless_far(heap.dirty.find_best(slices, alignment), slices);
  }
  if (found == 0) found = join_retained(heap, slices + alignment.slices - 1);
  if (found != 0) return take_dirty(heap, found, slices, alignment, most);
  if (quick_release_fitting(heap, slices, QuickList::kLongest))
    return take_backed_for_buffer(heap, slices, alignment, what, is_own, has_released);
  if (SliceIndex run = take_backed(heap, slices, alignment, Latest::kTaken)) return run;
  // Joined with what is free beside them, the oldest runs may do. Once: all of them would be a long
  // malloc, and the next ones would find none.
  if (shard_count() != 1 && !has_released && quick_release_for(heap, slices))
    return take_backed_for_buffer(heap, slices, alignment, what, is_own, true);
  return 0;
}

SliceIndex take_for_buffer(PageHeap& heap, std::uint32_t slices, Alignment alignment, TakenFor what,
                           Pages pages, bool* is_zero) {
  if (pages != Pages::kNew) {
    bool is_own = pages != Pages::kOthers;
    if (SliceIndex taken = take_backed_for_buffer(heap, slices, alignment, what, is_own))
      return taken;
  }
  if (are_there(pages)) return 0;
  if (kind_of_place(slices) == SpanKind::kFreeDirty)
    if (SliceIndex taken = take_backed_and_more(heap, slices, alignment)) return taken;
  return take_clean(heap, slices, alignment, what, is_zero);
}

// Runs of another shard's quick list that become free spans at once, so that a malloc has an end.
constexpr std::uint32_t kRunsOfOthers = 64;

SliceIndex take_for_others(PageHeap& heap, std::uint32_t slices, Alignment alignment, TakenFor what,
                           Pages pages, bool* is_zero) {
  SliceIndex retained = 0;
  for (bool has_released = pages != Pages::kOthers; pages != Pages::kNew;) {
    SliceIndex dirty = heap.dirty.find_best(slices, alignment, kAnywhere, preferred_node());
    // With one shard there is no segment to ask for: they are as good as clean pages, joined.
    if (dirty == 0 && shard_count() == 1 && quick_release_for(heap, slices))
      dirty = heap.dirty.find_best(slices, alignment, kAnywhere, preferred_node());
    if (dirty == 0 && has_nodes())
      dirty = unless_far(heap.dirty.find_best(slices, alignment), slices);
    if (dirty != 0) return take_dirty(heap, dirty, slices, alignment);
    retained = unless_far(heap.retained.find_best(slices, alignment), slices);
    if (retained != 0 &&
        (what == TakenFor::kSlabAnywhere || !is_left_alone(heap, retained, slices)))
      return take_dirty(heap, retained, slices, alignment);
    if (slices >= kBufferSlices)
      if (SliceIndex taken = take_backed(heap, slices, alignment, Latest::kLeft)) return taken;
    // Of more buffers' places than are left alone the oldest that it fits in: slabs amid many freed
    // places take no new pages.
    if (shard_count() == 1 && !are_few_places(heap))
      if (SliceIndex place = unless_far(quick_release_place(heap, slices, alignment), slices))
        return take_dirty(heap, place, slices, alignment);
    // Not of a buffer: its place, once free, would be left alone. Without this 64 threads that
    // replace eight blocks of 40 to 256 KiB touch 5 % more pages.
    if (heap.quick.count != 0 && quick_release_fitting(heap, slices, kBufferSlices - 1)) continue;
    if (has_released || !quick_release(heap, kRunsOfOthers)) break;
    has_released = true;
  }
  if (are_there(pages)) return 0;
  SliceIndex taken = take_clean(heap, slices, alignment, TakenFor::kOthers, is_zero);
  // A shard's heap asks for another segment first.
  if (taken != 0 || !is_central(heap)) return taken;
  if (retained == 0) retained = heap.retained.find_best(slices, alignment);
  if (retained == 0) retained = heap.dirty.find_best(slices, alignment);
  return take_dirty(heap, retained, slices, alignment);
}

SliceIndex take_once(PageHeap& heap, std::uint32_t slices, Alignment alignment, TakenFor what,
                     Pages pages, bool* is_zero) {
  *is_zero = false;
  // No place of a buffer's that may be registered, and no page to give back, if it can be helped.
  if (what == TakenFor::kRegion)
    if (SliceIndex taken = take_clean(heap, slices, alignment, what, is_zero)) return taken;
  if (what == TakenFor::kOthers || what == TakenFor::kSlabAnywhere)
    return take_for_others(heap, slices, alignment, what, pages, is_zero);
  return take_for_buffer(heap, slices, alignment, what, pages, is_zero);
}

SliceIndex take_locked(PageHeap& heap, std::uint32_t slices, Alignment alignment, TakenFor what,
                       Pages pages, bool* is_zero) {
  if (!use(heap, slices)) return 0;
  auto take = [=, &heap](Pages of) {
    return take_once(heap, slices, alignment, what, of, is_zero);
  };
  SliceIndex taken = take(pages);
  if (!are_there(pages)) {
    if (taken == 0 && quick_release(heap, QuickList::kRuns)) taken = take(Pages::kAny);
    if (taken == 0 && !is_central(heap) && segment_adopt(heap, what)) taken = take(Pages::kAny);
    if (taken == 0 && is_central(heap)) taken = take_mixed(heap, slices, alignment);
  }
  if (taken == 0) unuse(heap, slices);
  return taken;
}

// Takes `slices` with as many free ones behind them, so that what lies there can grow in place. 0
// when there is no such place. Those below 4 MiB lie where they fit: to copy them costs little, and
// with room behind each, what many of them leave when they move fits none (the program realloc: 231
// MiB at most; with room from 2 MiB on 257, a quarter more page faults and the same time). Those
// also take less, `asked` at least, before new pages: a copy costs less than the peak that stays.
// `*is_new`: pages that were never used.
SliceIndex take_with_room(PageHeap& heap, std::uint32_t slices, std::uint32_t asked, bool* is_new) {
  // 1 GiB of room is committed ahead at most.
  constexpr std::uint32_t kMostRoom = (std::uint32_t{1} << 30) / kSliceBytes;
  bool is_short = slices < 2 * kSlicesPerChunk;
  std::uint32_t room = is_short ? 0 : slices < kMostRoom ? slices : kMostRoom;
  std::uint32_t wanted = slices + room;
  Alignment alignment = is_short ? 1 : kSlicesPerChunk;
  unsigned node = preferred_node();
  auto find = [&] {
    SliceIndex found = heap.dirty.find_best(wanted, 1, kAnywhere, node);
    if (found == 0) found = heap.retained.find_best(wanted, 1, kAnywhere, node);
    // A place without room before new pages: those of arrays that grow would be left behind as
    // holes.
    return found != 0 ? found : heap.dirty.find_best(slices, 1, kAnywhere, node);
  };
  SliceIndex taken = find();
  if (taken == 0 && shard_count() == 1 && quick_release_for(heap, wanted)) taken = find();
  if (taken == 0 && is_short) {
    if (SliceIndex run = take_backed(heap, slices, 1, Latest::kTaken)) return run;
    taken = heap.dirty.find_best(asked, 1, kAnywhere, node);
    if (taken == 0) taken = heap.retained.find_best(asked, 1, kAnywhere, node);
  }
  if (taken != 0) {
    SpanWord word = arena.span(taken).load();
    if (word.slices < slices) slices = word.slices;
    cut(heap, taken, word.slices, word.kind, taken, slices);
    return taken;
  }
  SliceIndex frontier = page_heap_frontier();
  SliceIndex clean = heap.clean.find_best(wanted, alignment);
  if (clean == 0 && is_central(heap)) clean = extend_last_clean(wanted, alignment);
  if (clean == 0) return 0;
  std::uint32_t length = arena.span(clean).load().slices;
  taken = fit_in(clean, length, wanted, alignment);
  ask_for_huge(taken, asked, frontier, TakenFor::kBuffer);
  cut_clean(heap, clean, length, taken, slices, SpanKind::kFreeDirty);
  events_note_use(taken, slices);
  *is_new = true;
  return taken;
}

// Whether the shard's threads do not go to the central heap for a long span now: they met others
// at its lock again and again, one in eight times at least, and it is not yet time to look there
// anew. Threads that write to what is so long seldom meet; others took five times mimalloc's time
// there.
bool is_alone(PageHeap& own) {
  constexpr std::uint32_t kOfMeeting = 8, kManyMeetings = 64, kTakesAlone = 4096;
  std::uint32_t left = own.takes_alone.load(std::memory_order_relaxed);
  if (left != 0) {
    own.takes_alone.store(left - 1, std::memory_order_relaxed);
    return true;
  }
  std::uint32_t meetings = own.meetings.load(std::memory_order_relaxed);
  if (central.lock.is_taken())
    meetings += kOfMeeting;
  else if (meetings != 0)
    meetings -= 1;
  bool are_many = meetings >= kManyMeetings;
  // When they look there again one meeting is enough, at first.
  if (are_many) meetings = kManyMeetings - kOfMeeting;
  own.meetings.store(meetings, std::memory_order_relaxed);
  if (are_many) own.takes_alone.store(kTakesAlone, std::memory_order_relaxed);
  return are_many;
}

// Whether a shard's own heap serves such a span.
bool is_for_shard(unsigned shard, std::uint32_t slices, Alignment alignment) {
  if (slices > kSegmentMost || alignment.slices > kSlicesPerChunk) return false;
  return slices <= kSegmentMostOfFew || shard_count() > kFewShards ||
         is_alone(heap_of_shard(shard));
}

// Calls take(heap, pages), which returns a slice or 0, for the shard's heap and then the central
// one. Where neither has memory, what other shards keep is free as well: as segments, and in the
// rests of them. `kMayBeBuffer`: else there is no code for one.
template <bool kMayBeBuffer, class Take>
SliceIndex take_from_any(unsigned shard, std::uint32_t slices, TakenFor what, bool is_shards,
                         Take take) {
  auto locked = [&](PageHeap& heap, Pages pages) {
    LockGuard guard(heap.lock);
    return take(heap, pages);
  };
  PageHeap& own = is_shards ? heap_of_shard(shard) : central;
  Pages pages = Pages::kAny;
  // Not of many shards: 16 threads on 16 processors that replace blocks of 256 KiB to 1 MiB moved
  // 0.5 cache lines an operation, and 0.008 without.
  unsigned shards = shard_count();
  bool is_for_buffer = kMayBeBuffer && is_buffer(what);
  if (shards != 1 && shards <= kFewShards && shard != kNoShard && (is_for_buffer || is_shards)) {
    count_and_note(heap_of_shard(shard));
    PageHeap* heap = &own;
    unsigned from = 0;
    heap->lock.lock();
    for (pages = Pages::kBacked; heap != nullptr; pages = Pages::kOthers) {
      SliceIndex slice = take(*heap, pages);
      heap->lock.unlock();
      if (slice != 0) return slice;
      heap = lock_other(own, shard, slices, is_for_buffer, &from);
    }
    pages = Pages::kNew;
  }
  SliceIndex slice = locked(own, pages);
  if (slice == 0 && !is_central(own)) slice = locked(central, Pages::kAny);
  if (slice != 0 || shards == 1 || page_heap_is_over_limit(slices)) [[likely]]
    return slice;
  segments_gather();
  // The central one first.
  for (unsigned other = 0; slice == 0 && other < (is_shards ? shards : 1); ++other)
    slice = locked(heap_of_shard(other), Pages::kAny);
  return slice;
}

// The heaps of other shards, which take_from_any() asks last, are not asked for the best place.
SliceIndex take_from(PageHeap& heap, unsigned shard, std::uint32_t slices, Alignment alignment,
                     TakenFor what, Pages pages, bool* is_zero) {
  if (pages == Pages::kOthers || is_central(heap) || heap.index == shard)
    return take_locked(heap, slices, alignment, what, pages, is_zero);
  *is_zero = false;
  if (!use(heap, slices)) return 0;
  SliceIndex taken = take_mixed(heap, slices, alignment);
  if (taken == 0) unuse(heap, slices);
  return taken;
}

}  // namespace

SliceIndex page_heap_take_slab(unsigned shard, std::uint32_t slices) {
  // Not for short blocks: between places of 3 to 5 slices they leave holes (the program realloc).
  TakenFor what = page_heap_keeps_places() ? TakenFor::kOthers : TakenFor::kSlabAnywhere;
  return take_from_any<false>(shard, slices, what, true, [=](PageHeap& heap, Pages pages) {
    bool is_zero = false;
    SliceIndex slice = take_from(heap, shard, slices, slices, what, pages, &is_zero);
    if (slice == 0) return slice;
    if (is_zero) events_note_use(slice, slices);
    arena.span(slice).new_from = is_zero ? 0 : UINT32_MAX;
    return slice;
  });
}

SliceIndex page_heap_take_span(unsigned shard, unsigned size_class) {
  std::uint32_t slices = class_info(size_class).slab_slices;
  TakenFor what = slices >= kBufferSlices ? TakenFor::kBuffer : TakenFor::kOthers;
  SpanWord word = span_word(shard, size_class);
  return take_from_any<true>(shard, slices, what, true, [=](PageHeap& heap, Pages pages) {
    if (SliceIndex run = quick_take(heap, slices, word)) return run;
    bool is_zero = false;
    SliceIndex slice = take_from(heap, shard, slices, 1, what, pages, &is_zero);
    if (slice == 0) return slice;
    if (is_zero) events_note_use(slice, slices);
    Span& span = arena.span(slice);
    // The walk for free pages of slabs sees no block that is free.
    span.free_blocks.store(0, std::memory_order_relaxed);
    span.has_purged_pages = false;
    span.new_from = is_zero ? 0 : UINT32_MAX;
    publish_locked(heap, slice, word);
    return slice;
  });
}

void page_heap_publish_slab(SliceIndex slice, std::uint8_t size_class, std::uint16_t owner,
                            std::uint8_t shard) {
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  SpanKind kind = owner != 0 ? SpanKind::kHeapSlab : SpanKind::kSlab;
  publish_locked(heap, slice, {kind, size_class, false, 0, owner, shard});
}

void page_heap_publish_large(SliceIndex slice, std::uint16_t owner) {
  PageHeap& heap = heap_of(slice);
  LockGuard guard(heap.lock);
  publish_locked(heap, slice, large_word(false, owner));
}

SliceIndex page_heap_take_large(unsigned shard, std::uint32_t slices, std::size_t alignment,
                                bool* is_zero, std::uint16_t owner, TakenFor what) {
  auto align_slices = static_cast<std::uint32_t>(alignment >> kSliceShift);
  if (align_slices == 0) align_slices = 1;
  if (slices < kBufferSlices && what != TakenFor::kRegion) what = TakenFor::kOthers;
  // What is one's own is registered, and counted, as long as it was asked for.
  if (what == TakenFor::kBuffer && (owner != 0 || shard == kNoShard)) what = TakenFor::kExact;
  bool is_quick = align_slices == 1 && owner == 0 && what != TakenFor::kRegion;
  Alignment of_slices(align_slices, arena.base >> kSliceShift);
  bool is_shards = shard != kNoShard && is_for_shard(shard, slices, of_slices);
  return take_from_any<true>(shard, slices, what, is_shards, [=](PageHeap& heap, Pages pages) {
    std::uint32_t length = is_quick ? heap.quick.find(slices, longest_for(what, slices)) : 0;
    if (SliceIndex run = length != 0 ? quick_take(heap, length, large_word(false, 0)) : 0) {
      *is_zero = false;
      return run;
    }
    SliceIndex slice = take_from(heap, shard, slices, of_slices, what, pages, is_zero);
    if (slice == 0) return slice;
    if (*is_zero) events_note_use(slice, slices);
    publish_locked(heap, slice, large_word(*is_zero && what == TakenFor::kZeroes, owner));
    return slice;
  });
}

SliceIndex page_heap_take_growing(unsigned shard, std::uint32_t slices, bool* is_new,
                                  std::uint16_t owner) {
  *is_new = false;
  // A sixth more than is asked for, like a vector: whatever comes to lie behind it, a block that
  // grows by small steps is copied a number of times that goes with the logarithm of its size. With
  // a quarter the program realloc takes 8 % more memory and 7 % less time.
  std::uint32_t capacity = slices + slices / kGrowingParts;
  // Whole huge pages for what takes two of them; arrays of 2 MiB beside each other would take 4
  // each, a sixth more over all (the program realloc).
  if (capacity >= 2 * kSlicesPerChunk) capacity = chunk_after(capacity);
  if (capacity <= slices) return 0;
  // Room behind it is the central heap's: a segment ends soon.
  PageHeap& heap = capacity < kSlicesPerChunk ? heap_of_shard(shard) : central;
  LockGuard guard(heap.lock);
  if (!use(heap, capacity)) return 0;
  SliceIndex slice = take_with_room(heap, capacity, slices, is_new);
  if (slice == 0 && !is_central(heap) && segment_adopt(heap, TakenFor::kOthers))
    slice = take_with_room(heap, capacity, slices, is_new);
  if (slice == 0) {
    unuse(heap, capacity);
    return 0;
  }
  unuse(heap, capacity - arena.span(slice).load().slices);
  publish_locked(heap, slice, large_word(false, owner));
  arena.span(slice).has_grown = true;
  return slice;
}

void page_heap_fit_limit() {
  LockGuard guard(central.lock);
  arena_give_up_rest();
}

SliceIndex page_heap_reserved() {
  LockGuard guard(central.lock);
  return arena.reserved;
}

bool page_heap_reaches(std::uint32_t slices) {
  if (slices < page_heap_frontier()) return true;
  LockGuard guard(central.lock);
  return arena_would_commit(slices + 1);
}

}  // namespace rdmalloc
