#include "alloc/cache/long_block.h"

#include "alloc/core/order_for_fork.h"
#include "alloc/core/purge_signal.h"
#include "alloc/os/topology.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {
namespace {

// Of several nodes: pages of others are for the threads there.
bool is_near(const Span& span) {
  return os::node_count() == 1 || span.node == os::this_node();
}

// Whether a longer block serves for one of `wanted` slices, as a longer place does in the page
// heap: a limit is for what was asked for.
bool serves_for(std::uint32_t slices, std::uint32_t wanted) {
  return slices > wanted && slices <= longest_whole(wanted) &&
         dirty_limits.backed_bytes.load(std::memory_order_relaxed) == UINT64_MAX;
}

// Without the page heap's lock. Another thread may write the next bit of the same byte (Span),
// when the segment before this block moves; this bit stays as the realloc left it.
[[gnu::no_sanitize_thread]] inline bool has_grown(const Span& span) {
  return span.has_grown;
}

[[gnu::noinline]] void give_up(SliceIndex slice) {
  arena.span(slice).is_kept.store(false, std::memory_order_relaxed);
  page_heap_free(slice);
  purge_note_dirty();
}

}  // namespace

namespace detail {

SliceIndex take_long_block(ThreadCache& cache) {
  if (cache.long_is_freed) {
    cache.long_is_freed = false;
    cache.long_score += cache.long_score < kMostScore ? kScoreOfFreed : 0;
  } else {
    cache.long_score -= cache.long_score != 0 ? 1 : 0;
  }
  if (cache.long_block.load(std::memory_order_relaxed) == 0) return 0;
  // Acquire: pairs with the release where it was kept. 0 where another thread was here first.
  SliceIndex slice = cache.long_block.exchange(0, std::memory_order_acquire);
  if (slice == 0) return 0;
  Span& span = arena.span(slice);
  if (!is_near(span)) [[unlikely]] {
    give_up(slice);
    return 0;
  }
  span.is_kept.store(false, std::memory_order_relaxed);
  return slice;
}

bool keep_long_block(ThreadCache& cache, SliceIndex slice) {
  // The span's record is read only where it is kept, as far as is known.
  std::uint32_t wanted = cache.long_slices, most = cache.most_long_slices;
  if (wanted > most || cache.long_block.load(std::memory_order_relaxed) != 0) return false;
  Span& span = arena.span(slice);
  SpanWord word = span.load();
  bool has_length =
      word.slices == wanted || (word.slices <= most && serves_for(word.slices, wanted));
  if (!has_length || word.is_zero || has_grown(span) ||
      span.is_kept.load(std::memory_order_relaxed) || !is_near(span) ||
      dirty_limits.decay_ms.load(std::memory_order_relaxed) == 0)
    return false;
  span.is_kept.store(true, std::memory_order_relaxed);
  auto kept = static_cast<std::uint16_t>(cache.longs_kept.load(std::memory_order_relaxed) + 1);
  cache.longs_kept.store(kept, std::memory_order_relaxed);
  // Release: pairs with the acquire of the thread that takes it. A child of a fork that finds it
  // here finds all that was done with it.
  cache.long_block.store(slice, std::memory_order_release);
  purge_note_caches_change();
  return true;
}

}  // namespace detail

void drop_long_block(ThreadCache& cache) {
  if (cache.long_block.load(std::memory_order_relaxed) == 0) return;
  // Acquire: as in take_long_block().
  if (SliceIndex slice = cache.long_block.exchange(0, std::memory_order_acquire)) give_up(slice);
}

void recover_long_block(ThreadCache& cache) {
  SliceIndex slice = cache.long_block.load(std::memory_order_relaxed);
  if (slice == 0) return;
  page_heap_recover_kept(slice);
  order_for_fork();
  cache.long_block.store(0, std::memory_order_relaxed);
}

void caches_drop_long_blocks() {
  for (std::uint32_t i = 1; i < caches_made(); ++i) drop_long_block(*cache_at(i));
}

std::uint64_t long_block_bytes(const ThreadCache& cache) {
  SliceIndex slice = cache.long_block.load(std::memory_order_relaxed);
  return slice == 0 ? 0 : std::uint64_t{arena.span(slice).load().slices} << kSliceShift;
}

}  // namespace rdmalloc
