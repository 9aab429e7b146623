#include "alloc/cache/take_back.h"

#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/long_block.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/init.h"
#include "alloc/core/options.h"
#include "alloc/core/shard.h"
#include "alloc/core/size_class.h"
#include "alloc/os/os.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {

namespace detail {
constinit std::atomic<std::uint32_t> take_backs{0};
constinit std::atomic<bool (*)(bool everything)> age_heaps{nullptr};
}  // namespace detail

namespace {

// Once for what is free, then once for each wait for pages of slabs; a purge that goes from slab to
// slab would keep an allocation that can't succeed for long.
constexpr int kMostRounds = 4;

// And once after each nap, in which the other threads empty their caches, and the slabs that these
// hold become free: 100 ms in all, as a purge is waited for.
constexpr std::int64_t kNapsNs[] = {100'000, 1'000'000, 10'000'000, 89'000'000};
constexpr int kMostNaps = sizeof kNapsNs / sizeof *kNapsNs;
// Where that was in vain, allocations fail at once for so long: a program that lives at its limit
// and wants to be told so waits little. Relaxed: a hint.
constexpr std::int64_t kInVainMs = 1000;
constinit std::atomic<std::int64_t> no_nap_until_ms{0};
// Relaxed: a counter.
constinit std::atomic<std::uint64_t> naps_taken{0};

// False: enough of it.
bool nap(int taken) {
  std::int64_t now = os::coarse_ms();
  if (now < no_nap_until_ms.load(std::memory_order_relaxed)) return false;
  if (taken == kMostNaps) {
    no_nap_until_ms.store(now + kInVainMs, std::memory_order_relaxed);
    return false;
  }
  naps_taken.fetch_add(1, std::memory_order_relaxed);
  os::sleep_ns(kNapsNs[taken]);
  return true;
}

// In a small cgroup caches are emptied first, then there is more room.
constexpr int kRoomTries = 2;

// Whether so many slices may be had once all caches are empty. If not, they stay full.
bool may_help(std::uint32_t slices) {
  if (page_heap_is_over_limit(slices)) return slices <= page_heap_limit_slices();
  return page_heap_reaches(slices);
}

void take_back() {
  take_backs_ask();
  cache_flush_this_thread();
  if (auto* age = detail::age_heaps.load(std::memory_order_relaxed)) age(true);
  depot_empty();
  caches_drop_long_blocks();
  purge_note_dirty();
}

}  // namespace

bool TakeBack::again(std::uint32_t slices) {
  // A slab may want more slices than its block: so not only where these are what is over.
  if (page_heap_room_is_set() && (room_tries_ < kRoomTries || page_heap_is_over_room(slices))) {
    room_tries_++ == 0 ? take_back() : page_heap_widen_room(slices + kMostSlabSlices);
    return true;
  }
  if (!is_initialised() || rounds_ == kMostRounds || !may_help(slices)) return false;
  if (rounds_ != 0 && !wait_.again_for_slabs()) {
    if (!others_give_up()) return false;
    --rounds_;
  }
  ++rounds_;
  take_back();
  return true;
}

// Idle threads come to no slow path: theirs is taken first, and those that are in one give up
// theirs during the naps.
bool TakeBack::others_give_up() {
  if (loans.threads.load(std::memory_order_relaxed) <= 1) return false;
  if (!has_reclaimed_ && options().watch_pressure) {  // else a sandbox (docs/settings.md)
    has_reclaimed_ = true;
    if (caches_reclaim_for_allocation()) return true;
  }
  if (!nap(naps_)) return false;
  ++naps_;
  return true;
}

std::uint64_t take_back_naps() {
  return naps_taken.load(std::memory_order_relaxed);
}

// Whether each block of the longer class is aligned as those of the class are.
static bool serves_for(unsigned longer, unsigned size_class) {
  std::uint32_t bytes = class_info(size_class).block_bytes;
  std::uint32_t alignment = bytes & -bytes;
  return class_info(longer).block_bytes >= bytes && class_info(longer).block_bytes % alignment == 0;
}

void* take_longer(unsigned size_class, unsigned* longer) {
  for (unsigned c = size_class + 1; c < kClasses; ++c) {
    if (!serves_for(c, size_class)) continue;
    for (unsigned shard = 0; shard < shard_count(); ++shard) {
      void* block = nullptr;
      if (slab_take_own(shard, c, &block, 1) == 0) continue;
      *longer = c;
      return block;
    }
  }
  return nullptr;
}

}  // namespace rdmalloc
