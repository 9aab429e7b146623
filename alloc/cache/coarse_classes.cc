#include "alloc/cache/coarse_classes.h"

#include "alloc/cache/bin_table.h"
#include "alloc/core/lock.h"
#include "alloc/core/shard.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {

namespace detail {
constinit std::atomic<bool> are_coarse{false};
}  // namespace detail
using detail::are_coarse;

namespace {

constinit Lock changing;  // the table; a leaf, and never waited for

bool should_be_coarse(std::uint64_t threads, bool are) {
  if (threads <= kFineThreads) return false;
  std::uint64_t full = 0;
  for (unsigned s = 0, count = shard_count(); s < count; ++s)
    full += shards[s].full_at_look.load(std::memory_order_relaxed);
  return full < threads * (are ? kMostSlices : kFewSlices);
}

void note_full(unsigned shard) {
  std::uint64_t full = slab_full_slices(shard);
  shards[shard].full_at_look.store(static_cast<std::uint32_t>(full), std::memory_order_relaxed);
}

void decide(std::uint64_t threads) {
  bool are = are_coarse.load(std::memory_order_relaxed);
  if (should_be_coarse(threads, are) == are || !changing.try_lock()) return;
  // Another thread may have been here between.
  if (are_coarse.load(std::memory_order_relaxed) == are) {
    bin_table_enter_small(!are);
    are_coarse.store(!are, std::memory_order_relaxed);
  }
  changing.unlock();
}

}  // namespace

void detail::coarse_note_thread(std::uint64_t threads) {
  // No thread has looked yet.
  if (threads == kFineThreads + 1)
    for (unsigned s = 0, count = rdmalloc::shard_count(); s < count; ++s) note_full(s);
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

void coarse_after_fork() {
  if (changing.is_taken()) bin_table_enter_small(are_coarse.load(std::memory_order_relaxed));
  changing.reset();
}

}  // namespace rdmalloc
