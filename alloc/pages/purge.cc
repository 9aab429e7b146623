// More than 600 lines: the turn, the thread and whoever stops them for a checkpoint share one
// state, which nobody else is to see.
#include "alloc/pages/purge.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <bit>

#include "alloc/api/options.h"
#include "alloc/cache/depot.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/at_start.h"
#include "alloc/core/helper_threads.h"
#include "alloc/core/lock.h"
#include "alloc/core/report.h"
#include "alloc/fork.h"
#include "alloc/heaps/heap.h"
#include "alloc/init.h"
#include "alloc/os/fault.h"
#include "alloc/os/memory.h"
#include "alloc/os/os.h"
#include "alloc/pages/events.h"
#include "alloc/pages/out_of_reach.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/parked.h"
#include "alloc/pages/pressure.h"
#include "alloc/pages/region_pages.h"
#include "alloc/slabs/slab.h"
#include "alloc/slabs/slab_purge.h"

namespace rdmalloc {
namespace {

// 16 MiB at once: what is being purged can't be allocated, so not too much; each piece is a round
// of observers and one system call, so not too little.
constexpr std::uint32_t kPieceSlices = 256;
// A single-threaded program gets a purge thread only when it keeps this much free memory; below, a
// second thread would cost it more (fork, stdio) than the memory is worth.
constexpr std::uint64_t kThreadFromBytes = std::uint64_t{32} << 20;
// Or when its slabs, each of which a single block keeps in place, take this much.
constexpr std::uint64_t kThreadFromSlabBytes = std::uint64_t{64} << 20;
// Observers run on it, and libc puts the program's static TLS there too; backed only where touched.
constexpr std::size_t kStackBytes = std::size_t{4} << 20;
constexpr std::uint64_t kMostDirtyBytes = std::uint64_t{512} << 20;
// A refused or waiting purge thread looks again four times in a decay time, in these bounds.
constexpr std::uint64_t kShortestTickMs = 1, kLongestTickMs = 1000;

constexpr std::uint64_t kNotLookedUp = UINT64_MAX;  // of Purger::dirty_max_bytes
enum class ThreadState : std::uint32_t { kNone, kStarting, kRuns, kStopping, kFailed, kFrozen };
// What the purge thread's futex word says.
constexpr std::uint32_t kAwake = 0, kTicking = 1, kIdle = 2;

struct Purger {
  std::atomic<ThreadState> thread{ThreadState::kNone};
  std::atomic<std::uint32_t> sleep{kAwake};
  std::atomic<bool> everything_requested{false};
  std::atomic<bool> stop{false};
  std::atomic<bool> first_thread_ended{false};  // or is about to
  pthread_t handle{};
  std::uintptr_t stack = 0;

  std::atomic<std::uint64_t> decay_ms{5000};
  std::atomic<std::uint64_t> dirty_max_bytes{kNotLookedUp};  // see dirty_max_bytes()
  std::atomic<std::uint32_t> pauses{0};
  std::atomic<std::int64_t> held_until_ms{0};
  std::atomic<DecommitFunction> decommit{os::decommit_hooked};

