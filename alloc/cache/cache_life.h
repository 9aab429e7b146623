// Caches of threads: how one is made at a thread's first malloc, found at its later ones, and ends
// with it.
#pragma once

#include "alloc/cache/thread_cache.h"

namespace rdmalloc {

// The calling thread's cache; nullptr when it has none (before it is made, after its end, or when
// no metadata is to be had): the caller then works on the slabs directly.
inline ThreadCache* cache_of_this_thread() {
  ThreadCache* cache = detail::this_cache;
  return cache == &detail::empty_cache ? nullptr : cache;
}
ThreadCache* make_cache();  // likewise, of a thread that has none yet
// The calling thread's cache, for a free.
ThreadCache* cache_to_free_into();

}  // namespace rdmalloc
