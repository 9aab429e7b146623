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

constexpr auto kRelaxed = std::memory_order_relaxed;

constinit Lock changing;  // the table; a leaf, and never waited for
// Whether classes stay fine, as memory was refused. Relaxed: a hint.
constinit std::atomic<bool> stay_fine{false};

bool should_be_coarse(std::uint64_t threads, bool are) {
  if (threads <= kFineThreads || stay_fine.load(kRelaxed)) return false;
  std::uint64_t slices = 0;
  for (unsigned s = 0, count = shard_count(); s < count; ++s)
    slices += (are ? shards[s].full_at_look : shards[s].held_at_look).load(kRelaxed);
  return slices < threads * (are ? kMostSlices : kFewSlices);
}

void note_slabs(unsigned shard) {
  SlabSlices slices = slab_slices(shard);
  shards[shard].full_at_look.store(static_cast<std::uint32_t>(slices.full), kRelaxed);
  shards[shard].held_at_look.store(static_cast<std::uint32_t>(slices.held), kRelaxed);
}

void change(bool are) {
  if (!changing.try_lock()) return;
  // Another thread may have been here between.
  if (are_coarse.load(kRelaxed) == are) {
    bin_table_enter_small(!are);
    are_coarse.store(!are, kRelaxed);
    if (!are) were_coarse.store(true, kRelaxed);
  }
  changing.unlock();
}

void decide(std::uint64_t threads) {
  bool are = are_coarse.load(kRelaxed);
  if (should_be_coarse(threads, are) != are) change(are);
}

}  // namespace

void detail::coarse_note_thread(std::uint64_t threads) {
  if (threads == kFineThreads + 1) {
    stay_fine.store(false, kRelaxed);
    // No thread has looked yet.
    for (unsigned s = 0, count = rdmalloc::shard_count(); s < count; ++s) note_slabs(s);
  }
  decide(threads);
}

void detail::coarse_look(const ThreadCache& cache) {
  std::atomic<std::uint32_t>& at_look = shards[cache.shard].used_at_look;
  std::uint64_t used = page_heap_used_slices_of(cache.shard);
  std::uint64_t before = at_look.load(kRelaxed);
  if (used <= before + kSlicesPerLook && before <= used + kSlicesPerLook) return;
  at_look.store(static_cast<std::uint32_t>(used), kRelaxed);
  note_slabs(cache.shard);
  decide(loans.threads.load(kRelaxed));
}

void detail::coarse_end_refused() {
  stay_fine.store(true, kRelaxed);
  change(true);
}

void coarse_after_fork() {
  if (changing.is_taken()) bin_table_enter_small(are_coarse.load(kRelaxed));
  changing.reset();
}

}  // namespace rdmalloc