  std::atomic<std::uint64_t> purges{0}, purged_bytes{0}, refusals{0}, failures{0};
  std::atomic<std::uint64_t> slab_purged_bytes{0};
  std::atomic<std::uint64_t> thread_failures{0}, pressure_purges{0};
  std::atomic<bool> has_warned{false};
  std::atomic<std::uint64_t> freezes{0};
  std::atomic<bool> starts_at_thaw{false};  // the thread ran, or was asked for since
  PressureWatch pressure;                   // with the turn
};
RDMALLOC_AT_START constinit Purger purger;

// Statistics: relaxed throughout, they order nothing.
void count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

// The purge turn: who may call observers and decommit. Not a Lock: foreign code runs while it is
// held, which is why nobody in malloc or free may wait for it.
class Turn {
 public:
  bool is_mine() const { return owner() == thread_id(); }
  std::uint32_t owner() const { return owner_.load(std::memory_order_relaxed); }
  bool try_begin() {
    std::uint32_t expected = 0;
    return owner_.compare_exchange_strong(expected, thread_id(), std::memory_order_acquire);
  }
  void begin() {
    // Acquire: pairs with the release in end().
    for (;;) {
      std::uint32_t expected = 0;
      if (owner_.compare_exchange_strong(expected, thread_id(), std::memory_order_acquire)) return;
      fork_check();  // as in Lock::lock_contended()
      waiters_.fetch_add(1, std::memory_order_seq_cst);
      // A lost wake-up costs 10 ms and no more.
      os::futex_wait(reinterpret_cast<const std::uint32_t*>(&owner_), expected, 10000000);
      waiters_.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  void end() {
    owner_.store(0, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst) != 0)
      os::futex_wake(reinterpret_cast<const std::uint32_t*>(&owner_), 1);
  }
  // In a fork child: the turn of the thread that called fork stays its own, any other has ended.
  // Returns whether it is that one's.
  bool after_fork(const Forker& forker) {
    bool is_forkers = forker.is_called(owner());
    owner_.store(is_forkers ? forker.is : 0, std::memory_order_relaxed);
    return is_forkers;
  }

 private:
  std::atomic<std::uint32_t> owner_{0};
  std::atomic<std::uint32_t> waiters_{0};
};
constinit Turn turn;

std::uint32_t now_ms() {
  return static_cast<std::uint32_t>(os::coarse_ms());
}
std::uint64_t dirty_bytes() {
  return page_heap_dirty_slices() << kSliceShift;
}
// With what is parked, of which a look costs a line of each park.
std::uint64_t free_bytes() {
  return dirty_bytes() + (parked_slices() << kSliceShift);
}
// The ceiling for free memory: set, or a quarter of what this process may have. That takes files to
// read, so it is looked up once needed: not by small programs. Any thread; all find the same.
std::uint64_t dirty_max_bytes() {
  std::uint64_t bytes = purger.dirty_max_bytes.load(std::memory_order_relaxed);
  if (bytes != kNotLookedUp) return bytes;
  std::uint64_t most = os::memory_limit_bytes() / 4;
  if (most > kMostDirtyBytes) most = kMostDirtyBytes;
  // Only from there: a program may have set it meanwhile.
  if (!purger.dirty_max_bytes.compare_exchange_strong(bytes, most, std::memory_order_relaxed))
    return bytes;
  parks_set_ceiling(most);
  return most;
}
// Dirty bytes that may stay: the ceiling, and what RDMALLOC_LIMIT leaves beside the spans in use.
std::uint64_t dirty_ceiling_bytes(bool* is_limit) {
  std::uint64_t ceiling = dirty_max_bytes();
  std::uint64_t limit = options().limit_bytes;
  *is_limit = false;
  if (limit == UINT64_MAX) return ceiling;
  // What is parked is free, though the page heap counts it as used.
  std::uint64_t used = page_heap_used_slices() << kSliceShift;
  std::uint64_t parked = parked_slices() << kSliceShift;
  used -= parked < used ? parked : used;
  std::uint64_t left = limit > used ? limit - used : 0;
  *is_limit = left < ceiling;
  return *is_limit ? left : ceiling;
}
bool is_held() {
  return os::coarse_ms() < purger.held_until_ms.load(std::memory_order_seq_cst);
}
std::uint32_t decay_in_force() {
  return static_cast<std::uint32_t>(purger.decay_ms.load(std::memory_order_relaxed));
}
DecommitFunction decommit_in_force() {
  return purger.decommit.load(std::memory_order_relaxed);
}
bool is_paused() {
  return purger.pauses.load(std::memory_order_seq_cst) != 0;
}
// Between two pieces of a pass of the purge thread's.
bool is_paused_or_held() {
  return is_paused() || is_held();
}
bool must_stop() {
  return is_paused_or_held() || memory_is_awaited();
}
// The same for rdmalloc_purge(), which no purge_hold() holds up.
bool must_stop_asked_for() {
  return is_paused() || memory_is_awaited();
}

// ---- one purge. With the turn, no lock held. ----

// Steps 3 to 5 for a range that every observer agreed to.
bool decommit_and_return(SliceIndex slice, std::uint32_t slices) {
  std::size_t bytes = std::size_t{slices} << kSliceShift;
  int error = purge_decommit(decommit_in_force(), arena.address_of(slice), bytes);
  // Observers first: once the span is back, the next malloc may hand it out, and a registration of
  // it, or news of its reuse, must not meet a purge that has not ended yet.
  if (error == 0) events_note_purged(slice, slices);
  events_tell_purged(arena.address_of(slice), bytes, error);
  // A failed call may have done a part (locked pages refuse): dirty is always safe to say.
  page_heap_purge_end(slice, error == 0, now_ms());
  if (error != 0) {
    count(purger.failures);
    return false;
  }
  count(purger.purges);
  count(purger.purged_bytes, bytes);
  return true;
}

// Where a refused run is cut: at the roundest address in it, so that an observer which agrees to
// whole units only (of a power of two) is offered each of them.
std::uint32_t front_of(SliceIndex slice, std::uint32_t slices) {
  std::uintptr_t first = arena.address_of(slice) >> kSliceShift, last = first + slices - 1;
  std::uintptr_t differing = std::bit_floor(first ^ last);
  return static_cast<std::uint32_t>((last & ~(differing - 1)) - first);
}

// Purges a span out of reach. Where it is refused, two parts of it are offered, and parts of those,
// so that one registration in use holds back only the slices it lies on. Returns the slices purged.
std::uint32_t purge_span(SliceIndex slice, std::uint32_t slices,
                         enum rdmalloc_purge_reason reason) {
  int refusal =
      events_ask_purge(arena.address_of(slice), std::size_t{slices} << kSliceShift, reason);
  if (refusal == 0) return decommit_and_return(slice, slices) ? slices : 0;
  if (slices == 1) {
    count(purger.refusals);
    page_heap_purge_end(slice, false, now_ms());
    return 0;
  }
  std::uint32_t front = front_of(slice, slices);
  page_heap_purge_split(slice, front);
  std::uint32_t purged = purge_span(slice, front, reason);
  return purged + purge_span(slice + front, slices - front, reason);
}

// Purges what may go until `keep_bytes` are dirty. Offers nothing twice: the refused is young
// again.
std::uint64_t purge_pass(const PurgeChoice& choice, std::uint64_t keep_bytes,
                         enum rdmalloc_purge_reason reason,
                         bool (*must_end)() = is_paused_or_held) {
  std::uint64_t budget = page_heap_dirty_slices(), purged = 0;
  for (std::uint64_t offered = 0; offered < budget && dirty_bytes() > keep_bytes;) {
    if (must_end()) break;
    std::uint32_t slices = 0, freed_ms = 0;
    memory_goes_out();
    SliceIndex slice = page_heap_purge_begin(choice, &slices, &freed_ms);
    if (slice != 0) purged += purge_span(slice, slices, reason);
    if (memory_is_back() || slice == 0) break;
    offered += slices;
  }
  return purged << kSliceShift;
}

// Purges pages of a slab in use, whose blocks are out of reach.
bool purge_slab_pages(std::uintptr_t base, std::size_t length, enum rdmalloc_purge_reason reason) {
  if (events_ask_purge(base, length, reason) != 0) {
    count(purger.refusals);
    return false;
  }
  int error = purge_decommit(decommit_in_force(), base, length);
  // Whoever remembers the span's generation is to know that pages of it went.
  if (error == 0) page_heap_note_part_purged(arena.slice_of(base));
  events_tell_purged(base, length, error);
  if (error != 0) {
    count(purger.failures);
    return false;
  }
  count(purger.purges);
  count(purger.purged_bytes, length);
  count(purger.slab_purged_bytes, length);
  return true;
}

// Pages of slabs in use. A part of a huge page frees little at once, so what decays waits twice as
// long, as in due_choice().
std::uint64_t purge_slabs(bool everything, enum rdmalloc_purge_reason reason, bool (*must_stop)()) {
  memory_goes_out();
  std::uint64_t purged =
      slab_purge_walk({everything, 2 * decay_in_force(), reason, purge_slab_pages, must_stop});
  memory_is_back();
  return purged;
}

constexpr PurgeChoice kEverything = {true, 0, 0, kPieceSlices};

PurgeChoice due_choice() {
  std::uint32_t decay = decay_in_force(), now = now_ms();
  return {decay == 0, now - decay, now - 2 * decay, kPieceSlices};
}

// ---- the purge thread ----

PressureDemand pressure_demand() {
  if (!options().watch_pressure) return {UINT64_MAX, RDMALLOC_PURGE_DECAY};
  return purger.pressure.look(os::coarse_ms(), free_bytes());
}

// Parks are emptied before anything young of the page heap's is purged to come down to
// `keep_bytes`: what lies there is free for one length only. Whether there is too much still.
bool is_above(std::uint64_t keep_bytes) {
  if (free_bytes() <= keep_bytes) return false;
  parks_return(0);
  return dirty_bytes() > keep_bytes;
}

// One round: events, ageing of depot and parks, then what is due. Returns whether there is more to
// come without anybody waking us.
bool round_of_work() {
  turn.begin();
  if (is_held()) {  // looked at with the turn: purge_hold() waits for the turn after its store
    turn.end();
    return true;
  }
  events_deliver_all();
  if (!is_paused()) region_pages_restore_in_turn(decommit_in_force());
  bool requested = purger.everything_requested.exchange(false, std::memory_order_acquire);
  PressureDemand demand = pressure_demand();
  bool empties_caches = requested || purger.decay_ms.load() == 0 || demand.keep_bytes == 0;
  bool depot_has_more = depot_age(empties_caches);
  bool heaps_have_more = heaps_age(empties_caches);
  parks_age(empties_caches ? 0 : decay_in_force());
  if (requested) {
    purge_slabs(true, RDMALLOC_PURGE_REQUEST, must_stop);
    purge_pass(kEverything, 0, RDMALLOC_PURGE_REQUEST);
  } else {
    purge_slabs(demand.keep_bytes == 0,
                demand.keep_bytes == 0 ? demand.reason : RDMALLOC_PURGE_DECAY, must_stop);
    purge_pass(due_choice(), 0, RDMALLOC_PURGE_DECAY);
    bool is_limit = false;
    std::uint64_t most = dirty_ceiling_bytes(&is_limit);
    if (is_above(most))
      purge_pass(kEverything, most, is_limit ? RDMALLOC_PURGE_LIMIT : RDMALLOC_PURGE_CEILING);
    if (is_above(demand.keep_bytes) &&
        purge_pass(kEverything, demand.keep_bytes, demand.reason) != 0)
      count(purger.pressure_purges);
  }
  bool slabs_are_done = slab_purge_is_done();
  turn.end();
#if RDMALLOC_CHECKED
  if (!page_heap_is_valid()) report_fatal("the page heap's equations do not hold", "page_heap.h");
#endif
  return depot_has_more || heaps_have_more || !slabs_are_done || free_bytes() != 0 ||
         page_heap_retired_slices() != 0;
}

std::uint64_t tick_ms() {
  std::uint64_t tick = purger.decay_ms.load(std::memory_order_relaxed) / 4;
  if (tick < kShortestTickMs) tick = kShortestTickMs;
  // With decay 0 all that is left was refused: no hurry, the next free() wakes us.
  if (purger.decay_ms.load(std::memory_order_relaxed) == 0) tick = 50;
  return tick > kLongestTickMs ? kLongestTickMs : tick;
}

void* purge_thread(void*) {
  prctl(PR_SET_NAME, "rdmalloc-purge");
  auto* word = reinterpret_cast<const std::uint32_t*>(&purger.sleep);
  // Born of a fork in a page event, it is no purge thread any more once it comes back from there:
  // purge_after_fork() took the stack away.
  std::uintptr_t stack = purger.stack;
  while (!purger.stop.load(std::memory_order_acquire) && purger.stack == stack) {
    purger.sleep.store(kAwake, std::memory_order_relaxed);
    bool has_more = round_of_work();
    std::uint32_t how = has_more ? kTicking : kIdle;
    // seq_cst, then look once more: pairs with the fences in purge_note_dirty() and
    // purge_note_parked(), the store in purge_wake() and the exchange before
    // purge_note_slab_change(). Either the other side sees that we sleep, or we see what it did.
    purger.sleep.store(how, std::memory_order_seq_cst);
    if (purger.stop.load(std::memory_order_seq_cst) ||
        purger.everything_requested.load(std::memory_order_seq_cst))
      continue;
    if (how == kIdle && (free_bytes() != 0 || page_heap_retired_slices() != 0 ||
                         events_are_pending() || !slab_is_watched() || !depot_is_empty()))
      continue;
    std::int64_t timeout_ns = how == kIdle ? -1 : static_cast<std::int64_t>(tick_ms()) * 1000000;
    bool has_ended = purger.first_thread_ended.load(std::memory_order_seq_cst);
    if (std::int64_t tick_ns = last_thread_tick_ns(has_ended)) {
      // libc ends the process, by exit(), when the last thread returns: this one, or a helper.
      if (os::are_only_threads_left(helper_threads.load(std::memory_order_relaxed))) {
        pthread_detach(pthread_self());
        helper_threads.fetch_sub(1, std::memory_order_relaxed);
        purger.thread.store(ThreadState::kNone, std::memory_order_release);
        return nullptr;
      }
      if (timeout_ns < 0 || timeout_ns > tick_ns) timeout_ns = tick_ns;
    }
    os::futex_wait(word, how, timeout_ns);
  }
  return nullptr;
}

int thread_create() {
  if (int error = purger.stack == 0 ? os::map_metadata(kStackBytes, &purger.stack) : 0)
    return error;
  if (os::should_fail(os::Site::kThreadCreate)) return -EAGAIN;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  // A stack of our own: with one of libc's the creation would call mmap and mprotect by symbols
  // that a fabric may have patched.
  pthread_attr_setstack(&attributes, reinterpret_cast<void*>(purger.stack), kStackBytes);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // the program's signals are not for this thread
  int error = pthread_create(&purger.handle, &attributes, purge_thread, nullptr);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return -error;
}

void wake() {
  if (purger.sleep.load(std::memory_order_seq_cst) == kAwake ||
      purger.sleep.exchange(kAwake, std::memory_order_seq_cst) == kAwake)
    return;
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&purger.sleep), 1);
}

}  // namespace

