// SPDX-License-Identifier: BSD-3-Clause
//
// The depot: the magazine of each class that is not full, and what idle classes give up.
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

// No other thread of this process has to do with the class, and there is no purge thread, so that
// this one may call what is for the holder of the purge turn.
class Depot : public testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_free(rdmalloc_malloc(1000));
    ASSERT_EQ(rdmalloc_test::counter("stats.purge_thread_runs"), 0u);
    rdmalloc::depot_age(true);
  }
  void TearDown() override {
    rdmalloc::depot_age(true);
    EXPECT_TRUE(rdmalloc::depot_is_empty());
  }
};

Magazine* with_blocks(std::uint32_t count, unsigned size_class = kClass) {
  Magazine* magazine = rdmalloc::depot_take_empty(kShard);
  magazine->count = rdmalloc::slab_take(kShard, size_class, magazine->slots, count);
  EXPECT_EQ(magazine->count, count);
  return magazine;
}

std::vector<void*> blocks_of(const Magazine* magazine) {
  return {magazine->slots, magazine->slots + magazine->count};
}

void give_back(Magazine* magazine, unsigned size_class = kClass) {
  rdmalloc::slab_give_back(size_class, magazine->slots, magazine->count);
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

// What a thread puts that keeps its magazine, and what one gives back that took a part. Seen to
// fail with a full magazine put as a partial one, and with what does not fit forgotten.
TEST_F(Depot, some_blocks_gather_as_partial_magazines_do) {
  uint64_t live = rdmalloc_test::counter("stats.live_bytes");
  std::vector<void*> put;
  std::uint32_t count = 0;
  Magazine* keeper = rdmalloc::depot_take_empty(kShard);
  for (std::uint32_t i = 1; i < 40; i++) {
    keeper->count = rdmalloc::slab_take(kShard, kClass, keeper->slots, i % 20 + 1);
    std::vector<void*> blocks = blocks_of(keeper);
    std::uint32_t room = kMost - count % kMost, got = keeper->count;
    rdmalloc::depot_put_some(kShard, kClass, keeper);
    EXPECT_EQ(keeper->count, 0u) << "it is the caller's, and empty";
    // What does not fit went to the slabs.
    std::uint32_t stayed = got < room ? got : room;
    count += stayed;
    put.insert(put.end(), blocks.end() - stayed, blocks.end());
    EXPECT_EQ(depot_blocks(kClass), count);
  }
  // A part of a magazine is taken, and the rest of it given back.
  Magazine* full = depot_take(kShard, kClass);
  ASSERT_NE(full, nullptr);
  Magazine* part = rdmalloc::depot_take_empty(kShard);
  part->count = 3;
  full->count -= 3;
  std::copy_n(full->slots + full->count, 3, part->slots);
  rdmalloc::depot_put_back(kShard, kClass, full);
  EXPECT_EQ(depot_blocks(kClass), count - 3);
  rdmalloc::depot_put_some(kShard, kClass, part);
  EXPECT_EQ(depot_blocks(kClass), count);
  rdmalloc::depot_put_empty(kShard, part);
  std::sort(put.begin(), put.end());
  EXPECT_EQ(take_all(), put);
  EXPECT_EQ(rdmalloc_test::counter("stats.live_bytes"), live) << "none is lost";
  rdmalloc::depot_put_empty(kShard, keeper);
}

// Of long blocks a magazine is whole with fewer blocks than it may have, and a thread that takes a
// part may leave more than that. Seen to fail with such a one as a partial one, of which nothing
// bounded what others then put there: they wrote beyond its slots.
TEST_F(Depot, what_is_left_of_a_long_magazine_is_filled_no_further) {
  for (size_t bytes : {4096, 8192, 16384, 32768}) {
    const unsigned size_class = rdmalloc::class_of(bytes);
    const rdmalloc::ClassInfo& info = rdmalloc::class_info(size_class);
    ASSERT_LT(info.whole, info.magazine_max);
    uint64_t live = rdmalloc_test::counter("stats.live_bytes");
    rdmalloc::depot_put_back(kShard, size_class, with_blocks(info.whole + 2, size_class));
    uint32_t count = info.whole + 2;
    for (int i = 0; i < 10; i++, count += 2) {
      Magazine* some = with_blocks(2, size_class);
      rdmalloc::depot_put_some(kShard, size_class, some);
      rdmalloc::depot_put_empty(kShard, some);
    }
    while (Magazine* partial = depot_take_partial(kShard, size_class)) {
      EXPECT_LT(partial->count, info.whole) << bytes;
      count -= partial->count;
      give_back(partial, size_class);
    }
    while (Magazine* whole = depot_take(kShard, size_class)) {
      EXPECT_LE(whole->count, info.magazine_max) << bytes;
      count -= whole->count;
      give_back(whole, size_class);
    }
    EXPECT_EQ(count, 0u);
    EXPECT_EQ(rdmalloc_test::counter("stats.live_bytes"), live);
  }
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

// ---- what an idle class has goes down as others are used (depot_look) ----
//
// Seen to fail: the first without the halving, and with a round that never counts; the second with
// the bound left out; the third with the tag not compared; the last with nothing trimmed.

Magazine* full_of(unsigned size_class) {
  const rdmalloc::ClassInfo& info = rdmalloc::class_info(size_class);
  Magazine* magazine = rdmalloc::depot_take_empty(kShard);
  magazine->count = rdmalloc::slab_take(kShard, size_class, magazine->slots, info.magazine_max);
  EXPECT_EQ(magazine->count, info.magazine_max);
  return magazine;
}
void fill(unsigned size_class) {
  for (int i = 0; i < rdmalloc::class_info(size_class).depot_max; i++)
    ASSERT_TRUE(rdmalloc::depot_put(kShard, size_class, full_of(size_class)));
}
std::uint64_t bytes_of(unsigned size_class) {
  return depot_blocks(size_class) * rdmalloc::class_info(size_class).block_bytes;
}
void look_round() {
  while (!rdmalloc::depot_look(kShard)) continue;
}
const unsigned kMany[] = {rdmalloc::class_of(64), rdmalloc::class_of(512), rdmalloc::class_of(2048),
                          rdmalloc::class_of(8192)};

TEST_F(Depot, idle_classes_shrink_to_the_bound_of_all) {
  for (unsigned c : kMany) fill(c);
  for (int round = 0; round < 12; round++) look_round();
  std::uint64_t all = 0;
  for (unsigned c : kMany) all += bytes_of(c);
  EXPECT_LE(all, rdmalloc::kDepotIdleBytes);
}

// The looker is a free. Seen to fail with half of a class at once: 16,306 blocks of 64 bytes.
TEST_F(Depot, a_look_gives_one_magazine_up_at_most) {
  auto all_blocks = [] {
    std::uint64_t all = 0;
    for (unsigned c : kMany) all += depot_blocks(c);
    return all;
  };
  for (unsigned c : kMany) fill(c);
  std::uint64_t before = all_blocks();
  for (int looks = 0; looks < 1000; looks++) {
    std::uint64_t was = all_blocks();
    rdmalloc::depot_look(kShard);
    ASSERT_LE(was - all_blocks(), rdmalloc::kMagazineSlots);
  }
  EXPECT_LT(all_blocks(), before / 2);
}

// Seen to fail where only a partial magazine of up to 32 KiB went.
TEST_F(Depot, an_idle_class_gives_up_a_large_partial_magazine_too) {
  const unsigned large = rdmalloc::class_of(32768);
  Magazine* partial = full_of(large);
  rdmalloc::slab_give_back(large, partial->slots + 3, partial->count - 3);
  partial->count = 3;
  ASSERT_TRUE(depot_put_partial(kShard, large, partial));
  for (unsigned c : kMany) fill(c);
  for (int round = 0; round < 3; round++) look_round();
  EXPECT_EQ(depot_blocks(large), 0u);
}

TEST_F(Depot, idle_classes_below_the_bound_keep_what_they_have) {
  fill(kClass);
  std::uint64_t before = depot_blocks(kClass);
  for (int round = 0; round < 12; round++) look_round();
  EXPECT_EQ(depot_blocks(kClass), before);
}

TEST_F(Depot, a_class_in_use_keeps_what_it_has_beside_idle_ones) {
  for (unsigned c : kMany) fill(c);
  std::uint64_t before = depot_blocks(kClass);
  for (int round = 0; round < 4; round++) {
    look_round();
    ASSERT_TRUE(rdmalloc::depot_put(kShard, kClass, depot_take(kShard, kClass)));
  }
  EXPECT_EQ(depot_blocks(kClass), before);
  EXPECT_LT(bytes_of(kMany[3]), rdmalloc::kDepotBytes) << "no thread used those of 8 KiB";
}

TEST_F(Depot, an_empty_slab_of_an_idle_class_leaves) {
  const unsigned idle = rdmalloc::class_of(24000);
  std::uint64_t before = rdmalloc_test::counter("stats.slab_spans");
  Magazine* magazine = full_of(idle);
  EXPECT_EQ(rdmalloc_test::counter("stats.slab_spans"), before + 1);
  rdmalloc::slab_give_back(idle, magazine->slots, magazine->count);
  magazine->count = 0;
  rdmalloc::depot_put_empty(kShard, magazine);
  EXPECT_EQ(rdmalloc_test::counter("stats.slab_spans"), before + 1) << "for the next allocation";
  look_round();
  look_round();
  EXPECT_EQ(rdmalloc_test::counter("stats.slab_spans"), before);
}

// One size after the other, 8 MiB live each time. Seen to fail without looks: 105 MiB.
TEST_F(Depot, a_program_that_goes_through_sizes_keeps_few_times_what_lives) {
  constexpr std::size_t kLive = std::size_t{8} << 20;
  std::uint64_t before = rdmalloc_test::counter("stats.mapped_bytes");
  std::vector<void*> blocks;
  blocks.reserve(kLive / 16);
  for (std::size_t bytes = 16; bytes <= std::size_t{1} << 20; bytes += bytes / 5 + 8) {
    for (std::size_t i = 0; i < kLive / bytes; i++) blocks.push_back(rdmalloc_malloc(bytes));
    for (void* block : blocks) rdmalloc_free(block);
    blocks.clear();
  }
  EXPECT_LE(rdmalloc_test::counter("stats.mapped_bytes") - before, 5 * kLive);
}

}  // namespace
