// What the tests of pools share: a strict registrar over the real allocator, and short words.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/regcache/stub_fabric.h"

class PoolTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kPage = 4096;
  static constexpr std::uint32_t kNone = RDMALLOC_POOL_NONE;

  void TearDown() override { EXPECT_EQ(fabric.errors, 0) << "deregistered what is not there"; }
  static rdmalloc_pool_attr sizes(std::size_t small_bytes, std::uint32_t small_count,
                                  std::size_t large_bytes = 0, std::uint32_t large_count = kNone) {
    rdmalloc_pool_attr attr = {};
    attr.size = sizeof attr;
    attr.small_bytes = small_bytes;
    attr.small_count = small_count;
    attr.large_bytes = large_bytes;
    attr.large_count = large_count;
    return attr;
  }
  static rdmalloc_pool* make(StubDomain& domain, const rdmalloc_pool_attr& attr) {
    rdmalloc_pool* pool = nullptr;
    EXPECT_EQ(rdmalloc_pool_create(&domain.handle, 1, &attr, &pool), 0);
    return pool;
  }
  static rdmalloc_buffer* get(rdmalloc_pool* pool, std::size_t bytes) {
    rdmalloc_buffer* buffer = nullptr;
    return rdmalloc_pool_get(pool, bytes, &buffer) == 0 ? buffer : nullptr;
  }
  static std::vector<rdmalloc_buffer*> get_all(rdmalloc_pool* pool, std::size_t bytes) {
    std::vector<rdmalloc_buffer*> all;
    while (rdmalloc_buffer* buffer = get(pool, bytes)) all.push_back(buffer);
    return all;
  }
  static void put_all(rdmalloc_pool* pool, const std::vector<rdmalloc_buffer*>& all) {
    for (rdmalloc_buffer* buffer : all) EXPECT_EQ(rdmalloc_pool_put(pool, buffer), 0);
  }
  static rdmalloc_pool_counters counters(rdmalloc_pool* pool) {
    rdmalloc_pool_counters now = {};
    now.size = sizeof now;
    EXPECT_EQ(rdmalloc_pool_stats(pool, &now), 0);
    return now;
  }

  StubFabric fabric;
};
