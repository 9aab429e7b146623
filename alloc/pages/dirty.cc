#include "alloc/pages/dirty.h"

#include "alloc/core/lock.h"
#include "alloc/core/purge_signal.h"
#include "alloc/os/at_start.h"
#include "alloc/pages/limits.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {

RDMALLOC_AT_START constinit DirtyLimits dirty_limits;

std::uint64_t dirty_bytes() {
  return page_heap_dirty_slices() << kSliceShift;
}

std::uint64_t dirty_ceiling_bytes(bool* is_limit) {
  std::uint64_t ceiling = dirty_limits.max_bytes.load(std::memory_order_relaxed);
  if (ceiling == kNotLookedUp) ceiling = kLookUpFromBytes;
  std::uint64_t limit = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  *is_limit = false;
  if (limit == UINT64_MAX) return ceiling;
  std::uint64_t used = page_heap_used_slices() << kSliceShift;
  std::uint64_t left = limit > used ? limit - used : 0;
  left -= left / 4;  // threads go on while the purge thread wakes and gives back
  *is_limit = left < ceiling;
  return *is_limit ? left : ceiling;
}

static bool is_above_ceiling() {
  bool is_limit = false;
  std::uint64_t dirty = dirty_bytes(), ceiling = dirty_ceiling_bytes(&is_limit);
  page_heap_allow_dirty((dirty < ceiling ? ceiling - dirty : 0) >> kSliceShift);
  return dirty > ceiling;
}

void purge_note_dirty() {
  const detail::PurgeSignal& signal = detail::purge_signal;
  if (signal.state.load(std::memory_order_relaxed) != detail::PurgeThreadState::kRuns) return;
  // Pairs with the seq_cst store of `sleep` in purge_until_stopped(): our slices are counted
  // before, under a page heap's lock.
  fence_beside_unlock();
  std::uint32_t sleep = signal.sleep.load(std::memory_order_relaxed);
  if (sleep == detail::kAwake) return;
  if (sleep == detail::kIdle || dirty_limits.decay_ms.load(std::memory_order_relaxed) == 0 ||
      (page_heap_dirty_has_grown() && is_above_ceiling()))
    detail::purge_thread_signal();
}

namespace detail {

RDMALLOC_AT_START constinit std::atomic<bool> has_new_rest{false};

void note_new_rest() {
  if (has_new_rest.exchange(false, std::memory_order_acquire)) purge_note_dirty();
}

}  // namespace detail

}  // namespace rdmalloc