void purge_init() {
  const Options& settings = options();
  purger.decay_ms.store(settings.decay_ms, std::memory_order_relaxed);
  page_heap_set_spare_ms(settings.decay_ms);
  parks_set_decay_ms(settings.decay_ms);
  if (settings.dirty_max_bytes != 0) parks_set_ceiling(settings.dirty_max_bytes);
  purger.dirty_max_bytes.store(
      settings.dirty_max_bytes != 0 ? settings.dirty_max_bytes : kNotLookedUp,
      std::memory_order_relaxed);
  // Programs in a sandbox that kills for reading files later on (docs/settings.md).
  if (!settings.watch_pressure) dirty_max_bytes();
  if (settings.limit_bytes != UINT64_MAX) page_heap_set_limit(settings.limit_bytes);
  if (settings.notify == NotifyMode::kOff)
    purger.decommit.store(os::decommit, std::memory_order_relaxed);
}

void purge_note_dirty() {
  if (options().purge != PurgeMode::kThread) return;
  ThreadState state = purger.thread.load(std::memory_order_relaxed);
  if (state == ThreadState::kRuns) [[likely]] {
    // Pairs with the seq_cst store of `sleep` in purge_thread(): our slices are counted before.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::uint32_t sleep = purger.sleep.load(std::memory_order_relaxed);
    if (sleep == kAwake) return;
    bool is_limit = false;
    bool is_urgent = purger.decay_ms.load(std::memory_order_relaxed) == 0 ||
                     dirty_bytes() > dirty_ceiling_bytes(&is_limit);
    if (sleep == kIdle || is_urgent) wake();
    return;
  }
  if (state == ThreadState::kNone &&
      (dirty_bytes() >= kThreadFromBytes || purger.decay_ms.load(std::memory_order_relaxed) == 0))
    purge_thread_start();
}

