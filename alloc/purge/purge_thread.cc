// The purge thread: when it is made, how it sleeps and is woken, and how it ends.
//
// It is never made inside malloc or free. pthread_create() takes locks of libc's under which libc
// itself calls free(), as where thrd_join() gives up cached stacks. So it is made at moments that
// are the program's own, docs/decisions/0002-where-the-purge-thread-is-made.md:
//
//   the program makes a thread (alloc/interpose/threads.cc), or one ends with much free memory left
//   a fabric's library is loaded (regcache/interpose/dlopen.cc)
//   a domain, an observer, rdmalloc_init(), the end of a heap that leaves work, a thaw
//   the start of the program, where RDMALLOC_PURGE=thread asks for it
//
// A failure is no state: the next such moment tries again.
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "alloc/cache/thread_cache.h"
#include "alloc/core/file_thread.h"
#include "alloc/core/fork.h"
#include "alloc/core/helper_threads.h"
#include "alloc/core/init.h"
#include "alloc/core/options.h"
#include "alloc/core/purge_signal.h"
#include "alloc/core/report.h"
#include "alloc/os/at_start.h"
#include "alloc/os/cancel.h"
#include "alloc/os/memory.h"
#include "alloc/os/os.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/places.h"
#include "alloc/pages/purge_turn.h"
#include "alloc/purge/purge_state.h"

