#include "alloc/purge/purge.h"

#include <errno.h>

#include <bit>

#include "alloc/cache/depot.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/take_back.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/file_thread.h"
#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/core/lock.h"
#include "alloc/core/options.h"
#include "alloc/core/purge_signal.h"
#include "alloc/core/report.h"
#include "alloc/heaps/heap.h"
#include "alloc/os/at_start.h"
#include "alloc/os/cancel.h"
#include "alloc/os/os.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/events.h"
#include "alloc/pages/give_back.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/in_flight.h"
#include "alloc/pages/limits.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/purge_turn.h"
#include "alloc/pages/region_pages.h"
#include "alloc/purge/purge_state.h"
#include "alloc/purge/slab_purge.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {

namespace purge_state {
RDMALLOC_AT_START constinit Purger purger;
}

using namespace purge_state;

namespace {

// 16 MiB at once: what is being purged can't be allocated, so not too much; each piece is a round
// of observers and one system call, so not too little.
constexpr std::uint32_t kPieceSlices = 256;
// With RDMALLOC_LIMIT a part of that: what is out of reach is backed still, and threads that go on
// take new pages beside it.
constexpr std::uint32_t kPiecesOfLimit = 8;
// A refused or waiting purge thread looks again four times in a decay time, in these bounds.
constexpr std::uint64_t kShortestTickMs = 1, kLongestTickMs = 1000;

std::uint32_t now_ms() {
  return static_cast<std::uint32_t>(os::coarse_ms());
}
// Where no thread of the program's did (shards_learn).
void look_up_limits() {
  if (limits_are_known() || dirty_bytes() < kLookUpFromBytes) return;
  os::MemoryLimits found = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
  file_thread_run([](void* out) { *static_cast<os::MemoryLimits*>(out) = os::memory_limits(); },
                  &found);
  limits_take(found);
}

}  // namespace

namespace purge_state {

bool try_turn() {
  bool is_free = purge_turn.try_begin();
  if (is_free) purge_turn.end();
  return is_free;
}

}  // namespace purge_state

