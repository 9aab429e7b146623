// rdmalloc_quiesce() and rdmalloc_resume(). Between the two the process has no registration, device
// or thread of rdmalloc's, so that a checkpoint can be taken of it.
//
//   open ──► purging stopped ──► gate closed ──► PREPARE ──► suspended ──► none is held
//                                                                        │
//   quiesced ◄── no bad file open ◄── registrars closed ◄── CLOSE ◄── deregistered
//
// Up to "none is held" the way back changes nothing: a suspended registration is closed, so that no
// get finds it, and the quiesce holds it, so that no put ends it (suspend(), core/drop.h). From
// there on the way back is a resume.
//
// core/gate.h keeps calls out that work in several steps.
#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/checkpoint/open_files.h"
#include "regcache/core/abandoned.h"
#include "regcache/core/callbacks.h"
#include "regcache/core/drop.h"
#include "regcache/core/gate.h"
#include "regcache/core/rooms.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"
#include "regcache/core/wiped_on_fork.h"

namespace rdmalloc::regcache {
namespace {

// How far a quiesce has come with a domain, so that a way back knows what to undo.
enum class Step : std::uint8_t {
  kNone,
  kPrepared,
  kSuspended,
  kEmptied,
  kNotifiedToClose,
  kClosed
};

// The quiesce that is under way; a resume undoes it. Only the thread with the turn touches it.
struct Course {
  Step steps[kMostDomains];
  bool has_gone;  // something ended that only a resume brings back
};
constinit Course course = {};

constexpr std::int64_t kShortestPollNs = 100000, kLongestPollNs = 10000000;

// Statistics: relaxed, they order nothing.
void count(std::atomic<std::uint64_t>& counter) {
  counter.fetch_add(1, std::memory_order_relaxed);
}

// Calls fn(domain, step) for each domain that has come as far as `from`.
template <class Fn>
void each_domain(State& all, Step from, Fn fn) {
  for (std::size_t i = 0; i < kMostDomains; ++i)
    if (course.steps[i] >= from) fn(all.domains[i], course.steps[i]);
}

int notify(Domain& domain, rdmalloc_domain_event event) {
  if (domain.event == nullptr) return 0;
  assert_no_lock_held("a domain's event");
  CallbackScope callback;
  // The other two events are notifications: their return value changes nothing.
  bool may_refuse = event != RDMALLOC_DOMAIN_RESUMED && event != RDMALLOC_DOMAIN_LOST;
  if (may_refuse && os::should_fail(os::Site::kDomainEvent)) return -EIO;
  return error_of_answer(
      domain.event(reinterpret_cast<rdmalloc_domain*>(&domain), event, domain.event_arg));
}

int close_device(Domain& domain) {
  if (domain.ops.quiesce == nullptr) return 0;
  assert_no_lock_held("a registrar's quiesce");
  CallbackScope callback;
  return os::should_fail(os::Site::kDomainQuiesce)
             ? -EIO
             : error_of_answer(domain.ops.quiesce(domain.context));
}

int open_device(Domain& domain) {
  if (domain.ops.resume == nullptr) return 0;
  assert_no_lock_held("a registrar's resume");
  CallbackScope callback;
  int answer = os::should_fail(os::Site::kDomainResume) ? -EIO : domain.ops.resume(domain.context);
  return answer == RDMALLOC_RESUMED_ANEW ? answer : error_of_answer(answer);
}

// ---- the way to quiesced ----

int prepare_domains(State& all) {
  for (std::size_t i = 0; i < kMostDomains; ++i) {
    Domain& domain = all.domains[i];
    // Acquire: pairs with open's release.
    if (domain.phase.load(std::memory_order_acquire) != Phase::kIsOpen) continue;
    course.steps[i] = Step::kPrepared;
    if (int error = notify(domain, RDMALLOC_DOMAIN_PREPARE)) return error;
  }
  return 0;
}

void suspend_domain(Domain& domain, Step& step) {
  WholeGuard guard(domain);
  // Lost since: it stays prepared, so that the way back says LOST.
  if (domain.phase.load(std::memory_order_relaxed) != Phase::kIsOpen) return;
  // Release: pairs with the acquire of domain_check(), for what a resume will have changed.
  domain.phase.store(Phase::kIsChanging, std::memory_order_release);
  step = Step::kSuspended;
  auto suspend_it = [&domain](Registration* reg) {
    if (reg->is_open()) suspend(domain, reg);
    return true;
  };
  visit_all(domain, suspend_it);
  // Registrations that are being made become their callers', for one use.
  visit_in_flight(domain, [](Registration* reg) { return reg->rest().is_stale = true; });
}

// Whether only heaps, pools and this quiesce hold registrations of the domain, and none is being
// made or dropped.
bool is_idle(Domain& domain) {
  drain_deferred(domain);
  std::uint64_t ours = 0;
  for (const Holder* holder : holders) ours += holder->references(domain.index);
  std::uint64_t held = 0;
  bool is_dropped_by_others = false;
  auto add = [&](Registration* reg) {
    if (reg->rest().is_quarantined) return true;
    std::uint64_t refs = reg->refs();
    is_dropped_by_others |= refs == 0;
    held += refs - (reg->rest().is_suspended ? 1 : 0);
    return true;
  };
  WholeGuard guard(domain);
  visit_all(domain, add);
  return visit_in_flight(domain, [](Registration*) { return false; }) &&
         domain.deferred.load(std::memory_order_relaxed) == nullptr && !is_dropped_by_others &&
         held == ours;
}

bool wait_until_idle(State& all, std::int64_t deadline_ns) {
  std::int64_t poll_ns = kShortestPollNs;
  for (;;) {
    bool is_busy = false;
    each_domain(all, Step::kSuspended, [&](Domain& domain, Step) { is_busy |= !is_idle(domain); });
    if (!is_busy) return true;
    if (os::monotonic_ns() >= deadline_ns) return false;
    os::sleep_ns(poll_ns);
    if (poll_ns < kLongestPollNs) poll_ns *= 2;
  }
}

// Deregisters everything. A registration that the registrar can't undo stays, in quarantine.
void empty_domains(State& all) {
  Registration* drops[kMostDomains] = {};
  // Odd: asking for keys fails. Release, after it the keys change: heap_keys.cc.
  all.keys_turn.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (const Holder* holder : holders) holder->give_back(all, drops);
  each_domain(all, Step::kSuspended, [&](Domain& domain, Step) {
    Registration*& list = drops[domain.index];
    {
      auto take = [&list](Registration* reg) {
        if (reg->rest().is_suspended && unsuspend(reg)) push(&list, reg);
        return true;
      };
      WholeGuard guard(domain);
      visit_all(domain, take);
    }
    std::uint64_t gone = drop_list(domain, list, Reason::kAsked);
    freezer_here().deregistered.fetch_add(gone, std::memory_order_relaxed);
    // Other threads may drop some for an invalidation or an event of watched memory. Waits without
    // a time limit: there is no way back from here.
    wait_for_drops(domain);
    course.steps[domain.index] = Step::kEmptied;
  });
  // A lost domain is not suspended, but heaps and pools have given back what they had there too.
  for (std::size_t i = 0; i < kMostDomains; ++i) {
    if (course.steps[i] >= Step::kSuspended) continue;
    std::uint64_t gone = drop_list(all.domains[i], drops[i], Reason::kAsked);
    freezer_here().deregistered.fetch_add(gone, std::memory_order_relaxed);
  }
}

int close_domains(State& all) {
  int error = 0;
  each_domain(all, Step::kEmptied, [&](Domain& domain, Step) {
    if (error != 0) return;
    course.steps[domain.index] = Step::kNotifiedToClose;
    error = notify(domain, RDMALLOC_DOMAIN_CLOSE);
    if (error == 0) error = close_device(domain);
    if (error != 0) return;
    course.steps[domain.index] = Step::kClosed;
    // Quarantined registrations have ended with the device.
    if ((domain.ops.flags & RDMALLOC_REGISTRAR_REOPEN) != 0) forget_quarantined(domain);
  });
  return error;
}

void warn_of_files(const OpenFiles& found) {
  Message message;
  message.text("warning: rdmalloc_quiesce: no checkpoint can be taken with ")
      .number(found.count + found.left_out)
      .text(" files open (close them before, or in the domain's event()):");
  for (std::size_t i = 0; i < found.count; ++i)
    message.text(i == 0 ? " " : ", ")
        .number(static_cast<std::uint64_t>(found.files[i].fd))
        .text(" ")
        .text(found.files[i].name);
  message.text(found.left_out != 0 ? ", ..." : "").warn();
}

int look_for_files() {
  OpenFiles found;
  find_undumpable_files(&found);
  if (found.count == 0) return 0;
  warn_of_files(found);
  return -EBUSY;
}

// The kernel's threads for a ring stay, idle, for five seconds after it was closed
// (WORKER_IDLE_TIMEOUT of io-wq.c), and CRIU can't stop them. The quiesce waits for them beyond the
// caller's time limit, thrice as long at most: everything else is done.
int wait_for_ring_workers() {
  constexpr std::int64_t kLongestNs = std::int64_t{15} * 1000000000;
  std::int64_t deadline_ns = os::monotonic_ns() + kLongestNs;
  while (os::threads_named("iou-wrk-") != 0) {
    if (os::monotonic_ns() >= deadline_ns) {
      report_warning("rdmalloc_quiesce", "threads of an io_uring (iou-wrk) do not end");
      return -EBUSY;
    }
    os::sleep_ns(kLongestPollNs);
  }
  return 0;
}

// ---- the way back ----

// Opens one domain again, as far as it was closed. 0, or why it can't be.
int open_domain(Domain& domain, Step step) {
  // Acquire: pairs with lose_domain()'s release.
  auto is_lost = [&] { return domain.is_lost.load(std::memory_order_acquire); };
  int error = step >= Step::kNotifiedToClose ? notify(domain, RDMALLOC_DOMAIN_OPEN) : 0;
  if (error == 0 && is_lost()) error = -ENODEV;  // by its event
  if (error != 0 || step != Step::kClosed) return error;
  error = open_device(domain);
  if (error == RDMALLOC_RESUMED_ANEW) {
    forget_quarantined(domain);
    error = 0;
  }
  return error == 0 && is_lost() ? -ENODEV : error;
}

// Opens a domain for calls again; if it is lost or refused, ends its registrations. Whether this is
// the first to see it lost: another thread lost it since it was opened.
bool reopen_domain(Domain& domain) {
  Registration* drops = nullptr;
  bool is_news = false;
  {
    WholeGuard guard(domain);
    bool is_lost = domain.has_failed();
    is_news = is_lost && domain.phase.load(std::memory_order_relaxed) != Phase::kIsLost;
    auto reopen_it = [&](Registration* reg) {
      bool is_ours = false;
      if (reg->rest().is_suspended) {
        if (!is_lost)
          reopen_suspended(domain, reg);
        else
          is_ours = unsuspend(reg);
      } else if (is_lost && reg->is_open()) {
        // A heap's, made before the loss: as in lose_domain().
        is_ours = close_held_too(domain, reg);
      }
      if (is_ours) push(&drops, reg);
      return true;
    };
    visit_all(domain, reopen_it);
    if (!is_lost && course.has_gone) ++domain.wide().counters.resumes;
    // Release: pairs with the acquire of domain_check().
    domain.phase.store(is_lost ? Phase::kIsLost : Phase::kIsOpen, std::memory_order_release);
  }
  drop_list(domain, drops, Reason::kAsked);
  return is_news;
}

// Those of the course that were not closed since.
bool is_stopped(const Domain& domain) {
  Phase phase = domain.phase.load(std::memory_order_acquire);
  return phase == Phase::kIsChanging || phase == Phase::kIsQuiesced;
}

// Opens the stopped domains and registers heaps and pools again. Returns the first error of a
// domain that is lost by it.
int open_domains(State& all) {
  int first_error = 0;
  auto note = [&first_error](int error) {
    if (first_error == 0) first_error = error;
  };
  if (course.has_gone) watcher.resume(all);
  each_domain(all, Step::kSuspended, [&](Domain& domain, Step step) {
    if (!is_stopped(domain)) {
      course.steps[domain.index] = Step::kNone;
      return;
    }
    // Lost meanwhile: there is no device to open. Acquire: pairs with lose_domain()'s release.
    bool is_lost = domain.is_lost.load(std::memory_order_acquire);
    int error = is_lost ? -ENODEV : open_domain(domain, step);
    if (error != 0) lose_at_resume(domain, error);
    note(error);
  });
  if (course.has_gone) {
    // Before other threads may register there.
    registers_in_resume = true;
    for (const Holder* holder : holders) note(holder->register_again(all));
    registers_in_resume = false;
  }
  each_domain(all, Step::kSuspended, [&note](Domain& domain, Step) {
    if (!reopen_domain(domain)) return;
    lose_at_resume(domain, -ENODEV);
    note(-ENODEV);
  });
  // Release: pairs with the acquire in read_key(). Even: the keys are there.
  if (course.has_gone) all.keys_turn.fetch_add(1, std::memory_order_release);
  each_domain(all, Step::kPrepared, [](Domain& domain, Step) {
    // Lost in PREPARE, and closed since. Acquire: pairs with close's release.
    if (domain.phase.load(std::memory_order_acquire) == Phase::kUnused) return;
    notify(domain, domain.has_failed() ? RDMALLOC_DOMAIN_LOST : RDMALLOC_DOMAIN_RESUMED);
  });
  return first_error;
}

// Undoes what the course says. Returns as open_domains() does.
int go_back(State* all) {
  // The kernel has forgotten MADV_WIPEONFORK in a process that was restored from a checkpoint.
  wipe_on_fork_ask_again();
  fork_wipe_again();
  // Before anything is registered, which pins pages where they are.
  heaps_bind_again();
  int error = all != nullptr ? open_domains(*all) : 0;
  // seq_cst: core/gate.h. Only now, so that no domain is closed while it is notified.
  freezer_here().is_gate_closed.store(false, std::memory_order_seq_cst);
  purge_thaw();
  course = {};
  return error;
}

// ---- the two as a whole, with the turn ----

bool wait_for_builders(State& all, std::int64_t deadline_ns) {
  // seq_cst: core/gate.h; and acquire, for what they have made.
  while (all.builders.load(std::memory_order_seq_cst) != 0) {
    if (os::monotonic_ns() >= deadline_ns) return false;
    os::sleep_ns(kShortestPollNs);
  }
  return true;
}

int quiesce_domains(State& all, std::int64_t deadline_ns) {
  if (!wait_for_builders(all, deadline_ns)) return -ETIMEDOUT;
  if (int error = prepare_domains(all)) return error;
  each_domain(all, Step::kPrepared,
              [](Domain& domain, Step) { suspend_domain(domain, course.steps[domain.index]); });
  if (!wait_until_idle(all, deadline_ns)) return -ETIMEDOUT;
  course.has_gone = true;
  empty_domains(all);
  watcher.quiesce();
  return close_domains(all);
}

void settle_phases(State& all) {
  each_domain(all, Step::kSuspended, [](Domain& domain, Step) {
    WholeGuard guard(domain);
    domain.phase.store(Phase::kIsQuiesced, std::memory_order_release);
  });
}

int quiesce_all(std::int64_t deadline_ns) {
  course = {};
  if (int error = wipe_on_fork_doubt_kernel()) return error;
  if (int error = purge_freeze(deadline_ns)) return error;
  Freezer& freezer = freezer_here();
  // seq_cst: core/gate.h. A state that comes to be from here on finds the gate closed.
  freezer.is_gate_closed.store(true, std::memory_order_seq_cst);
  State* all = ready_state();
  int error = all != nullptr ? quiesce_domains(*all, deadline_ns) : 0;
  if (error == 0) error = look_for_files();
  if (error == 0) error = wait_for_ring_workers();
  if (error == 0) {
    if (all != nullptr) settle_phases(*all);
    // seq_cst: core/gate.h.
    freezer.is_quiesced.store(true, std::memory_order_seq_cst);
    return 0;
  }
  go_back(all);
  return error;
}

int resume_all() {
  State* all = ready_state();
  // seq_cst: core/gate.h.
  freezer_here().is_quiesced.store(false, std::memory_order_seq_cst);
  // What unmakes something still.
  if (all != nullptr) wait_for_builders(*all, INT64_MAX);
  return go_back(all);
}

bool must_not_wait() {
  return is_in_callback() || purge_turn_is_mine();
}

// Heaps and domains that were abandoned while nothing could be ended.
void end_abandoned_here() {
  if (State* all = ready_state()) end_abandoned(*all);
}

std::int64_t deadline_of(int timeout_ms) {
  return timeout_ms < 0 ? INT64_MAX
                        : os::monotonic_ns() + static_cast<std::int64_t>(timeout_ms) * 1000000;
}

}  // namespace
}  // namespace rdmalloc::regcache

