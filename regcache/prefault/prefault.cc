// rdmalloc_reg_prefault(): much memory backed and registered by several threads.
//
// The calling thread and its helpers do the same work. First each takes the next step of pages,
// until all pages are backed; then each takes the next registration. Only the calling thread
// reports progress, between its steps. The call holds all registrations until the end, so that it
// evicts none of them, and then puts them.
//
// The first error, or a cancellation by the caller, stops every thread after its present step. The
// call joins its helpers before it returns.
#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>

#include "alloc/for_regcache.h"
#include "regcache/core/callbacks.h"
#include "regcache/core/gate.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"
#include "regcache/prefault/plan.h"

namespace rdmalloc::regcache {
namespace {

// Bytes of one step: long enough that its two system calls cost little, short enough that the call
// reports progress 60 times a GiB and stops soon. Steps end at multiples of a huge page, so that no
// two threads touch the same one.
constexpr std::uintptr_t kStepBytes = std::uintptr_t{16} << 20;
constexpr unsigned kMostThreads = 256;
// Purges that one registration waits for. The next can only be in its way when the same pages were
// used and freed again meanwhile.
constexpr int kMostPurges = 16;

struct Job {
  PrefaultRequest request;
  PrefaultPlan plan;
  rdmalloc_prefault_fn progress;
  void* arg;
  unsigned threads = 1;
  int process = 0;
  bool has_reported_all = false;

  // The next step to be taken.
  Lock cursor_lock;
  std::size_t range = 0;
  std::uintptr_t reached = 0;  // 0: the range's beginning

  // The next units to be taken.
  std::atomic<std::size_t> next_of_callers{0};
  std::atomic<std::size_t> next_of_all{0};

  std::atomic<std::uint64_t> backed_bytes{0};
  std::atomic<std::uint64_t> registered{0};
  // The first error; every thread stops. Relaxed: it orders nothing, helpers are joined.
  std::atomic<int> error{0};
  // Moves on with each of the three above; a futex. Release, after them; acquire, before a look.
  std::atomic<std::uint32_t> turns{0};

