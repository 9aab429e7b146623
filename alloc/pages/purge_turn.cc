#include "alloc/pages/purge_turn.h"

#include <errno.h>

#include "alloc/core/fork.h"
#include "alloc/os/at_start.h"
#include "alloc/os/os.h"

namespace rdmalloc {

constinit PurgeTurn purge_turn;
RDMALLOC_AT_START constinit std::atomic<std::uint32_t> purge_pauses{0};

void PurgeTurn::begin() {
  for (;;) {
    if (try_begin()) return;
    std::uint32_t expected = owner();
    if (expected == 0) continue;
    fork_check();  // as in Lock::lock_contended()
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    // A lost wake-up costs 10 ms and no more.
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&owner_), expected, 10000000);
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void PurgeTurn::end() {
  owner_.store(0, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) != 0)
    os::futex_wake(reinterpret_cast<const std::uint32_t*>(&owner_), 1);
}

namespace {

RDMALLOC_AT_START constinit std::atomic<DecommitFunction> decommit_function{os::decommit_hooked};

// Whether `decommit` does what it says. A seccomp filter that answers 0 for the kernel, and old
// emulators, do not take the pages away, and what then lies there is no zeroes for calloc(). Tried
// on a page of ours, once in each turn: a filter is one thread's, and may come at any time.
class Probe {
 public:
  bool takes_pages_away(DecommitFunction decommit) {
    if (turn_ == purge_turn.number() && decommit_ == decommit) return takes_;
    std::uintptr_t page = page_;
    if (page == 0 && os::map_metadata(os::page_bytes(), &page) != 0) return true;
    auto* word = reinterpret_cast<volatile std::uint64_t*>(page);
    *word = 1;
    // A refusal is no lie.
    takes_ = decommit(page, os::page_bytes()) != 0 || *word == 0;
    // Forgotten before it is unmapped: a child forked in between would write to what it has not.
    page_ = 0;
    order_for_fork();
    if (os::unreserve(page, os::page_bytes()) != 0) page_ = page;
    turn_ = purge_turn.number();
    decommit_ = decommit;
    return takes_;
  }

 private:
  std::uint64_t turn_ = 0;
  DecommitFunction decommit_ = nullptr;
  bool takes_ = true;
  std::uintptr_t page_ = 0;  // what the kernel did not take back, for the next try
};
constinit Probe probe;  // with the turn

}  // namespace

bool purge_turn_is_mine() {
  return purge_turn.is_mine();
}

std::uint32_t purge_turn_owner() {
  return purge_turn.owner();
}

void purge_turn_wait() {
  fork_check();
  purge_turn.begin();
  purge_turn.end();
}

DecommitFunction decommit_in_force() {
  return decommit_function.load(std::memory_order_relaxed);
}

void purge_set_decommit(DecommitFunction function) {
  decommit_function.store(function, std::memory_order_relaxed);
}

int purge_decommit(DecommitFunction decommit, std::uintptr_t base, std::size_t length) {
  assert_no_lock_held("decommit");
  int error = decommit(base, length);
  if (error == 0 && !probe.takes_pages_away(decommit)) error = -ENOTSUP;
  fork_check();  // as after a page event
  return error;
}

int purge_with_turn(int (*step)(DecommitFunction decommit, void* arg), void* arg) {
  fork_check();
  if (purge_turn.is_mine()) return -EDEADLK;
  purge_turn.begin();
  int error = purge_is_paused() ? -EBUSY : step(decommit_in_force(), arg);
  purge_turn.end();
  return error;
}

}  // namespace rdmalloc