namespace rdmalloc {

using namespace purge_state;
using detail::kAwake, detail::kIdle, detail::kTicking, detail::purge_signal;
using ThreadState = detail::PurgeThreadState;

namespace {

// What a thread that ends must leave free for the purge thread to be worth its making.
constexpr std::uint64_t kWorthAThreadBytes = std::uint64_t{32} << 20;
// Observers run on it. Backed only where touched.
constexpr std::size_t kStackBytes = std::size_t{4} << 20;

struct PurgeThread {
  std::atomic<bool> stop{false};
  std::atomic<bool> first_thread_ended{false};  // or is about to
  std::atomic<bool> starts_at_thaw{false};      // it ran, or was asked for since
  std::atomic<bool> has_warned{false};
  bool has_left = false;  // by itself, so it is to be joined; with the state kNone or kStarting
  pthread_t handle{};
  HelperStack stack;
  std::atomic<std::uint64_t> failures{0}, freezes{0};
};
RDMALLOC_AT_START constinit PurgeThread thread;

bool runs() {
  return purge_signal.state.load(std::memory_order_relaxed) == ThreadState::kRuns;
}

// The thread ends by itself. Not while a stop waits for it, and not before who started it has come
// to know that it runs.
bool try_leave() {
  helper_threads.fetch_sub(1, std::memory_order_relaxed);
  thread.has_left = true;
  ThreadState expected = ThreadState::kRuns;
  // Release: pairs with the acquire in purge_thread_start().
  if (purge_signal.state.compare_exchange_strong(expected, ThreadState::kNone,
                                                 std::memory_order_release))
    return true;
  thread.has_left = false;
  helper_threads.fetch_add(1, std::memory_order_relaxed);
  return false;
}

// Of the thread that left, whose last instructions may run on the stack still. False where it was
// the process's last one and runs exit handlers there, which may be what calls this, or wait for
// it.
bool try_join_left() {
  os::NoCancelScope scope;
  timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 1;
  return pthread_timedjoin_np(thread.handle, nullptr, &until) == 0;
}

void purge_until_stopped() {
  auto* word = reinterpret_cast<const std::uint32_t*>(&purge_signal.sleep);
  // Born of a fork in a page event, it is no purge thread any more once it comes back from there:
  // thread_after_fork() took the stack away.
  std::uintptr_t stack = thread.stack.base;
  while (!thread.stop.load(std::memory_order_acquire) && thread.stack.base == stack) {
    purge_signal.sleep.store(kAwake, std::memory_order_relaxed);
    bool has_more = round_of_work();
    std::uint32_t how = has_more ? kTicking : kIdle;
    // seq_cst, then look once more: pairs with the fence in purge_note_dirty(), the store in
    // purge_wake(), the end of a pause, and the exchanges before purge_note_slab_change(). Either
    // the other side sees that we sleep, or we see what it did.
    purge_signal.sleep.store(how, std::memory_order_seq_cst);
    if (thread.stop.load(std::memory_order_seq_cst) || has_request()) continue;
    if (how == kIdle && !is_idle()) continue;
    if (how == kIdle) file_thread_stop();
    std::int64_t timeout_ns = how == kIdle ? -1 : static_cast<std::int64_t>(tick_ms()) * 1000000;
    bool has_ended = thread.first_thread_ended.load(std::memory_order_seq_cst);
    if (std::int64_t tick_ns = last_thread_tick_ns(has_ended)) {
      // libc ends the process, by exit(), when the last thread returns: this one, or a helper,
      // maybe of another copy of this library.
      // Where threads can't be counted (no /proc) this one leaves others behind, so that one of
      // them is the last; the next that the program makes brings it back.
      bool must_leave = are_only_helpers_left() || (has_ended && !os::can_count_threads());
      if (must_leave && try_leave()) return;
      if (timeout_ns < 0 || timeout_ns > tick_ns) timeout_ns = tick_ns;
    }
    os::futex_wait(word, how, timeout_ns);
  }
}

void* run_thread(void*) {
  helper_thread_begins("rdmalloc-purge");
  purge_until_stopped();
  file_thread_stop();
  helper_thread_ends();
  return nullptr;
}

// Of a thread other than the first.
void note_thread_ends() {
  if (!has_purge_thread(options().purge)) return;  // the sum below is of all shards
  if (purge_signal.state.load(std::memory_order_relaxed) != ThreadState::kNone) return;
  // The purge thread would be the last one, and only look whether it is.
  if (thread.first_thread_ended.load(std::memory_order_relaxed)) return;
  std::uint64_t least =
      dirty_limits.decay_ms.load(std::memory_order_relaxed) == 0 ? 1 : kWorthAThreadBytes;
  if (dirty_bytes() >= least) purge_thread_start();
}

void note_first_thread_ends() {
  if (auto* notify = notify_first_thread_ends.load(std::memory_order_acquire)) notify();
  thread.first_thread_ended.store(true, std::memory_order_seq_cst);
  // As in purge_until_stopped(): it sees the flag before it sleeps, or we see that it sleeps.
  detail::purge_thread_signal();
}

void on_thread_end(bool is_first) {
  is_first ? note_first_thread_ends() : note_thread_ends();
}

void start_and_wake() {
  if (purge_thread_start() == 0) detail::purge_thread_signal();
}

// RDMALLOC_PURGE=thread: from the program's start, also where it makes no thread of its own.
__attribute__((constructor)) void begin_with_the_program() {
  ensure_settings();
  if (options().purge == PurgeMode::kThread) purge_thread_start();
}

}  // namespace

// ---- outside malloc and free ----

void purge_request_all() {
  fork_check();
  cache_flush_this_thread();
  purger.everything_requested.store(true, std::memory_order_seq_cst);
  start_and_wake();
}

int purge_thread_start() {
  if (!ensure_initialised()) return -ENOMEM;
  page_heap_keep_places();
  // Now, not later: recovery forgets the parent's thread. If it forgot one just started here, a
  // second would be started on the same stack.
  fork_check();
  if (!has_purge_thread(options().purge)) return -ENOTSUP;
  // A child of clone(CLONE_VM) that makes a thread: ours would keep the child alive, and be gone
  // with it for its parent, unnoticed.
  if (!runs() && memory_is_anothers()) return -ENOTSUP;
  ThreadState expected = ThreadState::kNone;
  // Acquire: pairs with the release that ends a stop; one starter at a time. seq_cst: see
  // rdmalloc_fini(), of which this may find the thread still there.
  if (!purge_signal.state.compare_exchange_strong(expected, ThreadState::kStarting,
                                                  std::memory_order_seq_cst)) {
    if (expected == ThreadState::kFrozen)
      thread.starts_at_thaw.store(true, std::memory_order_relaxed);
    return 0;
  }
  if (thread.has_left && !try_join_left()) thread.stack = {};
  thread.has_left = false;
  thread.stop.store(false, std::memory_order_relaxed);
  int error = helper_thread_create(&thread.stack, kStackBytes, run_thread, nullptr, &thread.handle);
  if (error == 0) helper_threads.fetch_add(1, std::memory_order_relaxed);
  purge_signal.state.store(error == 0 ? ThreadState::kRuns : ThreadState::kNone,
                           std::memory_order_seq_cst);
  if (error == 0) {
    // A free() before the store has woken none, and the thread may sleep already.
    detail::purge_thread_signal();
    return 0;
  }
  count(thread.failures);
  if (!thread.has_warned.exchange(true, std::memory_order_relaxed))
    report_warning("the purge thread could not be created, free memory stays until it can",
                   helper_thread_remedy(error));
  return error;
}

int purge_thread_stop() {
  fork_check();
  if (purge_turn_is_mine()) return -EDEADLK;
  thread.starts_at_thaw.store(false, std::memory_order_relaxed);
  ThreadState expected = ThreadState::kRuns;
  if (!purge_signal.state.compare_exchange_strong(expected, ThreadState::kStopping,
                                                  std::memory_order_seq_cst))
    return 0;
  os::NoCancelScope scope;
  thread.stop.store(true, std::memory_order_seq_cst);
  detail::purge_thread_signal();
  pthread_join(thread.handle, nullptr);
  helper_threads.fetch_sub(1, std::memory_order_relaxed);
  purge_signal.state.store(ThreadState::kNone, std::memory_order_seq_cst);
  return 0;
}

namespace {

// Until `is_done`, or the deadline, but 50 naps of a millisecond at least: a thread with the turn
// most times is through in microseconds, and one of a process that was stopped begins as it goes
// on, after any deadline. Polled: a checkpoint takes longer than a wait that is too long.
template <class Done>
bool wait_until(std::int64_t deadline_ns, Done is_done) {
  constexpr int kLeastNaps = 50;
  for (int naps = 0; !is_done(); ++naps) {
    if (naps >= kLeastNaps && os::monotonic_ns() >= deadline_ns) return false;
    os::sleep_ns(1000000);
  }
  return true;
}

// Whether the thread is gone and may not come back.
bool try_freeze_thread() {
  auto freeze = [] {
    ThreadState gone = ThreadState::kNone;
    // Acquire: pairs with the release that ends a stop.
    return purge_signal.state.compare_exchange_strong(gone, ThreadState::kFrozen,
                                                      std::memory_order_acquire);
  };
  if (freeze()) return true;
  if (!runs() || purge_thread_stop() != 0) return false;
  thread.starts_at_thaw.store(true, std::memory_order_relaxed);
  // At once: a thread that the program makes before the next try brings ours back.
  return freeze();
}

}  // namespace

bool purge_thread_make_way() {
  fork_check();
  if (!runs() || purge_turn_is_mine()) return false;
  // With no purge under way and none to begin, what the thread still does calls no observer
  // (round_of_work), so the join below waits for none. Bounded: the observer of one under way may
  // want a lock that the caller holds.
  own_purge_pauses.fetch_add(1, std::memory_order_seq_cst);
  bool is_stopped = wait_until(0, try_turn) && purge_thread_stop() == 0;
  purge_resume();
  return is_stopped;
}

int purge_freeze(std::int64_t deadline_ns) {
  fork_check();
  if (purge_turn_is_mine()) return -EDEADLK;
  // A pass under way looks at `pauses` before each piece.
  own_purge_pauses.fetch_add(1, std::memory_order_seq_cst);
  if (!wait_until(deadline_ns, try_turn) || !wait_until(deadline_ns, try_freeze_thread)) {
    if (thread.starts_at_thaw.exchange(false, std::memory_order_relaxed)) purge_thread_start();
    purge_resume();
    return -ETIMEDOUT;
  }
  count(thread.freezes);
  return 0;
}

void purge_thaw() {
  // Before the look: a caller that finds the thread frozen records its request, and one that comes
  // after this store starts the thread itself.
  purge_signal.state.store(ThreadState::kNone, std::memory_order_seq_cst);
  if (thread.starts_at_thaw.exchange(false, std::memory_order_seq_cst)) purge_thread_start();
  purge_resume();
}

namespace purge_state {

void thread_init() {
  purge_signal.start_and_wake.store(start_and_wake, std::memory_order_relaxed);
  purge_signal.thread_ends.store(on_thread_end, std::memory_order_relaxed);
}

void thread_counters(PurgeCounters* counters) {
  counters->thread_failures = thread.failures.load(std::memory_order_relaxed);
  counters->freezes = thread.freezes.load(std::memory_order_relaxed);
  counters->thread_runs = runs();
  counters->is_frozen = purge_signal.state.load(std::memory_order_relaxed) == ThreadState::kFrozen;
}

void thread_after_fork(std::uintptr_t forkers_stack) {
  purge_signal.state.store(ThreadState::kNone, std::memory_order_relaxed);
  file_thread_after_fork();
  helper_threads_after_fork();
  purge_signal.sleep.store(kAwake, std::memory_order_relaxed);
  thread.starts_at_thaw.store(false, std::memory_order_relaxed);
  thread.has_left = false;
  // The thread that called fork is the child's first.
  thread.first_thread_ended.store(false, std::memory_order_relaxed);
  // The parent's stack is a copy here that a new thread may run on; unless the first one does.
  if (thread.stack.holds(forkers_stack)) thread.stack = {};
}

}  // namespace purge_state

}  // namespace rdmalloc