namespace {

bool is_held() {
  return os::coarse_ms() < purger.held_until_ms.load(std::memory_order_seq_cst);
}
std::uint32_t decay_in_force() {
  return static_cast<std::uint32_t>(dirty_limits.decay_ms.load(std::memory_order_relaxed));
}
// Whether a pause or a hold has ended what the purge thread does, though it may be over by now.
constinit bool has_been_ended = false;
// Whether a purge has stopped for a thread that waits for memory. With the turn.
constinit bool has_made_way = false;
// Whether the rest of a request waits for the next tick, of the purge thread: else what came back
// would be out again before the thread that waits has seen it.
constinit bool is_put_off = false;
// Between two pieces of a pass of the purge thread's.
bool is_paused_or_held() {
  bool ends = purge_is_paused() || is_held();
  if (ends) has_been_ended = true;
  return ends;
}
bool must_stop() {
  return is_paused_or_held() || memory_is_awaited();
}
// The same for rdmalloc_purge(), which no purge_hold() holds up.
bool must_stop_asked_for() {
  return purge_is_paused() || memory_is_awaited();
}

// ---- one purge. With the turn, no lock held. ----

void count_result(GiveBack result, std::size_t bytes) {
  if (result == GiveBack::kRefused) count(purger.refusals);
  if (result != GiveBack::kDone) return;
  count(purger.purges);
  count(purger.purged_bytes, bytes);
}

// Where a refused run is cut: at the roundest address in it, so that an observer which agrees to
// whole units only (of a power of two) is offered each of them.
std::uint32_t front_of(SliceIndex slice, std::uint32_t slices) {
  std::uintptr_t first = arena.address_of(slice) >> kSliceShift, last = first + slices - 1;
  std::uintptr_t differing = std::bit_floor(first ^ last);
  return static_cast<std::uint32_t>((last & ~(differing - 1)) - first);
}

// So many calls in a row that the kernel refuses show a locked slice of a piece: the piece, its
// half, and so on. After more, what is left of the piece is offered in parts as they are, each
// twice as long as the one before: where all of it is locked that is 17 calls for 511, and behind a
// run of locked slices about as many stay as it has.
constexpr int kMostInVain = std::bit_width(kPieceSlices);

// What was taken in flight at once.
struct Piece {
  enum rdmalloc_purge_reason reason;
  SliceIndex end_before_more;  // where it ends, if the pass goes on behind it
  int in_vain = 0;             // calls that the kernel refused since one that it did not
};

// Purges a span in flight. Where it is refused, two parts of it are offered, and parts of those,
// so that one registration in use, or one locked page, holds back only the slices it lies on.
// Returns the slices purged.
std::uint32_t purge_span(SliceIndex slice, std::uint32_t slices, Piece& piece) {
  std::size_t bytes = std::size_t{slices} << kSliceShift;
  huge_split(arena.address_of(slice), bytes);
  GiveBack result = give_back(arena.address_of(slice), bytes, piece.reason, [=](int error) {
    if (error == 0) events_note_purged(slice, slices);
    return error;
  });
  if (result == GiveBack::kDone) piece.in_vain = 0;
  if (result == GiveBack::kFailed) {
    ++piece.in_vain;
    count(purger.failures);
  }
  bool is_final = result == GiveBack::kDone || slices == 1 ||
                  (result == GiveBack::kFailed && piece.in_vain > kMostInVain);
  if (is_final) {
    // A failed call may have done a part (locked pages refuse): dirty is always safe to say.
    page_heap_purge_end(slice, result == GiveBack::kDone, now_ms(),
                        slice + slices == piece.end_before_more);
    count_result(result, bytes);
    return result == GiveBack::kDone ? slices : 0;
  }
  std::uint32_t front = front_of(slice, slices);
  page_heap_purge_split(slice, front);
  std::uint32_t purged = purge_span(slice, front, piece);
  return purged + purge_span(slice + front, slices - front, piece);
}

// What was out of reach is back. Returns whether a thread waited for it.
bool end_flight() {
  bool is_awaited = memory_is_back();
  has_made_way |= is_awaited;
  return is_awaited;
}

// Purges what may go until `keep_bytes` are dirty. Offers nothing twice: what stays is young again,
// or was offered last.
std::uint64_t purge_pass(const PurgeChoice& choice, std::uint64_t keep_bytes,
                         enum rdmalloc_purge_reason reason,
                         bool (*must_end)() = is_paused_or_held) {
  if (keep_bytes == 0) page_heap_enter_rest(choice);
  std::uint64_t budget = page_heap_dirty_slices(), purged = 0;
  PurgeOffered last;
  for (std::uint64_t offered = 0; offered < budget && dirty_bytes() > keep_bytes;) {
    if (must_end()) break;
    std::uint32_t slices = 0;
    memory_goes_out(InFlight::kSpans);
    SliceIndex slice = page_heap_purge_begin(choice, &last, &slices);
    Piece piece{reason, last.has_more ? slice + slices : 0};
    if (slice != 0) purged += purge_span(slice, slices, piece);
    if (end_flight() || slice == 0) break;
    offered += slices;
  }
  return purged << kSliceShift;
}

// Purges pages of a slab in use, whose blocks are in flight.
GiveBack purge_slab_pages(std::uintptr_t base, std::size_t length,
                          enum rdmalloc_purge_reason reason) {
  huge_split(base, length);
  GiveBack result = give_back(base, length, reason, [=](int error) {
    // A cache that remembers the span's generation is to know that pages of it went: of locked
    // ones, where there is an error, those before the first.
    page_heap_note_part_purged(arena.slice_of(base));
    return error;
  });
  count_result(result, length);
  if (result == GiveBack::kFailed) count(purger.failures);
  if (result == GiveBack::kDone) count(purger.slab_purged_bytes, length);
  return result;
}

// Pages of slabs in use.
std::uint64_t purge_slabs(bool everything, enum rdmalloc_purge_reason reason, bool (*must_stop)()) {
  memory_goes_out(InFlight::kPagesOfSlabs);
  std::uint32_t decay = decay_in_force();
  std::uint64_t purged =
      slab_purge_walk({everything, decay, 2 * decay, reason, purge_slab_pages, must_stop});
  end_flight();
  return purged;
}

std::uint32_t piece_slices() {
  std::uint64_t backed = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  std::uint64_t part = backed / kSliceBytes / kPiecesOfLimit;
  if (part == 0) return 1;  // a cgroup's limit may be anything
  return part < kPieceSlices ? static_cast<std::uint32_t>(part) : kPieceSlices;
}
PurgeChoice every_choice() {
  return {true, 0, 0, piece_slices()};
}
// When all that was due had gone: at the start nothing is free. With the turn.
constinit std::int64_t nothing_was_due_ms = 0;
// Spans' times are compared by their difference, of which after 25 days the sign is another: what a
// program of one thread freed that long before it makes a second one. Half of that.
constexpr std::int64_t kAgesToldForMs = std::int64_t{1} << 30;

PurgeChoice due_choice() {
  std::int64_t decay = decay_in_force(), now = os::coarse_ms();
  bool any_age = decay == 0 || now - nothing_was_due_ms > kAgesToldForMs;
  return {any_age, now - decay, now - 2 * decay, piece_slices()};
}
void purge_due() {
  has_made_way = false;
  purge_pass(due_choice(), 0, RDMALLOC_PURGE_DECAY);
  if (!has_made_way && !is_paused_or_held()) nothing_was_due_ms = os::coarse_ms();
}

// ---- the purge thread ----

PressureDemand pressure_demand() {
  if (!options().watch_pressure) return {UINT64_MAX, RDMALLOC_PURGE_DECAY};
  return purger.pressure.look(os::coarse_ms(), dirty_bytes());
}

// What caches of threads hold: of those that are idle, or of all. With the turn. Returns whether
// the next round may find more.
bool threads_give_up(bool all) {
  return caches_reclaim(all ? ReclaimFrom::kAll : ReclaimFrom::kIdle, os::coarse_ms());
}

// ---- pauses ----

int begin_pause(std::atomic<std::uint32_t>& pauses) {
  // First: an initialisation in a child would find the pause of its parent, and no fork of it.
  ensure_initialised();
  fork_check();
  if (purge_turn_is_mine()) return -EDEADLK;
  pauses.fetch_add(1, std::memory_order_seq_cst);
  // A pass under way looks at `pauses` before each piece; when the turn was ours, it has ended.
  purge_turn_wait();
  return 0;
}

// Whether there was one. In the child of a fork there is none any more.
bool end_pause(std::atomic<std::uint32_t>& pauses) {
  fork_check();
  std::uint32_t seen = pauses.load(std::memory_order_relaxed);
  while (seen != 0) {
    if (!pauses.compare_exchange_weak(seen, seen - 1, std::memory_order_seq_cst)) continue;
    // seq_cst, after the pause's end: pairs with the purge thread's store of `sleep` before it
    // looks at both. Either it finds a request that may be served, or is seen to sleep here.
    if (purger.everything_requested.load(std::memory_order_seq_cst)) detail::purge_thread_signal();
    return true;
  }
  return false;
}

}  // namespace

