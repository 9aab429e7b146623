// What the bins of a thread hold, and how blocks leave them for the depot or the slabs. Of a cache
// whose owner calls, or is kept out of it (reclaim.h).
#pragma once

#include <cstdint>

#include "alloc/cache/shares.h"
#include "alloc/cache/short_magazines.h"
#include "alloc/cache/thread_cache.h"

namespace rdmalloc {

// What all bins of a thread without a cache point at, and those of classes that have no magazine:
// one past a NULL. top[-1] is NULL (empty) and top == end (full). Never written.
extern constinit void* nothing[1];

inline std::uint32_t slots_of(const ColdBin& cold) {
  if (cold.length == Length::kWhole) [[likely]]
    return kMagazineSlots;
  return cold.length == Length::kShort ? kShortSlots : kPairSlots;
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

// What a bin that may hold `limit` blocks takes, with its magazines; of a short one its sheet is
// counted apart.
inline std::uint64_t cost_of(unsigned size_class, std::uint64_t limit, Length length) {
  return limit * class_info(size_class).block_bytes +
         static_cast<std::uint64_t>(length) * sizeof(Magazine);
}
static_assert(static_cast<int>(Length::kShort) == 0 && static_cast<int>(Length::kPair) == 2);

// Blocks of the class that are the thread's own, beside what its share allows.
inline std::uint32_t own_blocks(const ThreadCache& cache, unsigned size_class) {
  bool is_long = class_info(size_class).block_bytes > kLongestOfTwo;
  return is_long || cache.own_blocks == 0 ? cache.own_blocks : 2;
}

// The part of it that is the thread's own: of a pair one magazine.
inline std::uint64_t own_part(const ThreadCache& cache, unsigned size_class, std::uint64_t limit,
                              Length length) {
  if (cache.own_blocks == 0 || is_span_class(size_class)) return 0;
  std::uint32_t own = own_blocks(cache, size_class);
  return cost_of(size_class, limit < own ? limit : own,
                 length == Length::kShort ? length : Length::kWhole);
}

inline std::uint64_t cost_of(unsigned size_class, const ColdBin& cold) {
  return cost_of(size_class, cold.limit, cold.length);
}
inline std::uint64_t own_part(const ThreadCache& cache, unsigned size_class, const ColdBin& cold) {
  return own_part(cache, size_class, cold.limit, cold.length);
}

// The class goes on in magazines of that length, which have room for its blocks. False when there
// are none to be had.
bool move_to(ThreadCache& cache, unsigned size_class, Length length);

// The first `part` blocks of a magazine that no bin works on leave it.
void hand_over_part(const ThreadCache& cache, unsigned size_class, Magazine* magazine,
                    std::uint32_t part, bool is_taken_from);
// The deferred block goes to its slab.
void drop_deferred(ThreadCache& cache);
// Up to which class the thread's blocks are deferred: small ones, and buffers once it has had more
// than a magazine of a class free at once, until it gives that class up. With so many, all with
// pages and registrations, it matters little which one malloc gives, and in a mix with small blocks
// malloc and free take half the time without the branch between them. Of several nodes no buffers:
// whether their pages are near is asked as they leave a bin.
void defer_buffers(ThreadCache& cache);
// Until the next defer_buffers(). The deferred block enters its bin, if it is a buffer.
void stop_deferring_buffers(ThreadCache& cache);
// Empties a class of a thread and forgets its magazines.
void drop_class(ThreadCache& cache, unsigned size_class);
void drop_all(ThreadCache& cache);
// drop_all() of a cache whose thread is gone, and may have been anywhere in its slow path.
void drop_left(ThreadCache& cache);
// Moves what lies above a gap (reclaim.h) down to where magazines begin.
void close_gaps(ThreadCache& cache);
// Of a class that may hold more than the thread's own blocks: it goes on in one magazine of its
// pair, or a quarter of what it may hold goes, with what it has above that.
void shrink_class(ThreadCache& cache, unsigned size_class);
// Spans that the thread keeps go to the page heap, for a large block of so many slices that took
// pages which were never used.
void give_up_spans(ThreadCache& cache, std::uint32_t slices);

}  // namespace rdmalloc
