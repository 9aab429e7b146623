// The turn and the gate (checkpoint.h).
#include <errno.h>

#include "alloc/api/options.h"
#include "alloc/core/lock.h"
#include "alloc/core/report.h"
#include "alloc/os/os.h"
#include "regcache/checkpoint/abandoned.h"
#include "regcache/checkpoint/checkpoint.h"
#include "regcache/core/drop.h"
#include "regcache/core/state.h"

namespace rdmalloc::regcache {
namespace {

constinit Freezer the_freezer = {};

constexpr std::int64_t kPollNs = 1000000;
constexpr std::uint64_t kTurn = UINT64_MAX;  // a token; the others are ids of processes

// By the first thread of a child that comes here; its siblings wait.
void make_anew(Freezer& freezer) {
  freezer.owner.store(0, std::memory_order_relaxed);
  freezer.depth.store(0, std::memory_order_relaxed);
  freezer.is_gate_closed.store(false, std::memory_order_relaxed);
  freezer.files_lock.reset();
  freezer.files.count = 0;
  for (std::atomic<std::uint64_t>* counter :
       {&freezer.quiesces, &freezer.resumes, &freezer.timeouts, &freezer.refusals,
        &freezer.deregistered, &freezer.reregistered, &freezer.lost_domains})
    counter->store(0, std::memory_order_relaxed);
}

}  // namespace

Freezer& freezer_here() {
  Freezer& freezer = the_freezer;
  int here = os::process_id();
  for (;;) {
    // Acquire: pairs with the release below.
    int seen = freezer.process.load(std::memory_order_acquire);
    if (seen == here) return freezer;
    if (seen == -1) {
      os::sleep_ns(kPollNs);
    } else if (freezer.process.compare_exchange_strong(seen, -1, std::memory_order_acquire)) {
      make_anew(freezer);
      freezer.process.store(here, std::memory_order_release);
    }
  }
}

bool begin_turn(Freezer& freezer, std::int64_t deadline_ns) {
  for (;;) {
    std::uint32_t nobody = 0;
    // Acquire: pairs with the release in end_turn().
    if (freezer.owner.compare_exchange_strong(nobody, thread_id(), std::memory_order_acquire))
      return true;
    if (os::monotonic_ns() >= deadline_ns) return false;
    os::sleep_ns(kPollNs);
  }
}

void end_turn(Freezer& freezer) {
  freezer.owner.store(0, std::memory_order_release);
}

int enter_gate(State& all, Gate gate, std::uint64_t* token) {
  end_abandoned(all);
  Freezer& freezer = freezer_here();
  // seq_cst: checkpoint.h.
  all.builders.fetch_add(1, std::memory_order_seq_cst);
  if (!freezer.is_gate_closed.load(std::memory_order_seq_cst)) {
    *token = static_cast<std::uint64_t>(os::process_id());
    return 0;
  }
  all.builders.fetch_sub(1, std::memory_order_seq_cst);
  if (gate == Gate::kMakes || !begin_turn(freezer, 0)) return -EAGAIN;
  // Quiesced, and so it stays while we have the turn; or resumed a moment ago.
  *token = kTurn;
  if (freezer.depth.load(std::memory_order_relaxed) != 0) return 0;
  end_turn(freezer);
  return -EAGAIN;
}

void leave_gate(State& all, std::uint64_t token) {
  if (token == kTurn)
    end_turn(freezer_here());
  else if (token == static_cast<std::uint64_t>(os::process_id()))
    // A child that was forked inside has no builders. Release: pairs with the acquire of the
    // quiesce that waits.
    all.builders.fetch_sub(1, std::memory_order_release);
}

bool is_a_heaps(State& all, std::size_t domain) {
  // Under it places are taken: what one that is somebody's says stays so.
  LockGuard guard(all.heaps_lock);
  for (RegisteredHeap& heap : all.heaps) {
    // Acquire: pairs with the release in give_up().
    if (heap.handle.load(std::memory_order_acquire) == 0) continue;
    for (std::uint32_t i = 0; i < heap.domain_count; ++i)
      if (heap.domains[i] == domain) return true;
  }
  return false;
}

bool is_a_pools(State& all, std::size_t domain) {
  LockGuard guard(all.pools_lock);  // likewise
  for (BufferPool& pool : all.pools) {
    if (pool.phase.load(std::memory_order_acquire) != Phase::kIsOpen) continue;
    for (std::size_t i = 0; i < pool.domain_count; ++i)
      if (pool.domains[i] == domain) return true;
  }
  return false;
}

bool is_to_be_reopened(const Domain& domain) {
  // Acquire: pairs with the release of whoever parks or loses it.
  Phase phase = domain.phase.load(std::memory_order_acquire);
  return (phase == Phase::kIsChanging || phase == Phase::kIsQuiesced) &&
         !domain.is_lost.load(std::memory_order_acquire);
}

void lose_at_resume(Domain& domain, int error) {
  {
    LockGuard guard(domain.lock);
    // What is registered in it ends when its phase changes (reopen_domain()).
    domain.is_lost.store(true, std::memory_order_release);
  }
  // Statistics: relaxed, they order nothing.
  freezer_here().lost_domains.fetch_add(1, std::memory_order_relaxed);
  if (options().quiet) return;
  Message()
      .text("warning: rdmalloc_resume: ")
      .text(domain.ops.name)
      .text(" could not be opened again (error ")
      .signed_number(error)
      .text("): calls for its domain fail from now on (-ENODEV); its memory stays usable")
      .print();
}

}  // namespace rdmalloc::regcache
