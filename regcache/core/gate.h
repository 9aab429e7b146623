// Keeping calls that work in several steps apart from a quiesce or a resume (checkpoint/).
//
// The gate keeps out what works in several steps: opening and closing of domains, making and
// unmaking of heaps and pools, prefaults. A quiesce waits for those under way. Once all is quiesced
// the gate lets in what unmakes, as many threads as come, and the resume waits for those. Gets need
// no gate: they look at the phase of their domain, under its lock.
//
// The thread that quiesces or resumes has the turn. The turn is no Lock, since registrars and
// events run with it.
#pragma once

#include <rdmalloc/regcache.h>

#include <atomic>
#include <cstdint>

#include "alloc/for_regcache.h"

namespace rdmalloc::regcache {

struct State;

// Of this process. Not in memory that is wiped in a child: it must be there before the first domain
// is. A child makes it anew (freezer_here()).
struct Freezer {
  std::atomic<int> process;          // its process; 0: none yet, negative: that one makes it anew
  std::atomic<std::uint32_t> owner;  // the thread that has the turn
  std::atomic<std::uint32_t> depth;  // quiesces whose resume is due; written with the turn
  // seq_cst, both against State::builders: of a builder and a quiesce, or a resume, at least one
  // sees the other.
  std::atomic<bool> is_gate_closed;
  std::atomic<bool> is_quiesced;  // and no resume has begun
  std::atomic<std::uint64_t> quiesces, resumes, timeouts, refusals;
  std::atomic<std::uint64_t> deregistered, reregistered, lost_domains;
};
Freezer& freezer_here();

// The turn. False: not before the deadline.
bool begin_turn(Freezer& freezer, std::int64_t deadline_ns);
void end_turn(Freezer& freezer);

// Round what makes or unmakes something in several steps: 0 and *token, or -EAGAIN. Unmaking goes
// on while all is quiesced, on any number of threads, but not while a quiesce or a resume is at
// work.
enum class Gate : bool { kMakes, kUnmakes };
int enter_gate(State& all, Gate gate, std::uint64_t* token);
void leave_gate(State& all, std::uint64_t token);

class GateScope {
 public:
  GateScope(State& all, Gate gate) : all_(all), error_(enter_gate(all, gate, &token_)) {}
  ~GateScope() {
    if (error_ == 0) leave_gate(all_, token_);
  }
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;
  int error() const { return error_; }

 private:
  os::NoCancelScope not_cancelled_;  // ends last
  State& all_;
  std::uint64_t token_ = 0;
  int error_;
};

}  // namespace rdmalloc::regcache
