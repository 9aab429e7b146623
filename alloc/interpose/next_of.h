// The next definition of a function that we stand in front of by its symbol: libc's, patched or
// not. A constructor of each file finds what it needs (RDMALLOC_FINDS): dlsym() takes the loader's
// lock, which a dlopen() holds while a library's constructor waits for the thread that calls us,
// and it is not safe in a signal handler. Where another library's constructor runs before ours, and
// makes a thread, all is found then: no other thread has the loader's lock yet.
#pragma once

#include <atomic>

#include "alloc/core/next_definition.h"

namespace rdmalloc {

template <typename Function>
Function next_of(std::atomic<Function>& found, const char* name) {
  // Relaxed: every thread that looks finds the same function.
  Function function = found.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<Function>(next_definition(name));
    found.store(function, std::memory_order_relaxed);
  }
  return function;
}

}  // namespace rdmalloc

// Begins the definition of a function that looks for what its file needs.
#define RDMALLOC_FINDS(rdmalloc_finder)                                                    \
  [[gnu::constructor]] void rdmalloc_finder();                                             \
  [[gnu::used,                                                                             \
    gnu::section("rdmalloc_finders")]] void (*const volatile rdmalloc_finder##_listed)() = \
      rdmalloc_finder;                                                                     \
  void rdmalloc_finder()