  bool is_over() const { return error.load(std::memory_order_relaxed) != 0; }
  bool is_backed() const { return backed_bytes.load(std::memory_order_relaxed) == plan.bytes; }
  bool is_registered() const {
    return registered.load(std::memory_order_relaxed) == plan.unit_count;
  }
  void next_turn() {
    turns.fetch_add(1, std::memory_order_release);
    os::futex_wake(reinterpret_cast<const std::uint32_t*>(&turns), INT32_MAX);
  }
  // Whether this was the first.
  bool fail(int with) {
    int none = 0;
    bool is_first = error.compare_exchange_strong(none, with, std::memory_order_relaxed);
    next_turn();
    return is_first;
  }
};

// ---- pages ----

bool take_step(Job& job, PageRange* step) {
  LockGuard guard(job.cursor_lock);
  if (job.range == job.request.range_count) return false;
  PageRange pages = pages_of(job.request.ranges[job.range]);
  std::uintptr_t low = job.reached == 0 ? pages.low : job.reached;
  std::uintptr_t high = (low + kStepBytes) & ~(std::uintptr_t{RDMALLOC_CHUNK_BYTES} - 1);
  *step = {low, std::min(high, pages.high)};
  job.reached = step->high;
  if (job.reached == pages.high) {
    job.reached = 0;
    ++job.range;
  }
  return true;
}

void warn_not_backed(const PageRange& step, int error) {
  Message()
      .text("warning: rdmalloc_reg_prefault: the kernel does not back ")
      .number(step.high - step.low)
      .text(" bytes at ")
      .address(reinterpret_cast<void*>(step.low))
      .text(" (error ")
      .signed_number(error)
      .text(")")
      .warn();
}

bool back_next(Job& job) {
  PageRange step;
  if (job.is_over() || !take_step(job, &step)) return false;
  bool is_owned = domain_of(job.request.domains[0])->holds(step.low);
  int error = is_owned ? os::populate_pages(step.low, step.high - step.low)
                       : os::populate_foreign(step.low, step.high - step.low);
  if (error != 0) {
    if (job.fail(error)) warn_not_backed(step, error);
    return false;
  }
  job.backed_bytes.fetch_add(step.high - step.low, std::memory_order_relaxed);
  job.next_turn();
  return true;
}

// ---- registrations ----

void warn_refused(const Job& job, const Unit& unit, int error) {
  Message()
      .text("warning: rdmalloc_reg_prefault: ")
      .value(unit.domain->ops.name)
      .text(" refused ")
      .number(unit.piece.made_high - unit.piece.made_low)
      .text(" bytes at ")
      .address(reinterpret_cast<void*>(unit.piece.made_low))
      .text(" (error ")
      .signed_number(error)
      .text("); ")
      .number(job.registered.load(std::memory_order_relaxed))
      .text(" of ")
      .number(job.plan.unit_count)
      .text(" registrations are made")
      .warn();
}

Unit* take_unit(Job& job, bool is_caller) {
  PrefaultPlan& plan = job.plan;
  if (is_caller) {
    std::size_t next = job.next_of_callers.fetch_add(1, std::memory_order_relaxed);
    if (next < plan.callers_count) return plan.units + next;
  }
  std::size_t next = plan.callers_count + job.next_of_all.fetch_add(1, std::memory_order_relaxed);
  return next < plan.unit_count ? plan.units + next : nullptr;
}

int get(Unit& unit) {
  const Piece& piece = unit.piece;
  return rdmalloc_reg_get(reinterpret_cast<rdmalloc_domain*>(unit.domain),
                          reinterpret_cast<void*>(piece.low), piece.high - piece.low,
                          unit.domain->access, &unit.held);
}

bool register_next(Job& job, bool is_caller) {
  if (job.is_over()) return false;
  Unit* unit = take_unit(job, is_caller);
  if (unit == nullptr) return false;
  int error = get(*unit);
  // A unit that is several blocks of a slab, between which free pages go back to the kernel now.
  for (int purges = 0; error == -EAGAIN && purges < kMostPurges; ++purges) {
    purge_turn_wait();
    error = get(*unit);
  }
  if (error != 0) {
    unit->held = nullptr;
    if (job.fail(error)) warn_refused(job, *unit, error);
    return false;
  }
  job.registered.fetch_add(1, std::memory_order_relaxed);
  job.next_turn();
  return true;
}

// ---- threads ----

// Until `is_done` or the end.
template <class Done>
void wait_for(Job& job, Done is_done) {
  for (;;) {
    std::uint32_t seen = job.turns.load(std::memory_order_acquire);
    if (is_done() || job.is_over()) return;
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&job.turns), seen, -1);
  }
}

void* help(void* arg) {
  Job& job = *static_cast<Job*>(arg);
  while (back_next(job)) {
  }
  wait_for(job, [&] { return job.is_backed(); });
  while (register_next(job, false)) {
  }
  return nullptr;
}

// False in a child that was forked inside the callback: it has no helpers and must return at once.
bool report(Job& job) {
  if (job.progress == nullptr) return true;
  rdmalloc_prefault_progress now = {};
  now.size = sizeof now;
  now.bytes = job.plan.bytes;
  now.backed_bytes = job.backed_bytes.load(std::memory_order_relaxed);
  now.registrations = job.plan.unit_count;
  now.registered = job.registered.load(std::memory_order_relaxed);
  now.threads = job.threads;
  job.has_reported_all = now.backed_bytes == now.bytes && now.registered == now.registrations;
  assert_no_lock_held("prefault progress");
  int stop = 0;
  {
    CallbackScope callback;
    stop = job.progress(&now, job.arg);
  }
  if (os::process_id() != job.process) return false;
  if (stop != 0) job.fail(-ECANCELED);
  return true;
}