namespace purge_state {

bool round_of_work() {
  is_put_off = false;
  purge_turn.begin();
  if (is_held()) {  // looked at with the turn: purge_hold() waits for the turn after its store
    purge_turn.end();
    return true;
  }
  // Looked at with the turn, as is_held() is. A thread that paused, found the turn free and waits
  // for this one to end may hold a lock that an observer wants.
  bool was_paused = purge_is_paused();
  if (!was_paused) {
    events_deliver_all();
    region_pages_restore_in_turn();
  }
  bool requested =
      !was_paused && purger.everything_requested.exchange(false, std::memory_order_acquire);
  look_up_limits();
  PressureDemand demand = pressure_demand();
  bool empties_caches = requested || dirty_limits.decay_ms.load() == 0 || demand.keep_bytes == 0;
  if (demand.keep_bytes == 0) take_backs_ask();
  // seq_cst: before the looks at caches, those of heaps too. What changes later is noted again.
  if (!detail::purge_signal.caches_are_still.exchange(true, std::memory_order_seq_cst))
    caches_look_again();
  bool caches_have_more = threads_give_up(requested || demand.keep_bytes == 0);
  bool depot_has_more = depot_age(empties_caches);
  bool heaps_have_more = heaps_age(empties_caches);
  if (requested) {
    has_been_ended = has_made_way = false;
    purge_slabs(true, RDMALLOC_PURGE_REQUEST, must_stop);
    purge_pass(every_choice(), 0, RDMALLOC_PURGE_REQUEST);
    is_put_off = has_made_way;
    if (has_been_ended || is_put_off || is_paused_or_held())
      purger.everything_requested.store(true, std::memory_order_seq_cst);
  } else {
    purge_slabs(demand.keep_bytes == 0,
                demand.keep_bytes == 0 ? demand.reason : RDMALLOC_PURGE_DECAY, must_stop);
    purge_due();
    bool is_limit = false;
    std::uint64_t most = dirty_ceiling_bytes(&is_limit);
    if (dirty_bytes() > most)
      purge_pass(every_choice(), most, is_limit ? RDMALLOC_PURGE_LIMIT : RDMALLOC_PURGE_CEILING);
    if (dirty_bytes() > demand.keep_bytes &&
        purge_pass(every_choice(), demand.keep_bytes, demand.reason) != 0)
      count(purger.pressure_purges);
  }
  page_heap_narrow_room();
  bool slabs_are_done = slab_purge_is_done();
  purge_turn.end();
#if RDMALLOC_CHECKED
  if (!page_heap_is_valid()) report_fatal("the page heap's equations do not hold", "page_heap.h");
#endif
  return was_paused || purger.everything_requested.load(std::memory_order_relaxed) ||
         caches_have_more || depot_has_more || heaps_have_more || !slabs_are_done ||
         dirty_bytes() != 0 || page_heap_has_rest() || page_heap_retired_slices() != 0;
}

std::uint64_t tick_ms() {
  std::uint64_t tick = dirty_limits.decay_ms.load(std::memory_order_relaxed) / 4;
  if (tick < kShortestTickMs) tick = kShortestTickMs;
  // With decay 0 all that is left was refused: no hurry, the next free() wakes us.
  if (dirty_limits.decay_ms.load(std::memory_order_relaxed) == 0) tick = 50;
  if (tick > kLongestTickMs) tick = kLongestTickMs;
  if (!purger.everything_requested.load(std::memory_order_relaxed)) return tick;
  std::int64_t held_ms = purger.held_until_ms.load(std::memory_order_relaxed) - os::coarse_ms();
  bool ends_before = held_ms >= 0 && static_cast<std::uint64_t>(held_ms) < tick;
  return ends_before ? static_cast<std::uint64_t>(held_ms) + 1 : tick;
}

bool has_request() {
  return purger.everything_requested.load(std::memory_order_seq_cst) && !is_put_off &&
         !is_paused_or_held();
}

bool is_idle() {
  return dirty_bytes() == 0 && !page_heap_has_rest() && page_heap_retired_slices() == 0 &&
         !events_are_pending() && slab_is_watched() && depot_is_empty() &&
         detail::purge_signal.caches_are_still.load(std::memory_order_seq_cst) &&
         !purger.everything_requested.load(std::memory_order_seq_cst);
}

}  // namespace purge_state

