#include "alloc/cache/take_back.h"

#include "alloc/cache/depot.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/init.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {

namespace detail {
constinit std::atomic<std::uint32_t> take_backs{0};
constinit std::atomic<bool (*)(bool everything)> age_heaps{nullptr};
}  // namespace detail

namespace {

// Once for what is free, then once for each wait for pages of slabs; a purge that goes from slab to
// slab would keep an allocation that can't succeed for long.
constexpr int kMostRounds = 4;

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
  purge_note_dirty();
}

}  // namespace

bool TakeBack::again(std::uint32_t slices) {
  if (!is_initialised() || rounds_ == kMostRounds || !may_help(slices)) return false;
  if (rounds_ != 0 && !wait_.again_for_slabs()) return false;
  ++rounds_;
  take_back();
  return true;
}

}  // namespace rdmalloc
