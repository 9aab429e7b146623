#include "alloc/core/purge_signal.h"

#include "alloc/os/at_start.h"
#include "alloc/os/os.h"

namespace rdmalloc {

namespace detail {

RDMALLOC_AT_START constinit PurgeSignal purge_signal;

void purge_thread_signal() {
  if (purge_signal.sleep.load(std::memory_order_seq_cst) == kAwake ||
      purge_signal.sleep.exchange(kAwake, std::memory_order_seq_cst) == kAwake)
    return;
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&purge_signal.sleep), 1);
}

namespace {

void notify_thread_ends(bool is_first) {
  if (auto* notify = purge_signal.thread_ends.load(std::memory_order_relaxed)) notify(is_first);
}

}  // namespace

}  // namespace detail

void purge_note_slab_change() {
  // Acquire: pairs with the release in purge_thread_start().
  if (detail::purge_signal.state.load(std::memory_order_acquire) == detail::PurgeThreadState::kRuns)
    detail::purge_thread_signal();
}

void detail::purge_note_first_change_of_caches() {
  // seq_cst, both: pair with the purge thread's store of `sleep` and its look at the flag after it.
  // Either we see that it sleeps, or it sees the flag cleared.
  if (purge_signal.caches_are_still.exchange(false, std::memory_order_seq_cst) &&
      purge_signal.sleep.load(std::memory_order_seq_cst) == kIdle)
    purge_note_slab_change();
}

void purge_wake() {
  if (auto* wake = detail::purge_signal.start_and_wake.load(std::memory_order_relaxed)) wake();
}

void purge_note_thread_ends() {
  detail::notify_thread_ends(false);
}

void purge_note_first_thread_ends() {
  detail::notify_thread_ends(true);
}

}  // namespace rdmalloc
