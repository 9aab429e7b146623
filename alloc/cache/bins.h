// What the bins of a thread hold, and how blocks leave them for the depot or the slabs. Of a cache
// whose owner calls, or is kept out of it (reclaim.h).
#pragma once

#include <cstdint>

#include "alloc/cache/short_magazines.h"
#include "alloc/cache/thread_cache.h"

namespace rdmalloc {

// What all bins of a thread without a cache point at, and those of classes that have no magazine:
// one past a NULL. top[-1] is NULL (empty) and top == end (full). Never written.
extern constinit void* nothing[1];

inline std::uint32_t slots_of(const ColdBin& cold) {
  return cold.is_short ? kShortSlots : kMagazineSlots;
}

inline std::uint32_t count_of(const Bin& bin, const ColdBin& cold) {
  return cold.loaded == nullptr ? 0 : static_cast<std::uint32_t>(bin.top - cold.loaded->slots);
}

inline void set_bin(Bin& bin, const ColdBin& cold, std::uint32_t count) {
  order_for_fork();
  bin.top = cold.loaded->slots + count;
  bin.end = cold.loaded->slots + (count > cold.limit ? count : cold.limit);
  order_for_fork();
}

// What a magazine that may hold `limit` blocks takes, itself included; of a short one its sheet is
// counted apart.
inline std::uint64_t cost_of(unsigned size_class, std::uint64_t limit, bool is_short) {
  return limit * class_info(size_class).block_bytes + (is_short ? 0 : sizeof(Magazine));
}

// The part of it, for a loaded one, that is the thread's own.
inline std::uint64_t own_part(const ThreadCache& cache, unsigned size_class, std::uint64_t limit,
                              bool is_short) {
  if (cache.own_blocks == 0 || is_span_class(size_class)) return 0;
  return cost_of(size_class, limit < cache.own_blocks ? limit : cache.own_blocks, is_short);
}

inline std::uint64_t cost_of(unsigned size_class, const ColdBin& cold) {
  return cost_of(size_class, cold.limit, cold.is_short) * (cold.spare != nullptr ? 2 : 1);
}

// The first `part` blocks of a magazine that no bin works on leave it.
void hand_over_part(const ThreadCache& cache, unsigned size_class, Magazine* magazine,
                    std::uint32_t part, bool is_taken_from);
// Empties a class of a thread and forgets its magazines.
void drop_class(ThreadCache& cache, unsigned size_class);
void drop_all(ThreadCache& cache);
// drop_all() of a cache whose thread is gone, and may have been anywhere in its slow path.
void drop_left(ThreadCache& cache);
// Moves what lies above a gap (reclaim.h) down to where magazines begin.
void close_gaps(ThreadCache& cache);
// Of a class that may hold more than the thread's own blocks: its spare goes, or a quarter of what
// it may hold, with what it has above that.
void shrink_class(ThreadCache& cache, unsigned size_class);
// Spans that the thread or its shard's depot keeps go to the page heap, for a large block of so
// many slices that took pages which were never used.
void give_up_spans(ThreadCache& cache, std::uint32_t slices);

}  // namespace rdmalloc