using namespace rdmalloc;
using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_quiesce(int timeout_ms) {
  if (!ensure_initialised()) return -ENOMEM;
  fork_check();
  if (must_not_wait()) return -EDEADLK;
  os::NoCancelScope scope;
  Freezer& freezer = freezer_here();
  std::int64_t deadline_ns = deadline_of(timeout_ms);
  int error = begin_turn(freezer, deadline_ns) ? 0 : -ETIMEDOUT;
  if (error == 0) {
    // Under the turn, so no other thread counts.
    std::uint32_t depth = freezer.depth.load(std::memory_order_relaxed);
    if (depth == 0) error = quiesce_all(deadline_ns);
    if (error == 0) freezer.depth.store(depth + 1, std::memory_order_relaxed);
    if (error == 0 && depth == 0) count(freezer.quiesces);
    end_turn(freezer);
    end_abandoned_here();
  }
  if (error != 0) count(error == -ETIMEDOUT ? freezer.timeouts : freezer.refusals);
  return error;
}

extern "C" RDMALLOC_API int rdmalloc_resume(void) {
  if (!ensure_initialised()) return -ENOMEM;
  fork_check();
  if (must_not_wait()) return -EDEADLK;
  os::NoCancelScope scope;
  Freezer& freezer = freezer_here();
  begin_turn(freezer, INT64_MAX);
  std::uint32_t depth = freezer.depth.load(std::memory_order_relaxed);
  int error = depth == 0 ? -EALREADY : 0;
  if (depth != 0) freezer.depth.store(depth - 1, std::memory_order_relaxed);
  if (depth == 1) {
    error = resume_all();
    count(freezer.resumes);
  }
  end_turn(freezer);
  end_abandoned_here();
  return error;
}

extern "C" RDMALLOC_API int rdmalloc_quiesce_stats(rdmalloc_quiesce_counters* wanted) {
  if (int error = check_struct(wanted)) return error;
  rdmalloc_quiesce_counters stats = {};
  Freezer& freezer = freezer_here();
  stats.is_quiesced = freezer.depth.load(std::memory_order_relaxed);
  stats.quiesces = freezer.quiesces.load(std::memory_order_relaxed);
  stats.resumes = freezer.resumes.load(std::memory_order_relaxed);
  stats.timeouts = freezer.timeouts.load(std::memory_order_relaxed);
  stats.refusals = freezer.refusals.load(std::memory_order_relaxed);
  stats.deregistered = freezer.deregistered.load(std::memory_order_relaxed);
  stats.reregistered = freezer.reregistered.load(std::memory_order_relaxed);
  stats.lost_domains = freezer.lost_domains.load(std::memory_order_relaxed);
  write_struct(stats, wanted);
  return 0;
}
