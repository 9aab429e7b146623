// The next definition of a function that we stand in front of by its symbol: libc's, patched or
// not.
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace rdmalloc {

template <typename Function>
Function next_of(std::atomic<Function>& found, const char* name) {
  // Relaxed: every thread that looks finds the same function.
  Function function = found.load(std::memory_order_relaxed);
  if (function == nullptr) {
    function = reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
    found.store(function, std::memory_order_relaxed);
  }
  return function;
}

}  // namespace rdmalloc
