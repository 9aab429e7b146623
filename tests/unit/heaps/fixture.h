// SPDX-License-Identifier: BSD-3-Clause
//
// A heap of the user for the length of a test, and questions about it.
#pragma once

#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>

#include <cstddef>
#include <map>
#include <utility>

namespace rdmalloc_test {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

class Heap {
 public:
  explicit Heap(size_t budget_bytes = 0) {
    rdmalloc_heap_attr attr = {};
    attr.size = sizeof attr;
    attr.budget_bytes = budget_bytes;
    EXPECT_EQ(rdmalloc_heap_create(&attr, &heap_), 0);
  }
  explicit Heap(rdmalloc_heap* heap) : heap_(heap) {}
  Heap(Heap&& other) noexcept : heap_(other.release()) {}
  Heap& operator=(Heap&&) = delete;
  ~Heap() {
    if (heap_ != nullptr) {
      EXPECT_EQ(rdmalloc_heap_destroy(heap_), 0);
    }
  }
  rdmalloc_heap* get() const { return heap_; }
  // The caller destroys it, or has done so.
  rdmalloc_heap* release() { return std::exchange(heap_, nullptr); }

  void* malloc(size_t bytes) const { return rdmalloc_heap_malloc(heap_, bytes); }
  void* aligned(size_t alignment, size_t bytes) const {
    return rdmalloc_heap_aligned(heap_, alignment, bytes);
  }
  rdmalloc_heap_counters counters() const {
    rdmalloc_heap_counters counters = {};
    counters.size = sizeof counters;
    EXPECT_EQ(rdmalloc_heap_stats(heap_, &counters), 0);
    return counters;
  }

 private:
  rdmalloc_heap* heap_ = nullptr;
};

inline rdmalloc_range range_of(const void* ptr) {
  rdmalloc_range range = {};
  range.size = sizeof range;
  EXPECT_EQ(rdmalloc_range_of(ptr, &range), 0);
  return range;
}

// Live blocks and their usable bytes; a block that is met twice fails the test.
inline std::map<void*, size_t> walk(rdmalloc_heap* heap) {
  std::map<void*, size_t> blocks;
  EXPECT_EQ(rdmalloc_heap_walk(
                heap,
                [](void* block, size_t bytes, void* arg) {
                  bool is_new =
                      static_cast<std::map<void*, size_t>*>(arg)->emplace(block, bytes).second;
                  EXPECT_TRUE(is_new) << block;
                  return 0;
                },
                &blocks),
            0);
  return blocks;
}

}  // namespace rdmalloc_test
