// SPDX-License-Identifier: BSD-3-Clause
//
// Rests in the depot: the magazine of each class that is not full.
//
// Seen to fail: all but the bound with the blocks of a second partial magazine forgotten; the bound
// with one taken in whatever is there; ageing with one that stays.
#include "alloc/cache/depot.h"

#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "alloc/slabs/slab.h"
#include "tests/support/counters.h"

namespace {

using rdmalloc::depot_blocks;
using rdmalloc::depot_put_partial;
using rdmalloc::depot_take;
using rdmalloc::depot_take_partial;
using rdmalloc::Magazine;

constexpr unsigned kShard = 0;
const unsigned kClass = rdmalloc::class_of(64);
const std::uint32_t kMost = rdmalloc::class_info(kClass).magazine_max;

// Nobody else of this process has to do with the class, and there is no purge thread, so that this
// one may call what is for whoever has the purge turn.
class Depot : public testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_free(rdmalloc_malloc(1000));
    ASSERT_EQ(rdmalloc_test::counter("stats.purge_thread_runs"), 0u);
    rdmalloc::depot_age(true);
  }
  void TearDown() override {
    rdmalloc::depot_age(true);
    EXPECT_EQ(depot_blocks(kClass), 0u);
  }
};

Magazine* with_blocks(std::uint32_t count) {
  Magazine* magazine = rdmalloc::depot_take_empty(kShard);
  magazine->count = rdmalloc::slab_take(kShard, kClass, magazine->slots, count);
  EXPECT_EQ(magazine->count, count);
  return magazine;
}

std::vector<void*> blocks_of(const Magazine* magazine) {
  return {magazine->slots, magazine->slots + magazine->count};
}

void give_back(Magazine* magazine) {
  rdmalloc::slab_give_back(kClass, magazine->slots, magazine->count);
  magazine->count = 0;
  rdmalloc::depot_put_empty(kShard, magazine);
}

// All that the depot has of the class, back to the slabs.
std::vector<void*> take_all() {
  std::vector<void*> all;
  for (Magazine* magazine = nullptr; (magazine = depot_take(kShard, kClass)) != nullptr ||
                                     (magazine = depot_take_partial(kShard, kClass)) != nullptr;) {
    std::vector<void*> blocks = blocks_of(magazine);
    all.insert(all.end(), blocks.begin(), blocks.end());
    give_back(magazine);
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST_F(Depot, partial_magazines_gather_until_one_is_full) {
  std::vector<void*> put;
  std::uint32_t count = 0;
  for (std::uint32_t i = 1; i < 40; i++) {
    Magazine* partial = with_blocks(i % kMost + 1);
    std::vector<void*> blocks = blocks_of(partial);
    put.insert(put.end(), blocks.begin(), blocks.end());
    count += partial->count;
    ASSERT_TRUE(depot_put_partial(kShard, kClass, partial));
    EXPECT_EQ(depot_blocks(kClass), count);
  }
  Magazine* partial = depot_take_partial(kShard, kClass);
  std::uint32_t left = partial == nullptr ? 0 : partial->count;
  EXPECT_EQ(left, count % kMost) << "the others are full";
  if (partial != nullptr) {
    EXPECT_TRUE(depot_put_partial(kShard, kClass, partial));
  }
  std::sort(put.begin(), put.end());
  EXPECT_EQ(take_all(), put);
}

TEST_F(Depot, a_partial_magazine_counts_against_the_bound_of_the_depot) {
  for (int i = 0; i < rdmalloc::class_info(kClass).depot_max; i++)
    ASSERT_TRUE(rdmalloc::depot_put(kShard, kClass, with_blocks(kMost)));
  Magazine* partial = with_blocks(3);
  EXPECT_FALSE(depot_put_partial(kShard, kClass, partial));
  EXPECT_EQ(partial->count, 3u) << "the caller's still";
  EXPECT_EQ(depot_take_partial(kShard, kClass), nullptr);
  give_back(partial);
}

TEST_F(Depot, a_partial_magazine_in_no_demand_ages_as_full_magazines_do) {
  ASSERT_TRUE(depot_put_partial(kShard, kClass, with_blocks(5)));
  EXPECT_TRUE(rdmalloc::depot_age(false)) << "seen for the first time";
  ASSERT_TRUE(depot_put_partial(kShard, kClass, with_blocks(2)));
  EXPECT_TRUE(rdmalloc::depot_age(false)) << "it has changed";
  EXPECT_EQ(depot_blocks(kClass), 7u);
  EXPECT_FALSE(rdmalloc::depot_is_empty());
  EXPECT_FALSE(rdmalloc::depot_age(false));
  EXPECT_EQ(depot_blocks(kClass), 0u);
  EXPECT_TRUE(rdmalloc::depot_is_empty());
}

TEST_F(Depot, no_block_is_lost_or_doubled_between_threads) {
  constexpr int kThreads = 4, kRounds = 300000;
  std::atomic<std::uint32_t> kept{0};
  std::vector<std::thread> threads;
  for (std::uint32_t number = 1; number <= kThreads; number++) {
    threads.emplace_back([&, number] {
      Magazine* mine = with_blocks(number * 7);
      kept += mine->count;
      std::uint32_t random = number;
      for (int i = 0; i < kRounds; i++) {
        random = random * 1664525 + 1013904223;
        if (mine != nullptr && mine->count != 0 && depot_put_partial(kShard, kClass, mine)) {
          mine = nullptr;
        } else if (mine == nullptr) {
          mine = depot_take_partial(kShard, kClass);
          if (mine == nullptr && random >> 31 != 0) mine = depot_take(kShard, kClass);
        }
      }
      if (mine != nullptr) {
        while (!depot_put_partial(kShard, kClass, mine)) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<void*> all = take_all();
  EXPECT_EQ(all.size(), kept);
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

}  // namespace
