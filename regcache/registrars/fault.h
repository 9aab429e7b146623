// Fault sites of registrars, which are libraries of their own: RDMALLOC_FAULT makes a call that one
// of them is about to make fail as if the fabric had refused (alloc/os/fault.h).
#pragma once

#include <cstddef>
#include <cstdlib>

extern "C" int rdmalloc_fault_is_due(const char* site);

namespace rdmalloc::registrars {

// By a name of alloc/os/fault_sites.h.
inline bool should_fail(const char* site) {
  return rdmalloc_fault_is_due(site) != 0;
}

// Zeroed memory of a registrar's own.
template <class T>
T* allocate(std::size_t count = 1) {
  if (should_fail("registrar_memory")) return nullptr;
  // NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers is meant where T is one.
  return static_cast<T*>(std::calloc(count, sizeof(T)));
}

}  // namespace rdmalloc::registrars
