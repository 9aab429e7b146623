// Quiesce and resume: the process without a registration, a device or a thread of ours, so that a
// checkpoint can be taken of it, and back.
//
//   open ──► gate closed ──► purging stopped ──► PREPARE ──► parked ──► nobody holds any
//                                                                        │
//   quiesced ◄── no bad file open ◄── registrars closed ◄── CLOSE ◄── deregistered
//
// Up to "nobody holds any" a way back changes nothing: a parked registration is closed, so that no
// get finds it, and held by us, so that no put ends it (park(), core/drop.h). From there on the way
// back is a resume.
//
// The gate keeps out what works in several steps: opening and closing of domains, making and
// unmaking of heaps and pools, prefaults. Those under way are waited for. Gets need no gate: they
// look at the phase of their domain, under its lock.
//
// Whoever quiesces or resumes has the turn. It is no Lock, since registrars and events run with it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/core/lock.h"
#include "regcache/checkpoint/open_files.h"

namespace rdmalloc::regcache {

struct State;
struct Domain;
struct Registration;

// Of this process. Not in memory that is wiped in a child: it must be there before the first domain
// is. A child makes it anew (freezer_here()).
struct Freezer {
  std::atomic<int> process;          // whose it is; 0: nobody's yet, -1: being made anew
  std::atomic<std::uint32_t> owner;  // the thread that has the turn
  std::atomic<std::uint32_t> depth;  // quiesces whose resume is due; written with the turn
  // seq_cst, against State::builders: of a builder and a quiesce at least one sees the other.
  std::atomic<bool> is_gate_closed;
  std::atomic<std::uint64_t> quiesces, resumes, timeouts, refusals;
  std::atomic<std::uint64_t> deregistered, reregistered, lost_domains;
  Lock files_lock;
  OpenFiles files;  // that the latest quiesce failed for
};
Freezer& freezer_here();

// The turn. False: not before the deadline.
bool begin_turn(Freezer& freezer, std::int64_t deadline_ns);
void end_turn(Freezer& freezer);

// Round what makes or unmakes something in several steps: 0 and *token, or -EAGAIN. Unmaking goes
// on while all is quiesced, but not while a quiesce or a resume is at work.
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
  State& all_;
  std::uint64_t token_ = 0;
  int error_;
};

// ---- parts of a quiesce, with the turn and the gate closed ----

// References that a domain's registrations have from heaps and pools.
std::uint64_t heap_references(State& all, std::size_t domain);
std::uint64_t pool_references(State& all, std::size_t domain);
// Whether a heap or a pool has the domain in its list, registered or not. Under no lock of theirs.
bool is_a_heaps(State& all, std::size_t domain);
bool is_a_pools(State& all, std::size_t domain);
// Gives them back; what ends by it is added to `drops`, by domain. The keys read as zero from here
// on.
void let_go_of_heaps(State& all, Registration** drops);
void let_go_of_pools(State& all, Registration** drops);
// Registers them again. Domains that refuse are lost. Returns the first error of theirs.
int register_heaps_again(State& all);
int register_pools_again(State& all);
// Whether a domain waits for them: it is stopped, and not lost.
bool is_to_be_reopened(const Domain& domain);
// Loses a domain in which they can't be, and says so. It is stopped yet.
void lose_at_resume(Domain& domain, int error);

}  // namespace rdmalloc::regcache
