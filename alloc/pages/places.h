// Whether the places of buffers are kept for buffers (page_heap.h).
#pragma once

#include <atomic>

namespace rdmalloc {

namespace detail {
// Relaxed: a buffer that is freed meanwhile leaves the one or the other.
extern constinit std::atomic<bool> keeps_places;
}  // namespace detail

// From now on buffers leave retained spans: the program has threads, or something that may register
// memory: an observer, a library of a fabric, rdmalloc_init(). Before, no place is worth more than
// another; what is free is joined, and taken where it fits best. The program malloc-large takes 274
// MiB at its peak, with places 332. With threads a block that comes back finds its first page
// there: 64 of them that replace 256 KiB to 1 MiB touch 18 MiB, without places 24. For ever; any
// thread.
// Inlined: the code that it would lie in is mapped for nothing else as a program starts.
inline void page_heap_keep_places() {
  detail::keeps_places.store(true, std::memory_order_relaxed);
}

}  // namespace rdmalloc
