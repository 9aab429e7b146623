// SPDX-License-Identifier: BSD-3-Clause
//
// Ownership queries, and purging by request: what it returns, keeps and gives back.
// RDMALLOC_PURGE=manual, so that every purge is ours.
#include <errno.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "tests/invariants/page_model.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::PageModel;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

rdmalloc_range range_of(const void* ptr, int expected = 0) {
  rdmalloc_range range = {};
  range.size = sizeof range;
  EXPECT_EQ(rdmalloc_range_of(ptr, &range), expected);
  return range;
}
bool holds(const rdmalloc_range& range, const void* ptr, size_t bytes) {
  auto start = reinterpret_cast<uintptr_t>(range.base), at = reinterpret_cast<uintptr_t>(ptr);
  return at >= start && at + bytes <= start + range.length;
}

TEST(Ranges, a_block_lies_in_the_range_that_is_told_of_each_of_its_bytes) {
  for (size_t bytes = 1; bytes <= 40 * kMiB; bytes = bytes * 7 / 4 + 1) {
    auto* block = static_cast<char*>(rdmalloc_malloc(bytes));
    size_t usable = rdmalloc_malloc_usable_size(block);
    for (size_t at : {size_t{0}, usable / 2, usable - 1}) {
      EXPECT_TRUE(rdmalloc_owns(block + at));
      rdmalloc_range range = range_of(block + at);
      EXPECT_TRUE(holds(range, block, usable)) << bytes;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(range.base) % RDMALLOC_SLICE_BYTES, 0u);
      EXPECT_EQ(range.length % RDMALLOC_SLICE_BYTES, 0u);
      bool slab = (range.flags & RDMALLOC_RANGE_SLAB) != 0;
      bool large = (range.flags & RDMALLOC_RANGE_LARGE) != 0;
      EXPECT_NE(slab, large) << bytes;
      EXPECT_EQ(range.block_bytes, large ? range.length : usable) << bytes;
      EXPECT_FALSE(rdmalloc_range_is_idle(block + at, 1));
      EXPECT_FALSE(rdmalloc_range_is_idle(range.base, range.length));
    }
    rdmalloc_free(block);
  }
}

