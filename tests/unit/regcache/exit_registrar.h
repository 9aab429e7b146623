// What a test tells the registrar of exit_registrar.cc, and what that has seen.
#pragma once

#include <rdmalloc/regcache.h>

#include <atomic>

struct ExitRegistrar {
  rdmalloc_registrar_ops ops;
  void* unmapped_at_end;
  std::size_t unmapped_bytes;
  unsigned slow_us;  // of a deregistration
  bool holds_first;  // the first deregistration ends once the program closes the domain, and waits
  std::atomic<bool> is_closing;
  std::atomic<int> deregistrations, late;
  std::atomic<bool> is_over;
};
ExitRegistrar* exit_registrar();