// The calling thread's part of one phase: does its share, then waits for the helpers, and reports
// progress meanwhile.
// False in a child.
template <class Next, class Done>
bool take_part(Job& job, Next next, Done is_done) {
  while (next())
    if (!report(job)) return false;
  for (;;) {
    std::uint32_t seen = job.turns.load(std::memory_order_acquire);
    if (is_done() || job.is_over()) return true;
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&job.turns), seen, -1);
    if (!report(job)) return false;
  }
}

unsigned threads_for(const Job& job, unsigned asked) {
  std::uint64_t most = std::max<std::uint64_t>(job.plan.bytes / kStepBytes, job.plan.unit_count);
  std::uint64_t threads = asked != 0 ? asked : os::processors_allowed();
  threads = std::min<std::uint64_t>({threads, most, kMostThreads});
  return threads != 0 ? static_cast<unsigned>(threads) : 1;
}

// Starts up to `wanted` helpers; how many there are.
unsigned start_helpers(Job& job, pthread_t* helpers, unsigned wanted) {
  sigset_t before;
  helper_thread_mask(&before);
  unsigned count = 0;
  while (count < wanted && !os::should_fail(os::Site::kThreadCreate) &&
         pthread_create(&helpers[count], nullptr, help, &job) == 0)
    ++count;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return count;
}

void put_all(Job& job) {
  for (std::size_t i = 0; i < job.plan.unit_count; ++i) {
    Unit& unit = job.plan.units[i];
    if (unit.held == nullptr) continue;
    {
      RangeGuard guard(*unit.domain, registration_of(unit.held));
      ++guard.counters().prefaulted;
    }
    rdmalloc_reg_put(unit.held);
  }
}

int run(Job& job, unsigned asked) {
  pthread_t helpers[kMostThreads];
  job.process = os::process_id();
  // Before the first helper starts: the callback may cancel at no cost.
  job.threads = threads_for(job, asked);
  if (!report(job)) return -ECHILD;
  unsigned count = job.is_over() ? 0 : start_helpers(job, helpers, job.threads - 1);
  job.threads = count + 1;
  bool is_parent =
      take_part(
          job, [&] { return back_next(job); }, [&] { return job.is_backed(); }) &&
      take_part(
          job, [&] { return register_next(job, true); }, [&] { return job.is_registered(); });
  if (!is_parent) return -ECHILD;
  for (unsigned i = 0; i < count; ++i) pthread_join(helpers[i], nullptr);
  if (!job.is_over() && !job.has_reported_all && !report(job)) return -ECHILD;
  put_all(job);
  return job.error.load(std::memory_order_relaxed);
}

// The error of a call that comes in a checkpoint: that of a domain which no resume brings back, if
// there is one.
int error_in_checkpoint(const PrefaultRequest& request) {
  if (request.domains == nullptr || request.domain_count > kMostDomains) return -EINVAL;
  for (std::size_t i = 0; i < request.domain_count; ++i) {
    int error = domain_check(domain_of(request.domains[i]));
    if (error != 0 && error != -EAGAIN) return error;
  }
  return -EAGAIN;
}

}  // namespace
}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_reg_prefault(rdmalloc_domain* const* domains,
                                                  size_t domain_count, const iovec* ranges,
                                                  size_t range_count, unsigned threads,
                                                  rdmalloc_prefault_fn progress, void* arg) {
  // Also in a decommit, which may run code of other libraries: it would wait for this purge.
  if (rdmalloc::is_in_page_event() || rdmalloc::purge_turn_is_mine()) return -EDEADLK;
  rdmalloc::os::NoCancelScope scope;
  // Without a state there is no domain, and the plan fails.
  std::uint64_t token = 0;
  State* all = state();
  Job job;
  job.request = {domains, domain_count, ranges, range_count};
  if (all != nullptr && enter_gate(*all, Gate::kMakes, &token) != 0)
    return error_in_checkpoint(job.request);
  job.progress = progress;
  job.arg = arg;
  int result = plan_prefault(job.request, &job.plan);
  if (result == 0) {
    result = run(job, threads);
    discard_plan(job.plan);
  }
  if (all != nullptr) leave_gate(*all, token);
  return result;
}