void purge_note_parked() {
  if (options().purge != PurgeMode::kThread) return;
  ThreadState state = purger.thread.load(std::memory_order_relaxed);
  if (state == ThreadState::kRuns) [[likely]] {
    // As in purge_note_dirty().
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (purger.sleep.load(std::memory_order_relaxed) == kIdle) wake();
    return;
  }
  // By what parks may hold, which costs no look at each of them.
  if (state == ThreadState::kNone && dirty_bytes() + parks_most_bytes() >= kThreadFromBytes)
    purge_thread_start();
}

void purge_note_slab_change() {
  // Acquire: pairs with the release in purge_thread_start(). A thread that has ended since it asked
  // (rdmalloc_fini, a fork) is not started for this.
  if (purger.thread.load(std::memory_order_acquire) != ThreadState::kRuns) return;
  wake();
}

void purge_note_slabs() {
  if (purger.thread.load(std::memory_order_relaxed) != ThreadState::kNone) [[likely]]
    return;
  if (slab_bytes() >= kThreadFromSlabBytes && options().purge == PurgeMode::kThread)
    purge_thread_start();
}

void purge_wake() {
  if (options().purge != PurgeMode::kThread) return;
  if (purger.thread.load(std::memory_order_acquire) != ThreadState::kRuns &&
      purge_thread_start() != 0)
    return;
  wake();
}

