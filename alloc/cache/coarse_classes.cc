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

// Of all shards, as of their last looks: else each thread that begins would read a line of each.
// Relaxed: a count. Below 0 between two looks at one shard.
constinit std::atomic<std::int64_t> held_slices{0};

// Which shard the next thread that begins looks at first; at so many. Relaxed: a hint.
constinit std::atomic<unsigned> next_shard{0};
constexpr unsigned kLooksOfThread = 8;

bool should_become_coarse(std::uint64_t threads) {
  return threads > kFineThreads && !stay_fine.load(kRelaxed) &&
         held_slices.load(kRelaxed) < static_cast<std::int64_t>(threads * kFewSlices);
}

// Where the shard's spans in use have changed by more than so many slices since its last look.
bool look(unsigned shard, std::uint64_t most) {
  std::atomic<std::uint32_t>& at_look = shards[shard].used_at_look;
  std::uint64_t used = page_heap_used_slices_of(shard), before = at_look.load(kRelaxed);
  if (used <= before + most && before <= used + most) return false;
  at_look.store(static_cast<std::uint32_t>(used), kRelaxed);
  std::uint64_t now = slab_slices_held(shard);
  std::uint32_t held =
      shards[shard].held_at_look.exchange(static_cast<std::uint32_t>(now), kRelaxed);
  auto more = static_cast<std::int64_t>(now) - held;
  if (more != 0) held_slices.fetch_add(more, kRelaxed);
  return true;
}

void enter(bool coarse) {
  if (!changing.try_lock()) return;
  // Another thread may have been here between.
  if (are_coarse.load(kRelaxed) != coarse) {
    bin_table_enter_small(coarse);
    are_coarse.store(coarse, kRelaxed);
    if (coarse) were_coarse.store(true, kRelaxed);
  }
  changing.unlock();
}

void decide(std::uint64_t threads) {
  if (should_become_coarse(threads)) enter(true);
}

}  // namespace

void detail::coarse_note_thread(std::uint64_t threads) {
  unsigned count = rdmalloc::shard_count();
  if (threads == kFineThreads + 1) {
    stay_fine.store(false, kRelaxed);
    // No thread has looked yet, or not for long. Where they come and go, most find nothing new: it
    // is eighty lines of each shard that has.
    for (unsigned s = 0; s < count; ++s) look(s, 0);
  } else {
    // Some in turn: no thread looks any more at a shard that all have left, and what it had counts.
    unsigned most = count < kLooksOfThread ? count : kLooksOfThread;
    unsigned first = next_shard.fetch_add(most, kRelaxed);
    for (unsigned n = 0; n < most; ++n) look((first + n) % count, kSlicesPerLook);
  }
  decide(threads);
}

void detail::coarse_look(const ThreadCache& cache) {
  if (look(cache.shard, kSlicesPerLook)) decide(loans.threads.load(kRelaxed));
}

void detail::coarse_end_refused() {
  stay_fine.store(true, kRelaxed);
  enter(false);
}

void coarse_after_fork() {
  if (changing.is_taken()) bin_table_enter_small(are_coarse.load(kRelaxed));
  changing.reset();
  // A thread may have vanished between a shard's count and that of all.
  std::int64_t held = 0;
  for (unsigned s = 0, count = shard_count(); s < count; ++s)
    held += shards[s].held_at_look.load(kRelaxed);
  held_slices.store(held, kRelaxed);
}

}  // namespace rdmalloc