TEST(Ranges, I14_what_is_not_ours_is_an_error) {
  int local = 0;
  static int global;
  void* map = mmap(nullptr, kMiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  void* foreign = malloc(100);
  for (const void* ptr : {static_cast<const void*>(&local), static_cast<const void*>(&global),
                          static_cast<const void*>(map), static_cast<const void*>(foreign),
                          static_cast<const void*>(nullptr), reinterpret_cast<const void*>(16),
                          reinterpret_cast<const void*>(UINTPTR_MAX)}) {
    EXPECT_FALSE(rdmalloc_owns(ptr)) << ptr;
    range_of(ptr, -EFAULT);
    EXPECT_TRUE(rdmalloc_range_is_idle(ptr, 1)) << ptr;
  }
  free(foreign);
  munmap(map, kMiB);
  void* block = rdmalloc_malloc(100);
  rdmalloc_range range = {};
  EXPECT_EQ(rdmalloc_range_of(block, &range), -EINVAL) << "size 0";
  EXPECT_EQ(rdmalloc_range_of(block, nullptr), -EINVAL);
  EXPECT_EQ(rdmalloc_range_foreach(nullptr, nullptr), -EINVAL);
  rdmalloc_free(block);
}

TEST(Ranges, a_freed_large_range_is_idle_and_not_listed) {
  void* block = rdmalloc_malloc(8 * kMiB);
  rdmalloc_range range = range_of(block);
  rdmalloc_free(block);
  range_of(block, -EFAULT);
  EXPECT_TRUE(rdmalloc_range_is_idle(range.base, range.length));
}

// Fails when the blocks at the ends of the range are not looked at, and when what is live in
// between is not.
TEST(Ranges, a_range_is_free_when_no_block_in_use_touches_it) {
  constexpr size_t kBlock = 3072, kBlocks = 400;
  std::vector<char*> blocks;
  for (size_t i = 0; i < kBlocks; i++)
    blocks.push_back(static_cast<char*>(rdmalloc_malloc(kBlock)));
  std::sort(blocks.begin(), blocks.end());
  std::vector<bool> is_live(kBlocks, true);
  std::mt19937 random(5);
  for (size_t i = 0; i < kBlocks; i++) {
    if (random() % 4 == 0) continue;
    rdmalloc_free(blocks[i]);
    is_live[i] = false;
  }
  EXPECT_FALSE(std::all_of(blocks.begin(), blocks.end(),
                           [](char* block) { return rdmalloc_range_is_free(block, kBlock); }));
  rdmalloc_caches_flush();
  for (size_t i = 0; i + 8 < kBlocks; i++) {
    size_t last = i + random() % 8;
    // Blocks of one slab lie one behind the other.
    if (blocks[last] != blocks[i] + (last - i) * kBlock) continue;
    bool is_free = std::none_of(is_live.begin() + static_cast<ptrdiff_t>(i),
                                is_live.begin() + static_cast<ptrdiff_t>(last) + 1,
                                [](bool live) { return live; });
    char *low = blocks[i] + random() % kBlock, *high = blocks[last] + 1 + random() % kBlock;
    if (low >= high) continue;
    EXPECT_EQ(rdmalloc_range_is_free(low, static_cast<size_t>(high - low)), is_free) << i;
  }
  for (size_t i = 0; i < kBlocks; i++)
    if (is_live[i]) rdmalloc_free(blocks[i]);
  // Over several spans: slabs that are free or empty by now, and a large block that lives.
  rdmalloc_caches_flush();
  EXPECT_TRUE(rdmalloc_range_is_free(blocks.front(),
                                     static_cast<size_t>(blocks.back() + 1 - blocks.front())));
  char* large = static_cast<char*>(rdmalloc_malloc(kMiB));
  EXPECT_FALSE(rdmalloc_range_is_free(large + 1000, 1));
  rdmalloc_free(large);
  EXPECT_TRUE(rdmalloc_range_is_free(large + 1000, 1));
}

// Fails when the end of the range wraps: then it lies before the start, and nothing is looked at.
TEST(Ranges, a_range_that_wraps_ends_with_the_address_space) {
  uintptr_t base = 0;
  size_t extent = 0;
  ASSERT_EQ(rdmalloc_arena_extent(&base, &extent), 0);
  auto* block = static_cast<char*>(rdmalloc_malloc(kMiB));
  auto address = reinterpret_cast<uintptr_t>(block);
  for (size_t length : {SIZE_MAX, SIZE_MAX - address, 0 - address, 1 - address, kMiB - address}) {
    EXPECT_FALSE(rdmalloc_range_is_idle(block, length)) << length;
    EXPECT_FALSE(rdmalloc_range_is_free(block, length)) << length;
  }
  auto* low = reinterpret_cast<const void*>(uintptr_t{4096});
  EXPECT_FALSE(rdmalloc_range_is_idle(low, SIZE_MAX));
  EXPECT_FALSE(rdmalloc_range_is_free(low, SIZE_MAX));
  auto* behind = reinterpret_cast<const void*>(base + extent);
  EXPECT_TRUE(rdmalloc_range_is_idle(behind, SIZE_MAX));
  EXPECT_TRUE(rdmalloc_range_is_free(behind, SIZE_MAX));
  rdmalloc_free(block);
}

TEST(Ranges, generations_never_repeat_for_an_address) {
  std::vector<uint64_t> seen;
  for (int round = 0; round < 200; round++) {
    void* block = rdmalloc_malloc(6 * kMiB);
    memset(block, 1, 4096);
    seen.push_back(range_of(block).generation);
    rdmalloc_free(block);
    if (round % 3 == 0) rdmalloc_purge(0);
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end()) << "a generation came twice";
}

TEST(Ranges, the_walk_sees_every_block_in_use_by_rising_address) {
  std::vector<std::pair<char*, size_t>> blocks;
  for (size_t bytes = 16; bytes <= 20 * kMiB; bytes = bytes * 3 / 2) {
    auto* block = static_cast<char*>(rdmalloc_malloc(bytes));
    blocks.emplace_back(block, bytes);
  }
  std::vector<rdmalloc_range> ranges;
  auto note = [](const rdmalloc_range* range, void* arg) {
    static_cast<std::vector<rdmalloc_range>*>(arg)->push_back(*range);
    return 0;
  };
  ASSERT_EQ(rdmalloc_range_foreach(note, &ranges), 0);
  for (auto& [block, bytes] : blocks) {
    char* start = block;
    size_t length = bytes;
    EXPECT_TRUE(std::any_of(ranges.begin(), ranges.end(), [&](const rdmalloc_range& range) {
      return holds(range, start, length);
    })) << bytes;
  }
  for (size_t i = 1; i < ranges.size(); i++) {
    uintptr_t end = reinterpret_cast<uintptr_t>(ranges[i - 1].base) + ranges[i - 1].length;
    EXPECT_GE(reinterpret_cast<uintptr_t>(ranges[i].base), end) << "ranges overlap or fall";
  }
  int calls = 0;
  auto stop_at_third = [](const rdmalloc_range*, void* arg) {
    return ++*static_cast<int*>(arg) == 3 ? 77 : 0;
  };
  EXPECT_EQ(rdmalloc_range_foreach(stop_at_third, &calls), 77);
  EXPECT_EQ(calls, 3);
  for (auto& [block, bytes] : blocks) rdmalloc_free(block);
}

TEST(Ranges, the_extent_is_fixed_and_holds_all_blocks) {
  uintptr_t base = 0, base_again = 0;
  size_t length = 0, length_again = 0;
  ASSERT_EQ(rdmalloc_arena_extent(&base, &length), 0);
  for (int i = 0; i < 100; i++) {
    void* block = rdmalloc_malloc(static_cast<size_t>(i) * kMiB + 1);
    auto at = reinterpret_cast<uintptr_t>(block);
    EXPECT_TRUE(at >= base && at + static_cast<size_t>(i) * kMiB < base + length);
    rdmalloc_free(block);
  }
  ASSERT_EQ(rdmalloc_arena_extent(&base_again, &length_again), 0);
  EXPECT_EQ(base_again, base);
  EXPECT_EQ(length_again, length);
}

// ------------------------------------------------------------------ purging by request

TEST(Purge, returns_the_bytes_it_gave_back_and_rss_falls_by_them) {
  PageModel model;
  rdmalloc_purge(0);
  size_t purged_before = model.purged_bytes;
  uint64_t counted_before = counter("stats.purged_bytes");
  std::vector<void*> blocks;
  for (int i = 0; i < 64; i++) {
    blocks.push_back(rdmalloc_malloc(kMiB));
    memset(blocks.back(), 1, kMiB);
  }
  size_t full = rdmalloc_test::resident_bytes();
  for (void* block : blocks) rdmalloc_free(block);
  EXPECT_GE(counter("stats.dirty_bytes"), 60 * kMiB);
  int64_t purged = rdmalloc_purge(0);
  EXPECT_GE(purged, static_cast<int64_t>(60 * kMiB));
  EXPECT_EQ(static_cast<size_t>(purged), model.purged_bytes - purged_before);
  EXPECT_EQ(static_cast<uint64_t>(purged), counter("stats.purged_bytes") - counted_before);
  EXPECT_EQ(counter("stats.dirty_bytes"), 0u);
  EXPECT_LT(rdmalloc_test::resident_bytes() + 50 * kMiB, full);
  EXPECT_EQ(rdmalloc_purge(0), 0) << "nothing was left";
  EXPECT_EQ(model.reasons[RDMALLOC_PURGE_REQUEST], model.purges);
}

TEST(Purge, keeps_what_it_is_told_to_keep) {
  std::vector<void*> blocks;
  for (int i = 0; i < 64; i++) {
    blocks.push_back(rdmalloc_malloc(kMiB));
    memset(blocks.back(), 1, kMiB);
    if (i % 2 == 1) rdmalloc_malloc(70 * kKiB);  // live: the freed ones do not merge into one run
  }
  for (void* block : blocks) rdmalloc_free(block);
  ASSERT_GE(rdmalloc_purge(20 * kMiB), 0);
  EXPECT_LE(counter("stats.dirty_bytes"), 20 * kMiB);
  EXPECT_GT(counter("stats.dirty_bytes"), 10 * kMiB) << "gave back much more than asked";
  EXPECT_EQ(rdmalloc_purge(100 * kMiB), 0);
  rdmalloc_purge(0);
}

TEST(Purge, small_blocks_are_given_back_too) {
  rdmalloc_purge(0);
  std::vector<void*> blocks;
  for (int i = 0; i < 400000; i++) {
    blocks.push_back(rdmalloc_malloc(100));
    memset(blocks.back(), 1, 100);
  }
  size_t full = rdmalloc_test::resident_bytes();
  for (void* block : blocks) rdmalloc_free(block);
  EXPECT_GE(rdmalloc_purge(0), static_cast<int64_t>(36 * kMiB));
  EXPECT_LT(rdmalloc_test::resident_bytes() + 30 * kMiB, full);
}

TEST(Purge, pauses_nest) {
  auto* block = rdmalloc_malloc(4 * kMiB);
  memset(block, 1, 4 * kMiB);
  rdmalloc_free(block);
  ASSERT_EQ(rdmalloc_purge_pause(), 0);
  EXPECT_EQ(rdmalloc_purge(0), -EBUSY);
  ASSERT_EQ(rdmalloc_purge_pause(), 0);
  ASSERT_EQ(rdmalloc_purge_resume(), 0);
  EXPECT_EQ(rdmalloc_purge(0), -EBUSY);
  ASSERT_EQ(rdmalloc_purge_resume(), 0);
  EXPECT_GE(rdmalloc_purge(0), static_cast<int64_t>(4 * kMiB));
  EXPECT_EQ(rdmalloc_purge_resume(), -EALREADY);
}

TEST(Purge, a_pause_waits_for_the_purge_under_way_and_holds_the_next) {
  std::atomic<int> inside{0};
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.purge = [](void* arg, void*, size_t, rdmalloc_purge_reason) {
    static_cast<std::atomic<int>*>(arg)->store(1);
    usleep(500);
    return 0;
  };
  ops.purged = [](void* arg, void*, size_t, int) { static_cast<std::atomic<int>*>(arg)->store(0); };
  rdmalloc_observer* observer = nullptr;
  ASSERT_EQ(rdmalloc_observer_add(&ops, &inside, &observer), 0);
  std::atomic<bool> stop{false};
  std::thread purger([&] {
    while (!stop.load()) {
      void* block = rdmalloc_malloc(kMiB);
      memset(block, 1, 4096);
      rdmalloc_free(block);
      rdmalloc_purge(0);
    }
  });
  for (int round = 0; round < 200; round++) {
    ASSERT_EQ(rdmalloc_purge_pause(), 0);
    for (int look = 0; look < 5; look++) {
      ASSERT_EQ(inside.load(), 0) << "a purge is under way in a pause";
      usleep(100);
    }
    ASSERT_EQ(rdmalloc_purge_resume(), 0);
    usleep(100);
  }
  stop = true;
  purger.join();
  EXPECT_EQ(rdmalloc_observer_remove(observer), 0);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