void purge_note_first_thread_ends() {
  if (auto* tell = tell_first_thread_ends.load(std::memory_order_acquire)) tell();
  purger.first_thread_ended.store(true, std::memory_order_seq_cst);
  // As in purge_thread(): it sees the flag before it sleeps, or we see that it sleeps.
  wake();
}

int purge_thread_start() {
  if (!ensure_initialised()) return -ENOMEM;
  // Now, not later: recovery forgets the parent's thread. If it forgot one just started here, a
  // second would be started on the same stack.
  fork_check();
  if (options().purge != PurgeMode::kThread) return -ENOTSUP;
  ThreadState expected = ThreadState::kNone;
  // Acquire: pairs with the release that ends a stop; one starter at a time.
  if (!purger.thread.compare_exchange_strong(expected, ThreadState::kStarting,
                                             std::memory_order_acquire)) {
    if (expected == ThreadState::kFrozen)
      purger.starts_at_thaw.store(true, std::memory_order_relaxed);
    return expected == ThreadState::kFailed ? -EAGAIN : 0;
  }
  purger.stop.store(false, std::memory_order_relaxed);
  int error = thread_create();
  if (error != 0) {
    count(purger.thread_failures);
    purger.thread.store(ThreadState::kFailed, std::memory_order_release);
    if (!purger.has_warned.exchange(true, std::memory_order_relaxed))
      report_warning(
          "the purge thread could not be created; memory goes back at rdmalloc_purge() only",
          "check RLIMIT_NPROC and the cgroup's pids.max");
    return error;
  }
  helper_threads.fetch_add(1, std::memory_order_relaxed);
  purger.thread.store(ThreadState::kRuns, std::memory_order_release);
  return 0;
}

