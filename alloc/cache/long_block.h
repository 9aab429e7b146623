// The block of more than 256 KiB that a thread freed last, kept for its next one of that length.
//
// By way of the page heap it would cost four atomic exchanges, those of its lock, which are two
// fifths of the time of a malloc and its free. A thread that takes blocks of one length, time and
// again, frees one just before it takes the next: that one it keeps. One word says which. The owner
// takes it by an exchange, and so does any other thread: the purge thread where the owner is idle,
// an allocation that finds no memory, a child of a fork.
//
// Kept, the block is in use as far as its page heap is concerned: class, span and generation stay
// as they are. So its pages and what is registered there stay too. Its span says that it is kept,
// so that a second free() of it is found.
//
// Only a thread that frees a large block before most of those that it takes, which are of one
// length, keeps one, and gives it up with the first of another length: else each block goes to the
// page heap at once, which finds a place for the next one among all that is free.
#pragma once

#include <cstdint>

#include "alloc/cache/thread_cache.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {

// A block of the length of the one before adds so much to the score if one was freed meanwhile, and
// takes one away if not. So of two or three blocks that are taken, and then freed, one is kept; of
// more none.
inline constexpr std::uint8_t kScoreOfFreed = 3, kScoreToKeep = 24, kMostScore = 48;

namespace detail {
SliceIndex take_long_block(ThreadCache& cache);
bool keep_long_block(ThreadCache& cache, SliceIndex slice);
}  // namespace detail

// Gives what the cache keeps to its page heap. Any thread, with no lock held.
void drop_long_block(ThreadCache& cache);
// The same in the child of a fork, of a thread that is not there.
void recover_long_block(ThreadCache& cache);
// The same of all caches.
void caches_drop_long_blocks();
// What it has. Any thread: a moment's guess.
std::uint64_t long_block_bytes(const ThreadCache& cache);

// The block that this thread keeps, for one of so many slices that it takes; 0: it has none.
// Inlined, as is the next: where lengths differ nothing more is done.
inline SliceIndex cache_take_long(std::uint32_t slices) {
  ThreadCache& cache = *detail::this_cache;
  if (&cache == &detail::empty_cache) [[unlikely]]
    return 0;
  if (cache.long_slices == slices) return detail::take_long_block(cache);
  cache.long_slices = slices <= kLongestQuick ? static_cast<std::uint8_t>(slices) : 0;
  cache.long_score = 0;
  if (cache.long_block.load(std::memory_order_relaxed) != 0) [[unlikely]]
    drop_long_block(cache);
  return 0;
}
// Keeps the large block at `slice`, which the program frees. False, and nothing done: it is the
// page heap's.
inline bool cache_keep_long(SliceIndex slice) {
  ThreadCache& cache = *detail::this_cache;
  if (cache.most_long_slices == 0) return false;  // or there is no cache
  cache.long_is_freed = true;
  return cache.long_score >= kScoreToKeep && detail::keep_long_block(cache, slice);
}

}  // namespace rdmalloc
