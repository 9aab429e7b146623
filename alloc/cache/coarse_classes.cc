#include "alloc/cache/coarse_classes.h"

#include "alloc/cache/bin_table.h"
#include "alloc/core/lock.h"
#include "alloc/core/shard.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {

namespace detail {
constinit std::atomic<bool> are_coarse{false}, were_coarse{false};
}  // namespace detail
using detail::are_coarse;
using detail::were_coarse;

namespace {

constinit Lock changing;  // the table; a leaf, and never waited for
// Whether classes stay fine, as memory was refused. Relaxed: a hint.
constinit std::atomic<bool> stay_fine{false};

bool should_be_coarse(std::uint64_t threads, bool are) {
  if (threads <= kFineThreads || stay_fine.load(std::memory_order_relaxed)) return false;
  std::uint64_t full = 0;
  for (unsigned s = 0, count = shard_count(); s < count; ++s)
    full += shards[s].full_at_look.load(std::memory_order_relaxed);
  return full < threads * (are ? kMostSlices : kFewSlices);
}

void note_full(unsigned shard) {
  std::uint64_t full = slab_full_slices(shard);
  shards[shard].full_at_look.store(static_cast<std::uint32_t>(full), std::memory_order_relaxed);
}

void change(bool are) {
  if (!changing.try_lock()) return;
  // Another thread may have been here between.
  if (are_coarse.load(std::memory_order_relaxed) == are) {
    bin_table_enter_small(!are);
    are_coarse.store(!are, std::memory_order_relaxed);
    if (!are) were_coarse.store(true, std::memory_order_relaxed);
  }
  changing.unlock();
}

void decide(std::uint64_t threads) {
  bool are = are_coarse.load(std::memory_order_relaxed);
  if (should_be_coarse(threads, are) != are) change(are);
}

}  // namespace

void detail::coarse_note_thread(std::uint64_t threads) {
  if (threads == kFineThreads + 1) {
    stay_fine.store(false, std::memory_order_relaxed);
    // No thread has looked yet.
    for (unsigned s = 0, count = rdmalloc::shard_count(); s < count; ++s) note_full(s);
  }
  decide(threads);
}

void detail::coarse_look(const ThreadCache& cache) {
  std::atomic<std::uint32_t>& at_look = shards[cache.shard].used_at_look;
  std::uint64_t used = page_heap_used_slices_of(cache.shard);
  std::uint64_t before = at_look.load(std::memory_order_relaxed);
  if (used <= before + kSlicesPerLook && before <= used + kSlicesPerLook) return;
  at_look.store(static_cast<std::uint32_t>(used), std::memory_order_relaxed);
  note_full(cache.shard);
  decide(loans.threads.load(std::memory_order_relaxed));
}

void detail::coarse_end_refused() {
  stay_fine.store(true, std::memory_order_relaxed);
  change(true);
}

void coarse_after_fork() {
  if (changing.is_taken()) bin_table_enter_small(are_coarse.load(std::memory_order_relaxed));
  changing.reset();
}

}  // namespace rdmalloc