void purge_thread_forgive() {
  ThreadState expected = ThreadState::kFailed;
  purger.thread.compare_exchange_strong(expected, ThreadState::kNone, std::memory_order_relaxed);
}

int purge_thread_stop() {
  fork_check();
  if (turn.is_mine()) return -EDEADLK;
  purger.starts_at_thaw.store(false, std::memory_order_relaxed);
  ThreadState expected = ThreadState::kRuns;
  if (!purger.thread.compare_exchange_strong(expected, ThreadState::kStopping,
                                             std::memory_order_acquire))
    return 0;
  purger.stop.store(true, std::memory_order_seq_cst);
  wake();
  pthread_join(purger.handle, nullptr);
  helper_threads.fetch_sub(1, std::memory_order_relaxed);
  purger.thread.store(ThreadState::kNone, std::memory_order_release);
  return 0;
}

bool purge_turn_is_mine() {
  return turn.is_mine();
}

std::uint32_t purge_turn_owner() {
  return turn.owner();
}

void purge_turn_wait() {
  fork_check();
  turn.begin();
  turn.end();
}

void purge_hold(std::int64_t hold_ms, int wait_ms) {
  fork_check();
  // A program that ends without an allocation need not ask for the time first.
  std::int64_t now = hold_ms == INT64_MAX ? 0 : os::coarse_ms();
  std::int64_t until = hold_ms > INT64_MAX - now ? INT64_MAX : now + hold_ms;
  std::int64_t before = purger.held_until_ms.load(std::memory_order_relaxed);
  while (before < until && !purger.held_until_ms.compare_exchange_weak(before, until)) {
  }
  // Then nobody purges; and who begins to, which takes an arena first, finds it held: seq_cst here
  // and above, against the store that ends initialise() and the load in is_held().
  if (!detail::initialised.load(std::memory_order_seq_cst)) return;
  for (int waited_ms = 0; waited_ms <= wait_ms && !turn.is_mine(); waited_ms++) {
    if (turn.try_begin()) {
      turn.end();
      return;
    }
    os::sleep_ns(1000000);
  }
}

