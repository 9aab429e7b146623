// What the tests of registered heaps share: a strict registrar over the real allocator, short
// words.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "alloc/pages/page_heap.h"
#include "tests/support/process.h"
#include "tests/unit/regcache/stub_fabric.h"

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr std::uint32_t kRemote =
    RDMALLOC_ACCESS_LOCAL | RDMALLOC_ACCESS_REMOTE_READ | RDMALLOC_ACCESS_REMOTE_WRITE;

class RegisteredHeaps : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(fabric.errors, 0) << "deregistered what is not there";
    EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  }
  // Creates a heap; the error is in `last_error`.
  rdmalloc_heap* make(const std::vector<rdmalloc_domain*>& domains, std::size_t budget_bytes,
                      std::uint32_t access = kRemote) {
    rdmalloc_heap_attr attr = {};
    attr.size = sizeof attr;
    attr.budget_bytes = budget_bytes;
    attr.domains = domains.data();
    attr.domain_count = domains.size();
    attr.access = access;
    rdmalloc_heap* heap = nullptr;
    last_error = rdmalloc_heap_create(&attr, &heap);
    return heap;
  }
  static rdmalloc_heap_region_info region(rdmalloc_heap* heap, std::size_t index) {
    rdmalloc_heap_region_info info = {};
    info.size = sizeof info;
    EXPECT_EQ(rdmalloc_heap_region(heap, index, &info), 0);
    return info;
  }
  static rdmalloc_heap_counters counters(rdmalloc_heap* heap) {
    rdmalloc_heap_counters now = {};
    now.size = sizeof now;
    EXPECT_EQ(rdmalloc_heap_stats(heap, &now), 0);
    return now;
  }
  // Blocks of 100 KB until there is no room.
  static std::vector<void*> fill(rdmalloc_heap* heap, std::size_t bytes = 100 * kKiB) {
    std::vector<void*> blocks;
    while (void* block = rdmalloc_heap_malloc(heap, bytes)) {
      std::memset(block, 7, bytes);
      blocks.push_back(block);
    }
    return blocks;
  }
  // Whether anything but blocks of `heap` lies in what is registered.
  void expect_only(rdmalloc_heap* heap) const {
    struct Look {
      std::vector<StubFabric::Entry> entries;
      rdmalloc_heap* heap;
      int foreign_spans = 0;
    } look{fabric.entries(), heap};
    rdmalloc_range_foreach(
        [](const rdmalloc_range* range, void* arg) {
          auto* my = static_cast<Look*>(arg);
          auto* base = static_cast<char*>(range->base);
          for (const StubFabric::Entry& entry : my->entries)
            if (base < entry.base + entry.length && base + range->length > entry.base &&
                range->heap != my->heap)
              ++my->foreign_spans;
          return 0;
        },
        &look);
    EXPECT_EQ(look.foreign_spans, 0) << "memory of others in a registered range";
  }
  // Whether a device would let this key into all of the block. (Spans are cut in the range as
  // blocks come and go, so the generation that the stub compares is none of the pages'.)
  static bool reaches(const StubFabric& stub, const rdmalloc_key& key, const void* block,
                      std::size_t bytes) {
    StubFabric::Use use = stub.use(key, block, bytes);
    return use != StubFabric::Use::kNoSuchKey && use != StubFabric::Use::kOutOfRange;
  }
  template <class Body>
  static int in_child(Body body) {
    pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  StubFabric fabric;
  int last_error = 0;
};