void purge_init() {
  thread_init();
  nothing_was_due_ms = os::coarse_ms();
  std::uint64_t decay_ms = options().decay_ms;
  dirty_limits.decay_ms.store(decay_ms, std::memory_order_relaxed);
  page_heap_set_retain_ms(decay_ms);
  limits_init();
}

void purge_hold(std::int64_t hold_ms, int wait_ms) {
  fork_check();
  // A program that ends without an allocation need not ask for the time first.
  std::int64_t now = hold_ms == INT64_MAX ? 0 : os::coarse_ms();
  std::int64_t until = hold_ms > INT64_MAX - now ? INT64_MAX : now + hold_ms;
  std::int64_t before = purger.held_until_ms.load(std::memory_order_relaxed);
  while (before < until && !purger.held_until_ms.compare_exchange_weak(before, until)) {
  }
  // Then no thread purges; and one that begins to, which takes an arena first, finds it held:
  // seq_cst here and above, against the store that ends initialise() and the load in is_held().
  if (!detail::initialised.load(std::memory_order_seq_cst)) return;
  for (int waited_ms = 0; waited_ms <= wait_ms && !purge_turn_is_mine(); waited_ms++) {
    if (purge_state::try_turn()) return;
    os::sleep_ns(1000000);
  }
}

int purge_pause() {
  return begin_pause(own_purge_pauses);
}
void purge_resume() {
  end_pause(own_purge_pauses);
}