void purge_set_decommit(DecommitFunction function) {
  purger.decommit.store(function, std::memory_order_relaxed);
}

int purge_decommit(DecommitFunction decommit, std::uintptr_t base, std::size_t length) {
  assert_no_lock_held("decommit");
  int error = decommit(base, length);
  fork_check();  // as after a page event
  return error;
}

int purge_with_turn(int (*step)(DecommitFunction decommit, void* arg), void* arg) {
  fork_check();
  if (turn.is_mine()) return -EDEADLK;
  turn.begin();
  int error = is_paused() ? -EBUSY : step(decommit_in_force(), arg);
  turn.end();
  return error;
}

namespace {

// Until `is_done`, or the deadline. Polled: a checkpoint takes longer than a wait that is too long.
template <class Done>
bool wait_until(std::int64_t deadline_ns, Done is_done) {
  while (!is_done()) {
    if (os::monotonic_ns() >= deadline_ns) return false;
    os::sleep_ns(1000000);
  }
  return true;
}

// Whether the thread is gone and may not come back.
bool try_freeze_thread() {
  for (ThreadState gone : {ThreadState::kNone, ThreadState::kFailed})
    // Acquire: pairs with the release that ends a stop.
    if (purger.thread.compare_exchange_strong(gone, ThreadState::kFrozen,
                                              std::memory_order_acquire))
      return true;
  bool runs = purger.thread.load(std::memory_order_relaxed) == ThreadState::kRuns;
  if (runs && purge_thread_stop() == 0)
    purger.starts_at_thaw.store(true, std::memory_order_relaxed);
  return false;
}

}  // namespace

int purge_freeze(std::int64_t deadline_ns) {
  fork_check();
  if (turn.is_mine()) return -EDEADLK;
  // A pass under way looks at `pauses` before each piece.
  purger.pauses.fetch_add(1, std::memory_order_seq_cst);
  bool is_mine = wait_until(deadline_ns, [] { return turn.try_begin(); });
  if (is_mine) turn.end();
  if (!is_mine || !wait_until(deadline_ns, try_freeze_thread)) {
    if (purger.starts_at_thaw.exchange(false, std::memory_order_relaxed)) purge_thread_start();
    rdmalloc_purge_resume();
    return -ETIMEDOUT;
  }
  count(purger.freezes);
  return 0;
}

void purge_thaw() {
  // Before the look: who finds it frozen notes what he wants, who comes later starts it himself.
  purger.thread.store(ThreadState::kNone, std::memory_order_seq_cst);
  if (purger.starts_at_thaw.exchange(false, std::memory_order_seq_cst)) purge_thread_start();
  rdmalloc_purge_resume();
}

