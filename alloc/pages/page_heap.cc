// More than 600 lines: taking, growing and what is put back cut and join the same lists, by
// functions that nobody else is to see.
#include "alloc/pages/page_heap.h"

#include "alloc/pages/events.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap_state.h"
#include "alloc/pages/parked.h"
#include "alloc/pages/purge.h"

namespace rdmalloc {

namespace page_heap_state {

constinit PageHeap heap{};

void insert_free(SliceIndex slice, std::uint32_t slices, SpanKind kind, SliceIndex near) {
  arena.span(slice).store({kind, 0, false, slices});
  set_first(slice, slice);
  set_first(slice + slices - 1, slice);
  family(kind).insert(slice, slices);
  if (is_dirty(kind)) {
    heap.dirty_by_age.insert(slice, near);
    add_dirty(slices);
  } else {
    heap.clean_slices += slices;
  }
}

SliceIndex remove_free(SliceIndex slice, std::uint32_t slices, SpanKind kind) {
  family(kind).remove(slice, slices);
  if (is_dirty(kind)) {
    add_dirty(-static_cast<std::int64_t>(slices));
    return heap.dirty_by_age.remove(slice);
  }
  heap.clean_slices -= slices;
  return 0;
}

namespace {

// Whether the free span that begins at `after` is to be one with the one before it, which is of the
// same family. Spared spans keep the extent of the buffers that left them: joined with a neighbour,
// the next buffer would begin where that one does, and a cache knows no registration of that range.
bool are_one(SliceIndex after, SpanKind kind) {
  return kind != SpanKind::kFreeSpared || arena.span(after).is_rest;
}

}  // namespace

void join_and_insert(SliceIndex slice, std::uint32_t slices, SpanKind kind, Age age,
                     SliceIndex near) {
  std::uint32_t freed_ms = arena.span(slice).freed_ms;
  std::uint8_t node = arena.span(slice).node;
  auto take_in = [&](SliceIndex other, std::uint32_t other_slices) {
    if (other_slices > slices) node = arena.span(other).node;  // of most of it
    std::uint32_t other_ms = arena.span(other).freed_ms;
    SliceIndex hint = remove_free(other, other_slices, kind);
    bool is_older = static_cast<std::int32_t>(other_ms - freed_ms) < 0;
    if (near == other || (age == Age::kOldest && is_older)) near = hint;
    if (age == Age::kOldest && is_older) freed_ms = other_ms;
    slices += other_slices;
  };
  SliceIndex end = slice + slices;
  if (end < heap.frontier.load(std::memory_order_relaxed)) {
    SpanWord after = arena.span(end).load();
    if (after.kind == kind && are_one(end, kind)) take_in(end, after.slices);
  }
  SliceIndex before = first_of(slice - 1);
  SpanWord word = arena.span(before).load();
  if (word.kind == kind && are_one(slice, kind)) {
    take_in(before, word.slices);
    slice = before;
  }
  arena.span(slice).freed_ms = freed_ms;
  arena.span(slice).node = node & kNodeMask;
  insert_free(slice, slices, kind, near);
}

void cut(SliceIndex slice, std::uint32_t slices, SpanKind kind, SliceIndex at,
         std::uint32_t wanted) {
  SliceIndex near = remove_free(slice, slices, kind);
  std::uint32_t freed_ms = arena.span(slice).freed_ms;
  std::uint8_t node = arena.span(slice).node;
  std::uint32_t before = at - slice, after = slices - before - wanted;
  // A buffer that begins at a piece of a spared span lies in what was registered for the whole.
  std::uint32_t reach = kind == SpanKind::kFreeSpared ? arena.span(slice).reach : 0;
  auto reach_from = [&](std::uint32_t offset) { return reach > offset ? reach - offset : 0; };
  if (after != 0) {
    arena.span(at + wanted).freed_ms = freed_ms;
    arena.span(at + wanted).is_rest = true;
    arena.span(at + wanted).node = node & kNodeMask;
    arena.span(at + wanted).reach = reach_from(before + wanted);
    insert_free(at + wanted, after, kind, near);
  }
  // What begins where a span of another family began has nothing to do with what lies before it.
  if (before != 0 || kind != SpanKind::kFreeSpared)
    arena.span(at).is_rest = kind == SpanKind::kFreeSpared;
  arena.span(at).node = node & kNodeMask;
  arena.span(at).reach = reach_from(before);
  arena.span(at).store({SpanKind::kReserved, 0, false, wanted});
  if (before != 0) {
    arena.span(slice).freed_ms = freed_ms;
    insert_free(slice, before, kind, near);
  }
  set_first(at, at);
  set_first(at + wanted - 1, at);
}

void publish_locked(SliceIndex slice, SpanWord word) {
  Span& span = arena.span(slice);
  word.slices = span.load().slices;
  std::uint8_t map_class = map_class_of(word);
  span.generation.store(++heap.next_generation, std::memory_order_relaxed);
  span.has_grown = false;
  for (SliceIndex s = slice; s < slice + word.slices; ++s) {
    set_first(s, slice);
    arena.class_map[s].store(map_class, std::memory_order_relaxed);
  }
  (is_large(word.kind) ? heap.large_spans : heap.slab_spans) += 1;
  span.store(word);
  // Pairs with the fence in rdmalloc_range_is_idle(): whoever allocates here and then looks a
  // registration up, and whoever unpublishes a registration and then asks whether the range is in
  // use, can't both miss the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace page_heap_state

using namespace page_heap_state;

namespace {

// Turns the free clean slices [begin, end) into ones of the dirty family `rest`: they are about to
// be backed by the huge page of their neighbour. They lie in the clean span that begins at `span`.
void soil(SliceIndex span, SliceIndex begin, SliceIndex end, SpanKind rest) {
  if (begin == end) return;
  cut(span, arena.span(span).load().slices, SpanKind::kFreeClean, begin, end - begin);
  events_note_use(begin, end - begin);
  arena.span(begin).freed_ms = now_ms();
  arena.span(begin).is_rest = true;
  arena.span(begin).node = os::this_node() & kNodeMask;
  arena.span(begin).reach = 0;
  join_and_insert(begin, end - begin, rest);
}

// Takes [at, at + wanted) out of the clean span [slice, +slices). In the zone of huge pages the
// first touch of a chunk that was wholly clean backs all of it, so what is left of such chunks at
// both ends becomes dirty, of the family `rest`: it is counted, preferred by the next allocation,
// and given back in time.
void cut_clean(SliceIndex slice, std::uint32_t slices, SliceIndex at, std::uint32_t wanted,
               SpanKind rest) {
  SliceIndex end = slice + slices, taken_end = at + wanted;
  SliceIndex head = at & ~(kSlicesPerChunk - 1);
  SliceIndex tail = (taken_end + kSlicesPerChunk - 1) & ~(kSlicesPerChunk - 1);
  bool soils_head = head >= slice && head + kSlicesPerChunk <= end && huge_is_chunk(head);
  bool soils_tail =
      tail <= end && tail - kSlicesPerChunk >= slice && huge_is_chunk(tail - kSlicesPerChunk);
  cut(slice, slices, SpanKind::kFreeClean, at, wanted);
  arena.span(at).node = os::this_node() & kNodeMask;  // which will touch it first
  if (soils_head) soil(slice, head, at, rest);
  if (soils_tail) soil(taken_end, taken_end, tail, rest);
}

// Makes slices beyond the frontier a free clean span, so that at least `wanted` aligned slices fit.
// Returns that span's first slice, 0 when there is no memory.
SliceIndex extend_frontier(std::uint32_t wanted, std::uint32_t alignment) {
  SliceIndex frontier = heap.frontier.load(std::memory_order_relaxed);
  if (frontier == 0) {
    // Slice 0 is never handed out: its index means "none".
    if (arena_commit(1) != 0) return 0;
    set_first(0, 0);
    arena.span(0).store({SpanKind::kReserved, 0, false, 1});
    frontier = 1;
  }
  std::uint64_t begin = (std::uint64_t{frontier} + alignment - 1) & ~std::uint64_t{alignment - 1};
  std::uint64_t taken_end = begin + wanted;
  if (taken_end > arena.extent() / kSliceBytes) return 0;
  SliceIndex end = huge_end(static_cast<SliceIndex>(taken_end));
  if (arena_commit(end) != 0) return 0;
  std::uint32_t slices = end - frontier;
  arena.span(frontier).store({SpanKind::kReserved, 0, false, slices});
  set_first(frontier, frontier);
  // Release: pairs with the acquire in page_heap_frontier(); the words below are written.
  heap.frontier.store(end, std::memory_order_release);
  join_and_insert(frontier, slices, SpanKind::kFreeClean);
  return first_of(end - 1);
}

// Makes the free run that reaches the frontier as long as is wanted. False: no memory, or no run.
bool extend_run(SliceIndex run, std::uint32_t wanted, std::uint32_t alignment) {
  if (run == 0) return false;
  std::uint64_t end = (std::uint64_t{run} + alignment - 1) / alignment * alignment + wanted;
  SliceIndex frontier = heap.frontier.load(std::memory_order_relaxed);
  return end > frontier && end <= arena.extent() / kSliceBytes &&
         extend_frontier(static_cast<std::uint32_t>(end - frontier), 1) != 0;
}

// Last resort, when address space is used up: a run of free neighbours of all families.
SliceIndex take_mixed(std::uint32_t wanted, std::uint32_t alignment) {
  SliceIndex run = 0;
  for (SliceIndex slice = 1;;) {
    if (slice >= heap.frontier.load(std::memory_order_relaxed)) {
      if (!extend_run(run, wanted, alignment)) return 0;
      slice = run;  // its last span may be one with the new slices
      run = 0;
    }
    SpanWord word = arena.span(slice).load();
    if (!is_free(word.kind)) {
      run = 0;
    } else {
      if (run == 0) run = slice;
      std::uint32_t length = slice + word.slices - run;
      SliceIndex at = fit_in(run, length, wanted, alignment);
      if (at != 0) {
        for (SliceIndex s = run; s < run + length;) {
          SpanWord piece = arena.span(s).load();
          remove_free(s, piece.slices, piece.kind);
          if (piece.kind == SpanKind::kFreeClean) events_note_use(s, piece.slices);
          s += piece.slices;
        }
        // All of it is dirty from now on: some of it is.
        arena.span(run).freed_ms = now_ms();
        insert_free(run, length, SpanKind::kFreeDirty);
        cut(run, length, SpanKind::kFreeDirty, at, wanted);
        return at;
      }
    }
    slice += word.slices;
  }
}

// Several nodes: pages are the node's whose thread touches them first, and free spans that are
// backed remember whose. The program's own memory policy stays as it is.
constexpr FreeSpans::Where kAnywhere = FreeSpans::Where::kAnywhere;
bool has_nodes() {
  return os::node_count() != 1;
}
unsigned preferred_node() {
  return has_nodes() ? os::this_node() : FreeSpans::kAnyNode;
}

// Whether slabs and other small things leave that spared span alone: another place costs less than
// the registration of the buffer that comes back here. Not for longer than free memory keeps its
// pages anyway, and not where pages are short.
bool is_left_alone(SliceIndex spared, std::uint32_t slices) {
  std::uint32_t age_ms = now_ms() - arena.span(spared).freed_ms;
  std::uint64_t backed = heap.used_slices.load(std::memory_order_relaxed) +
                         heap.dirty_slices.load(std::memory_order_relaxed);
  return age_ms < heap.spare_ms.load(std::memory_order_relaxed) &&
         backed + slices <= heap.limit_slices;
}

// Takes the slices from the free span `found` of a dirty family; 0 when there is none.
SliceIndex take_dirty(SliceIndex found, std::uint32_t slices, std::uint32_t alignment) {
  if (found == 0) return 0;
  SpanWord word = arena.span(found).load();
  SliceIndex taken = fit_in(found, word.slices, slices, alignment);
  cut(found, word.slices, word.kind, taken, slices);
  return taken;
}

// Asks for huge pages under the new part, from `frontier` on, of what one block of `slices` takes.
void ask_for_block(SliceIndex taken, std::uint32_t slices, SliceIndex frontier) {
  if (slices < kHugeBlockSlices) return;
  huge_ask_for_block(taken > frontier ? taken : frontier, taken + slices);
}

SliceIndex take_clean(std::uint32_t slices, std::uint32_t alignment, SpanKind rest,
                      bool is_small_slab = false) {
  // What has no huge pages of its own leaves those of others alone: the rest of a huge page is
  // backed with its first slice.
  bool may_be_huge = slices >= kHugeBlockSlices || is_small_slab;
  SliceIndex frontier = heap.frontier.load(std::memory_order_relaxed);
  SliceIndex clean = heap.clean.find_best(
      slices, alignment, may_be_huge ? FreeSpans::Where::kAnywhere : FreeSpans::Where::kSmallPages);
  if (clean == 0 && is_small_slab) huge_ask_for_slabs(frontier);
  if (clean == 0) clean = extend_frontier(slices, alignment);
  if (clean == 0) clean = heap.clean.find_best(slices, alignment);
  if (clean == 0) return 0;
  std::uint32_t length = arena.span(clean).load().slices;
  SliceIndex taken = fit_in(clean, length, slices, alignment);
  ask_for_block(taken, slices, frontier);
  cut_clean(clean, length, taken, slices, rest);
  return taken;
}

// Whether `wanted` slices right behind `end` are free, of any family, or can be made so.
bool has_room_at(SliceIndex end, std::uint32_t wanted) {
  SliceIndex frontier = heap.frontier.load(std::memory_order_relaxed);
  std::uint32_t found = 0;
  for (SliceIndex s = end; s < frontier && found < wanted;) {
    SpanWord next = arena.span(s).load();
    if (!is_free(next.kind)) return false;
    found += next.slices;
    s += next.slices;
  }
  return found >= wanted || extend_frontier(wanted - found, 1) != 0;
}

// Takes those slices; they are to belong to the span before them.
void take_room(SliceIndex begin, std::uint32_t wanted, SpanKind rest) {
  SliceIndex end = begin + wanted;
  for (SliceIndex s = begin; s < end;) {
    SpanWord next = arena.span(s).load();
    std::uint32_t taken = next.slices < end - s ? next.slices : end - s;
    if (next.kind == SpanKind::kFreeClean) {
      cut_clean(s, next.slices, s, taken, rest);
      events_note_use(s, taken);
    } else {
      cut(s, next.slices, next.kind, s, taken);
    }
    s += taken;
  }
}

// A buffer longer than all before it: at the place of the longest one, and on behind that. So it
// needs only the pages that are missing there, and what comes after it, of any size, finds one
// place and not one for each length that was the longest for a time. Not much longer: most of its
// pages would be new, where free ones may lie elsewhere.
SliceIndex take_longest_and_more(std::uint32_t slices, std::uint32_t alignment) {
  SliceIndex longest = heap.spared.find_longest_reach();
  if (longest == 0 || longest % alignment != 0) return 0;
  std::uint32_t length = arena.span(longest).load().slices;
  // A short one is not worth a buffer that begins within a huge page.
  if (length < kSlicesPerChunk || length < slices / 2) return 0;
  if (length < slices && !has_room_at(longest + length, slices - length)) return 0;
  cut(longest, length, SpanKind::kFreeSpared, longest, length < slices ? length : slices);
  if (length >= slices) return longest;
  take_room(longest + length, slices - length, SpanKind::kFreeSpared);
  arena.span(longest).store({SpanKind::kReserved, 0, false, slices});
  set_first(longest + slices - 1, longest);
  return longest;
}

// Spared neighbours that are `wanted` slices together, made one; the oldest there are, which cost
// the least registrations. 0 when there are none.
SliceIndex join_spared(std::uint32_t wanted) {
  constexpr int kScanLimit = 256;  // before other memory is taken, which costs more than this look
  int scanned = 0;
  for (SliceIndex slice = heap.dirty_by_age.oldest(); slice != 0 && scanned < kScanLimit;
       slice = arena.span(slice).younger, ++scanned) {
    SliceIndex end = slice, frontier = heap.frontier.load(std::memory_order_relaxed);
    while (end < frontier && end - slice < wanted) {
      SpanWord word = arena.span(end).load();
      if (word.kind != SpanKind::kFreeSpared) break;
      end += word.slices;
    }
    if (end - slice < wanted) continue;
    while (arena.span(slice).load().slices < end - slice) {
      std::uint32_t slices = arena.span(slice).load().slices;
      arena.span(slice + slices).is_rest = true;
      remove_free(slice, slices, SpanKind::kFreeSpared);
      join_and_insert(slice, slices, SpanKind::kFreeSpared);
    }
    return slice;
  }
  return 0;
}

SliceIndex take_for_buffer(std::uint32_t slices, std::uint32_t alignment, bool* is_zero) {
  // A buffer's own place; or the place used last, the likeliest to be registered still. Not one
  // that is very much longer, while there is another: a long buffer would miss it.
  constexpr std::uint64_t kMostTimesLonger = 16;
  const FreeSpans& spared = heap.spared;
  SliceIndex found = spared.find_latest(slices, alignment, slices, preferred_node());
  if (found == 0 && has_nodes()) found = spared.find_latest(slices, alignment, slices);
  if (found == 0) found = spared.find_latest(slices, alignment, kMostTimesLonger * slices);
  if (found == 0) found = spared.find_best(slices, alignment, FreeSpans::Where::kInReach);
  if (found != 0) return take_dirty(found, slices, alignment);
  if (SliceIndex taken = take_longest_and_more(slices, alignment)) return taken;
  found = spared.find_best(slices, alignment);
  if (found == 0) found = heap.dirty.find_best(slices, alignment, kAnywhere, preferred_node());
  if (found == 0 && has_nodes()) found = heap.dirty.find_best(slices, alignment);
  if (found == 0) found = join_spared(slices + alignment - 1);
  if (found != 0) return take_dirty(found, slices, alignment);
  SliceIndex taken = take_clean(slices, alignment, SpanKind::kFreeSpared);
  *is_zero = taken != 0;
  return taken;
}

SliceIndex take_for_others(std::uint32_t slices, std::uint32_t alignment, bool is_small_slab,
                           bool* is_zero) {
  SliceIndex dirty = heap.dirty.find_best(slices, alignment, kAnywhere, preferred_node());
  if (dirty == 0 && has_nodes()) {
    // Pages of another node cost each access; new ones once, and what is old goes back anyway.
    dirty = heap.dirty.find_best(slices, alignment);
    if (dirty != 0 && is_left_alone(dirty, slices)) dirty = 0;
  }
  if (dirty != 0) return take_dirty(dirty, slices, alignment);
  SliceIndex spared = heap.spared.find_best(slices, alignment);
  if (spared != 0 && !is_left_alone(spared, slices)) return take_dirty(spared, slices, alignment);
  SliceIndex taken = take_clean(slices, alignment, SpanKind::kFreeDirty, is_small_slab);
  *is_zero = taken != 0;
  if (taken == 0 && spared == 0) spared = heap.dirty.find_best(slices, alignment);
  return taken != 0 ? taken : take_dirty(spared, slices, alignment);
}

enum class TakenFor : std::uint8_t { kOthers, kSmallSlab, kBuffer, kRegion };

SliceIndex take_locked(std::uint32_t slices, std::uint32_t alignment, TakenFor what,
                       bool* is_zero) {
  *is_zero = false;
  if (page_heap_is_over_limit(slices)) return 0;
  SliceIndex taken = 0;
  if (what == TakenFor::kRegion) {
    // No place of a buffer's that may be registered, and no page to give back, if it can be helped.
    taken = take_clean(slices, alignment, SpanKind::kFreeDirty);
    *is_zero = taken != 0;
  }
  if (taken == 0 && (what == TakenFor::kOthers || what == TakenFor::kSmallSlab))
    taken = take_for_others(slices, alignment, what == TakenFor::kSmallSlab, is_zero);
  else if (taken == 0)
    taken = take_for_buffer(slices, alignment, is_zero);
  if (taken == 0) taken = take_mixed(slices, alignment);
  if (taken != 0) add_used(slices);
  return taken;
}

// Takes `slices` with as many free ones behind them, so that what lies there can grow in place. 0
// when there is no such place. Short ones lie where they fit: to copy them costs little, and with
// room behind each, what many of them leave when they move fits none (the program realloc: 271 MiB
// at most instead of 238).
SliceIndex take_with_room(std::uint32_t slices, std::uint32_t asked) {
  // 1 GiB of room is committed ahead at most.
  constexpr std::uint32_t kMostRoom = (std::uint32_t{1} << 30) / kSliceBytes;
  if (page_heap_is_over_limit(slices)) return 0;
  bool is_short = slices < kSlicesPerChunk;
  std::uint32_t room = is_short ? 0 : slices < kMostRoom ? slices : kMostRoom;
  std::uint32_t wanted = slices + room, alignment = is_short ? 1 : kSlicesPerChunk;
  SliceIndex taken = heap.dirty.find_best(wanted, 1);
  if (taken == 0) taken = heap.spared.find_best(wanted, 1);
  // A place without room before new pages: those of arrays that grow would be left behind as holes.
  if (taken == 0) taken = heap.dirty.find_best(slices, 1);
  if (taken != 0) {
    SpanWord word = arena.span(taken).load();
    cut(taken, word.slices, word.kind, taken, slices);
  } else {
    SliceIndex frontier = heap.frontier.load(std::memory_order_relaxed);
    SliceIndex clean = heap.clean.find_best(wanted, alignment);
    if (clean == 0) clean = extend_frontier(wanted, alignment);
    if (clean == 0) return 0;
    std::uint32_t length = arena.span(clean).load().slices;
    taken = fit_in(clean, length, wanted, alignment);
    ask_for_block(taken, asked, frontier);
    cut_clean(clean, length, taken, slices, SpanKind::kFreeDirty);
    events_note_use(taken, slices);
  }
  add_used(slices);
  return taken;
}

// The family that a span in use goes to. An array that grew leaves no place to come back to: the
// next one has another length.
SpanKind left_by(const Span& span) {
  SpanWord word = span.load();
  bool is_buffer = is_large(word.kind) && word.slices >= kBufferSlices;
  return is_buffer && !span.has_grown ? SpanKind::kFreeSpared : SpanKind::kFreeDirty;
}

// Puts slices of a taken span back that were needed only to reach an aligned address.
void put_back(SliceIndex slice, std::uint32_t slices, SpanKind kind) {
  add_used(-static_cast<std::int64_t>(slices));
  arena.span(slice).freed_ms = now_ms();
  join_and_insert(slice, slices, kind);
}

// The same for a block whose address must be a multiple of more than a chunk, to which the arena is
// aligned: a longer span, of which the ends go back.
SliceIndex take_at_address(std::uint32_t slices, std::size_t alignment, TakenFor what,
                           bool* is_zero) {
  auto align_slices = static_cast<std::uint32_t>(alignment >> kSliceShift);
  std::uint32_t total = slices + align_slices - 1;
  if (total < slices) return 0;
  SliceIndex taken = take_locked(total, 1, what, is_zero);
  if (taken == 0) return 0;
  SpanKind rest = *is_zero ? SpanKind::kFreeClean : SpanKind::kFreeSpared;
  std::uintptr_t address = arena.address_of(taken);
  std::uintptr_t aligned =
      (address + alignment - 1) & ~(static_cast<std::uintptr_t>(alignment) - 1);
  auto before = static_cast<std::uint32_t>((aligned - address) >> kSliceShift);
  SliceIndex slice = taken + before;
  std::uint32_t after = total - before - slices;
  if (before != 0) {
    arena.span(slice).is_rest = true;
    arena.span(slice).reach = 0;
    arena.span(slice).node = arena.span(taken).node;
  }
  // The pieces' words first, the one that makes them visible last.
  if (after != 0) {
    arena.span(slice + slices).is_rest = true;
    arena.span(slice + slices).reach = 0;
    arena.span(slice + slices).node = arena.span(taken).node;
    arena.span(slice + slices).store({SpanKind::kReserved, 0, false, after});
  }
  arena.span(slice).store({SpanKind::kReserved, 0, false, slices});
  set_first(slice, slice);
  set_first(slice + slices - 1, slice);
  if (before != 0) {
    arena.span(taken).store({SpanKind::kReserved, 0, false, before});
    put_back(taken, before, rest);
  }
  if (after != 0) put_back(slice + slices, after, rest);
  return slice;
}

// The lock, which another thread holds. Who wants it for a run that could have been parked notes
// that, where it is a thread of the program; whom a purge keeps waiting parks don't help.
[[gnu::cold, gnu::noinline]] void lock_after_meeting(bool is_of_parks) {
  std::uint32_t purger = purge_turn_owner(), owner = heap.lock.owner();
  if (is_of_parks && owner != 0 && owner != purger && owner != purge_turn_owner())
    parks_note_meeting();
  heap.lock.lock();
}

SpanWord large_word(bool is_zero, std::uint16_t owner) {
  SpanKind kind = owner != 0 ? SpanKind::kHeapLarge : SpanKind::kLarge;
  return {kind, kLargeClass, is_zero, 0, owner};
}

}  // namespace

bool page_heap_is_over_limit(std::uint32_t more) {
  return heap.used_slices.load(std::memory_order_relaxed) + more > heap.limit_slices;
}

std::uint64_t page_heap_limit_slices() {
  return heap.limit_slices;
}

SliceIndex page_heap_take_slab(std::uint32_t slices, std::uint32_t block_bytes) {
  TakenFor what = block_bytes <= kHugeSlabBlock ? TakenFor::kSmallSlab : TakenFor::kOthers;
  for (;;) {
    {
      LockGuard guard(heap.lock);
      bool is_zero = false;
      SliceIndex slice = take_locked(slices, slices, what, &is_zero);
      if (slice != 0 && is_zero) events_note_use(slice, slices);
      if (slice != 0) return slice;
    }
    if (parks_return(0) == 0) return 0;
  }
}

void page_heap_publish_slab(SliceIndex slice, std::uint8_t size_class, std::uint16_t owner,
                            std::uint8_t shard) {
  LockGuard guard(heap.lock);
  SpanKind kind = owner != 0 ? SpanKind::kHeapSlab : SpanKind::kSlab;
  publish_locked(slice, {kind, size_class, false, 0, owner, shard});
}

void page_heap_publish_large(SliceIndex slice, std::uint16_t owner) {
  LockGuard guard(heap.lock);
  publish_locked(slice, large_word(false, owner));
}

SliceIndex page_heap_take_large(std::uint32_t slices, std::size_t alignment, bool* is_zero,
                                std::uint16_t owner, bool prefers_clean) {
  auto align_slices = static_cast<std::uint32_t>(alignment >> kSliceShift);
  if (align_slices == 0) align_slices = 1;
  bool is_buffer = slices >= kBufferSlices || align_slices > kSlicesPerChunk;
  TakenFor what = is_buffer ? TakenFor::kBuffer : TakenFor::kOthers;
  if (prefers_clean) what = TakenFor::kRegion;
  for (;;) {
    {
      if (!heap.lock.try_lock()) lock_after_meeting(owner == 0 && slices <= kParkedMost);
      LockGuard guard(heap.lock, LockGuard::Held{});
      SliceIndex slice = align_slices <= kSlicesPerChunk
                             ? take_locked(slices, align_slices, what, is_zero)
                             : take_at_address(slices, alignment, what, is_zero);
      if (slice != 0) [[likely]] {
        if (*is_zero) events_note_use(slice, slices);
        publish_locked(slice, large_word(*is_zero, owner));
        return slice;
      }
    }
    // What is parked is free, in the limit too.
    if (parks_return(0) == 0) return 0;
  }
}

SliceIndex page_heap_take_growing(std::uint32_t slices, std::uint16_t owner) {
  // A sixth more than is asked for, like a vector: whatever comes to lie behind it, a block that
  // grows by small steps is copied a number of times that goes with the logarithm of its size. With
  // a quarter the program realloc takes 8 % more memory and 7 % less time.
  std::uint32_t capacity = slices + slices / kGrowingParts;
  // Whole huge pages for what takes two of them; arrays of 2 MiB beside each other would take 4
  // each, a sixth more over all (the program realloc).
  if (capacity >= 2 * kSlicesPerChunk)
    capacity = (capacity + kSlicesPerChunk - 1) & ~(kSlicesPerChunk - 1);
  LockGuard guard(heap.lock);
  SliceIndex slice = capacity > slices ? take_with_room(capacity, slices) : 0;
  if (slice == 0) return 0;
  publish_locked(slice, large_word(false, owner));
  arena.span(slice).has_grown = true;
  return slice;
}

void page_heap_fit_limit() {
  LockGuard guard(heap.lock);
  arena_give_up_rest();
}

void page_heap_free(SliceIndex slice) {
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  if (!heap.lock.try_lock())
    lock_after_meeting(word.kind == SpanKind::kLarge && word.slices <= kParkedMost);
  LockGuard guard(heap.lock, LockGuard::Held{});
  (is_large(word.kind) ? heap.large_spans : heap.slab_spans) -= 1;
  SpanKind left = left_by(span);
  span.store({SpanKind::kReserved, 0, false, word.slices});
  // Release: pairs with the acquire in rdmalloc_range_is_idle(): what was done with the blocks,
  // with their keys above all, comes before what is done once nothing is alive there.
  for (SliceIndex s = slice; s < slice + word.slices; ++s)
    arena.class_map[s].store(0, std::memory_order_release);
  add_used(-static_cast<std::int64_t>(word.slices));
  span.freed_ms = now_ms();
  if (span.reach < word.slices) span.reach = word.slices;
  join_and_insert(slice, word.slices, left);
}

namespace {

bool grow_locked(SliceIndex slice, std::uint32_t slices) {
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  SliceIndex end = slice + word.slices;
  std::uint32_t more = slices - word.slices;
  SliceIndex frontier = heap.frontier.load(std::memory_order_relaxed);
  if (page_heap_is_over_limit(more) || !has_room_at(end, more)) return false;
  if (slices >= kHugeBlockSlices && end + more > frontier) huge_ask_for_block(frontier, end + more);
  take_room(end, more, SpanKind::kFreeDirty);
  span.has_grown = true;
  for (SliceIndex s = end; s < end + more; ++s) {
    set_first(s, slice);
    arena.class_map[s].store(map_class_of(word), std::memory_order_relaxed);
  }
  span.store({word.kind, word.size_class, false, slices, word.heap});
  add_used(more);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // as in publish_locked
  return true;
}

// Gives back what is parked where it keeps the span from being so long. Whether anything was.
bool make_room_of_parks(SliceIndex slice, std::uint32_t slices) {
  std::uint32_t have = arena.span(slice).load().slices;
  if (page_heap_is_over_limit(slices - have)) return parks_return(0) != 0;
  SliceIndex end = page_heap_frontier(), s = slice + have;
  if (slices < end && slice < end - slices) end = slice + slices;
  while (s < end) {
    SpanWord next = arena.span(s).load();
    if (!is_free(next.kind)) return parks_return_run(s);
    s += next.slices;
  }
  return false;
}

}  // namespace

bool page_heap_grow(SliceIndex slice, std::uint32_t slices) {
  do {
    LockGuard guard(heap.lock);
    if (grow_locked(slice, slices)) return true;
  } while (make_room_of_parks(slice, slices));
  return false;
}

void page_heap_shrink(SliceIndex slice, std::uint32_t slices) {
  LockGuard guard(heap.lock);
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  std::uint32_t less = word.slices - slices;
  SliceIndex tail = slice + slices;
  SpanKind left = left_by(span);
  arena.span(tail).store({SpanKind::kReserved, 0, false, less});
  span.store({word.kind, word.size_class, word.is_zero, slices, word.heap});
  for (SliceIndex s = tail; s < tail + less; ++s)
    arena.class_map[s].store(0, std::memory_order_release);  // as in page_heap_free
  add_used(-static_cast<std::int64_t>(less));
  arena.span(tail).freed_ms = now_ms();
  arena.span(tail).is_rest = true;
  arena.span(tail).node = span.node;
  arena.span(tail).reach = less;
  if (span.reach < word.slices) span.reach = word.slices;
  join_and_insert(tail, less, left);
}

}  // namespace rdmalloc