PurgeCounters purge_counters() {
  PurgeCounters counters = {
      .purges = purger.purges.load(std::memory_order_relaxed),
      .purged_bytes = purger.purged_bytes.load(std::memory_order_relaxed),
      .slab_purged_bytes = purger.slab_purged_bytes.load(std::memory_order_relaxed),
      .refusals = purger.refusals.load(std::memory_order_relaxed),
      .failures = purger.failures.load(std::memory_order_relaxed),
      .decay_ms = dirty_limits.decay_ms.load(std::memory_order_relaxed),
      .pressure_purges = purger.pressure_purges.load(std::memory_order_relaxed),
  };
  thread_counters(&counters);
  return counters;
}

void purge_set_decay_ms(std::uint64_t decay_ms) {
  dirty_limits.decay_ms.store(decay_ms, std::memory_order_relaxed);
  page_heap_set_retain_ms(decay_ms);
  purge_note_slab_change();
}
bool purge_after_fork(const Forker& forker, std::uintptr_t forkers_stack) {
  bool purge_goes_on = purge_turn.after_fork(forker);
  memory_after_fork(purge_goes_on);
  program_purge_pauses.store(0, std::memory_order_relaxed);
  own_purge_pauses.store(0, std::memory_order_relaxed);
  thread_after_fork(forkers_stack);
  return purge_goes_on;
}

}  // namespace rdmalloc

using namespace rdmalloc;

extern "C" int64_t rdmalloc_purge(size_t keep_bytes) {
  if (!ensure_initialised()) return 0;
  fork_check();
  if (purge_turn_is_mine()) return -EDEADLK;
  if (purge_is_paused()) return -EBUSY;
  os::NoCancelScope no_cancel;  // an observer may call what ends a canceled thread
  int saved = errno;            // which it may change, too
  cache_flush_this_thread();
  purge_turn.begin();
  // Once more with the turn: a pause that began since has found it free and returned.
  if (purge_is_paused()) {
    purge_turn.end();
    return -EBUSY;
  }
  events_deliver_all();
  region_pages_restore_in_turn();
  threads_give_up(true);
  depot_age(true);
  heaps_age(true);
  std::uint64_t purged =
      keep_bytes == 0 ? purge_slabs(true, RDMALLOC_PURGE_REQUEST, must_stop_asked_for) : 0;
  purged += purge_pass(every_choice(), keep_bytes, RDMALLOC_PURGE_REQUEST, purge_is_paused);
  page_heap_narrow_room();
  purge_turn.end();
  errno = saved;
  return static_cast<int64_t>(purged);
}

extern "C" int rdmalloc_purge_pause(void) {
  return begin_pause(program_purge_pauses);
}

extern "C" int rdmalloc_purge_resume(void) {
  return end_pause(program_purge_pauses) ? 0 : -EALREADY;
}
