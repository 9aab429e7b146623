// SPDX-License-Identifier: BSD-3-Clause
//
// A domain of a registrar that registers nothing, for heaps that want one.
#pragma once

#include <gtest/gtest.h>
#include <rdmalloc/regcache.h>

namespace rdmalloc_test {

inline rdmalloc_domain* open_domain() {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "none";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) { return 0; };
  ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
  rdmalloc_domain* domain = nullptr;
  EXPECT_EQ(rdmalloc_domain_open(&ops, nullptr, nullptr, &domain), 0);
  return domain;
}

}  // namespace rdmalloc_test
