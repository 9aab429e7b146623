// For programs under the verbs shim and the stub of libibverbs (stub_ibverbs.cc).
#pragma once

#include <infiniband/verbs.h>
#include <rdmalloc/regcache.h>
#include <stdio.h>
#include <stdlib.h>

#include <cstddef>

#undef ibv_reg_mr

extern "C" unsigned long stub_ibverbs_registrations, stub_ibverbs_count, stub_ibverbs_most;

constexpr std::size_t kBytes = 100000;

inline void check(bool is_right, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (is_right) return;
  fprintf(stderr, "%s:%d is not so\n", file, line);
  exit(1);
}

// A registrar of the program's own, which registers nothing.
inline rdmalloc_registrar_ops own_registrar() {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "own";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) { return 0; };
  ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
  return ops;
}
