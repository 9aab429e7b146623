#include "alloc/init.h"

#include "alloc/api/options.h"
#include "alloc/api/statistics_at_exit.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/at_start.h"
#include "alloc/core/lock.h"
#include "alloc/fork.h"
#include "alloc/os/os.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/purge.h"

namespace rdmalloc::detail {

RDMALLOC_AT_START constinit std::atomic<bool> initialised{false};

namespace {
RDMALLOC_AT_START constinit Lock lock;
// Steps done so far, so that a second try after a failure continues where the first one stopped.
RDMALLOC_AT_START constinit bool options_are_read = false;
constinit bool arena_is_reserved = false;

// A destructor of the library, so after the program's atexit handlers; here, so that a program of
// static libraries has it as soon as it allocates.
__attribute__((destructor)) void at_exit() {
  statistics_at_exit();
}
}  // namespace

namespace {

// Takes the lock, also from a holder that is no more: a process may fork while another of its
// threads makes the very first allocation, and then the child finds the lock held for ever. (Later
// forks are recognised by fork.h, which is set up here.) Every step below may be repeated after
// half of it.
void take_lock() {
  while (!lock.try_lock()) {
    std::uint32_t owner = lock.owner();
    if (owner != 0 && !os::thread_exists(owner)) lock.reset_from(owner);
    os::sleep_ns(100000);
  }
}

void read_settings_locked() {
  if (options_are_read) return;
  options_read();
  options_are_read = true;
}
bool initialise_locked();

}  // namespace

bool initialise() {
  take_lock();
  bool is_done = initialised.load(std::memory_order_relaxed) || initialise_locked();
  lock.unlock();
  return is_done;
}

namespace {

bool initialise_locked() {
  read_settings_locked();
  if (!arena_is_reserved) {
    if (arena_reserve() != 0) return false;
    arena_is_reserved = true;
  }
  if (cache_init() != 0) return false;
  fork_init();
  purge_init();
  // Release: pairs with the acquire in is_initialised(). seq_cst: with the look at `held_until_ms`
  // that each round of purging begins with, against purge_hold().
  initialised.store(true, std::memory_order_seq_cst);
  return true;
}

}  // namespace

}  // namespace rdmalloc::detail

void rdmalloc::ensure_settings() {
  if (is_initialised()) return;
  detail::take_lock();
  detail::read_settings_locked();
  detail::lock.unlock();
}