bool purge_request_all() {
  fork_check();
  cache_flush_this_thread();
  bool has_something = free_bytes() != 0;
  purger.everything_requested.store(true, std::memory_order_seq_cst);
  purge_wake();
  return has_something;
}

PurgeCounters purge_counters() {
  return {purger.purges.load(std::memory_order_relaxed),
          purger.purged_bytes.load(std::memory_order_relaxed),
          purger.slab_purged_bytes.load(std::memory_order_relaxed),
          purger.refusals.load(std::memory_order_relaxed),
          purger.failures.load(std::memory_order_relaxed),
          purger.decay_ms.load(std::memory_order_relaxed),
          dirty_max_bytes(),
          purger.thread_failures.load(std::memory_order_relaxed),
          purger.pressure_purges.load(std::memory_order_relaxed),
          purger.freezes.load(std::memory_order_relaxed),
          purger.thread.load(std::memory_order_relaxed) == ThreadState::kRuns,
          purger.thread.load(std::memory_order_relaxed) == ThreadState::kFrozen};
}

void purge_set_decay_ms(std::uint64_t decay_ms) {
  purger.decay_ms.store(decay_ms, std::memory_order_relaxed);
  page_heap_set_spare_ms(decay_ms);
  parks_set_decay_ms(decay_ms);
  if (purger.thread.load(std::memory_order_relaxed) == ThreadState::kRuns) purge_wake();
}
void purge_set_dirty_max_bytes(std::uint64_t bytes) {
  if (bytes == kNotLookedUp) --bytes;
  purger.dirty_max_bytes.store(bytes, std::memory_order_relaxed);
  parks_set_ceiling(bytes);
}

bool purge_after_fork(const Forker& forker, std::uintptr_t forkers_stack) {
  bool purge_goes_on = turn.after_fork(forker);
  memory_after_fork(purge_goes_on);
  purger.thread.store(ThreadState::kNone, std::memory_order_relaxed);
  helper_threads.store(0, std::memory_order_relaxed);
  purger.sleep.store(kAwake, std::memory_order_relaxed);
  purger.pauses.store(0, std::memory_order_relaxed);
  purger.starts_at_thaw.store(false, std::memory_order_relaxed);
  // The thread that called fork is the child's first.
  purger.first_thread_ended.store(false, std::memory_order_relaxed);
  // The parent's stack is a copy here that a new thread may run on; unless the first one does.
  if (forkers_stack - purger.stack < kStackBytes) purger.stack = 0;
  return purge_goes_on;
}

}  // namespace rdmalloc

using namespace rdmalloc;

extern "C" int64_t rdmalloc_purge(size_t keep_bytes) {
  if (!ensure_initialised()) return 0;
  fork_check();
  if (turn.is_mine()) return -EDEADLK;
  if (is_paused()) return -EBUSY;
  cache_flush_this_thread();
  turn.begin();
  events_deliver_all();
  region_pages_restore_in_turn(decommit_in_force());
  depot_age(true);
  heaps_age(true);
  std::uint64_t purged =
      keep_bytes == 0 ? purge_slabs(true, RDMALLOC_PURGE_REQUEST, must_stop_asked_for) : 0;
  if (is_above(keep_bytes))
    purged += purge_pass(kEverything, keep_bytes, RDMALLOC_PURGE_REQUEST, is_paused);
  turn.end();
  return static_cast<int64_t>(purged);
}

extern "C" int rdmalloc_purge_pause(void) {
  fork_check();
  if (turn.is_mine()) return -EDEADLK;
  purger.pauses.fetch_add(1, std::memory_order_seq_cst);
  // A pass under way looks at `pauses` before each piece; when the turn was ours, it has ended.
  purge_turn_wait();
  return 0;
}

extern "C" int rdmalloc_purge_resume(void) {
  fork_check();
  std::uint32_t seen = purger.pauses.load(std::memory_order_relaxed);
  while (seen != 0)
    if (purger.pauses.compare_exchange_weak(seen, seen - 1, std::memory_order_seq_cst)) return 0;
  return -EALREADY;
}
