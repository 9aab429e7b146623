// Whether the places of long buffers are kept for buffers (page_heap.h).
#pragma once

#include <sys/single_threaded.h>

#include <atomic>

namespace rdmalloc {

namespace detail {
// Relaxed: a buffer that is freed meanwhile leaves the one or the other.
extern constinit std::atomic<bool> keeps_places;
}  // namespace detail

// From now on long buffers leave retained spans too: the program has, or had, a purge thread, or
// something that may register memory: an observer, a library of a fabric, rdmalloc_init(). Before,
// no place of theirs is worth more than another; what is free is joined, and taken where it fits
// best. The program malloc-large takes 274 MiB at its peak, with places 332. For ever; any thread.
// Inlined: the code that it would lie in is mapped for nothing else as a program starts.
inline void page_heap_keep_places() {
  detail::keeps_places.store(true, std::memory_order_relaxed);
}

// Threads count from libc's word on, which stays when they end: what a purge of another thread has
// in flight lies amid what is free, and blocks laid around it leave less for the next ones.
inline bool page_heap_keeps_places() {
  return __libc_single_threaded == 0 || detail::keeps_places.load(std::memory_order_relaxed);
}

}  // namespace rdmalloc
