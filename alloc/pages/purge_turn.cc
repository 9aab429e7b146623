#include "alloc/pages/purge_turn.h"

#include <errno.h>

#include "alloc/core/fork.h"
#include "alloc/os/at_start.h"
#include "alloc/os/os.h"

namespace rdmalloc {

constinit PurgeTurn purge_turn;
RDMALLOC_AT_START constinit std::atomic<std::uint32_t> program_purge_pauses{0}, own_purge_pauses{0};

void PurgeTurn::begin() {
  for (;;) {
    if (try_begin()) return;
    std::uint32_t expected = owner();
    if (expected == 0) continue;
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

bool purge_turn_is_mine() {
  return purge_turn.owner() == thread_id();
}

void purge_turn_wait() {
  fork_check();
  purge_turn.begin();
  purge_turn.end();
}

int purge_with_turn(int (*step)(void* arg), void* arg) {
  fork_check();
  if (purge_turn_is_mine()) return -EDEADLK;
  purge_turn.begin();
  int saved = errno;  // an observer may change it
  int error = purge_is_paused() ? -EBUSY : step(arg);
  errno = saved;
  purge_turn.end();
  return error;
}

}  // namespace rdmalloc
