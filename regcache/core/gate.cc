#include "regcache/core/gate.h"

#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/abandoned.h"
#include "regcache/core/state.h"

namespace rdmalloc::regcache {
namespace {

constinit Freezer the_freezer = {};

constexpr std::int64_t kPollNs = 1000000;

// By the first thread of a child that comes here; its siblings wait.
void make_anew(Freezer& freezer) {
  freezer.owner.store(0, std::memory_order_relaxed);
  freezer.depth.store(0, std::memory_order_relaxed);
  freezer.is_gate_closed.store(false, std::memory_order_relaxed);
  freezer.is_quiesced.store(false, std::memory_order_relaxed);
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
    if (seen == -here) {
      os::sleep_ns(kPollNs);
      continue;
    }
    // Another process's, be it made or not: the thread of the parent's that makes it is not here.
    if (freezer.process.compare_exchange_strong(seen, -here, std::memory_order_acquire)) {
      make_anew(freezer);
      freezer.process.store(here, std::memory_order_release);
    }
  }
}

bool begin_turn(Freezer& freezer, std::int64_t deadline_ns) {
  for (;;) {
    std::uint32_t none = 0;
    // Acquire: pairs with the release in end_turn().
    if (freezer.owner.compare_exchange_strong(none, thread_id(), std::memory_order_acquire))
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
  // seq_cst: gate.h.
  all.builders.fetch_add(1, std::memory_order_seq_cst);
  if (!freezer.is_gate_closed.load(std::memory_order_seq_cst) ||
      (gate == Gate::kUnmakes && freezer.is_quiesced.load(std::memory_order_seq_cst))) {
    *token = static_cast<std::uint64_t>(os::process_id());
    return 0;
  }
  all.builders.fetch_sub(1, std::memory_order_seq_cst);
  return -EAGAIN;
}

void leave_gate(State& all, std::uint64_t token) {
  // A child that was forked inside has no builders. Release: pairs with the acquire of the quiesce
  // or the resume that waits.
  if (token == static_cast<std::uint64_t>(os::process_id()))
    all.builders.fetch_sub(1, std::memory_order_release);
}

}  // namespace rdmalloc::regcache
