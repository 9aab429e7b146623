// SPDX-License-Identifier: BSD-3-Clause
//
// The block that a thread freed last, which enters its bin at the next free(): who gets it, and
// that it is never lost.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "alloc/cache/bins.h"
#include "alloc/cache/depot.h"
#include "alloc/cache/reclaim.h"
#include "alloc/slabs/slab.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"
#include "tests/support/worker.h"

namespace {

using rdmalloc::class_of;
using rdmalloc_test::Worker;

// Sizes that libc and gtest have no use for, of classes that serve beside other threads too.
constexpr size_t kBytes = 20 << 10, kOther = 12 << 10;

rdmalloc::ThreadCache& mine() {
  return *rdmalloc::detail::this_cache;
}
uint32_t in_bin(size_t bytes) {
  unsigned c = class_of(bytes);
  return rdmalloc::count_of(mine().bins[c], rdmalloc::cold_bin_of(mine(), c));
}
// All that the thread has in its bin of that size.
std::vector<void*> take_all(size_t bytes) {
  std::vector<void*> blocks;
  do blocks.push_back(rdmalloc_malloc(bytes));
  while (in_bin(bytes) != 0);
  return blocks;
}
void give(const std::vector<void*>& blocks) {
  for (void* block : blocks) rdmalloc_free(block);
}
// Blocks of that size which the program has, or the cache of another thread.
uint64_t held_by_others(size_t bytes) {
  rdmalloc::cache_flush_this_thread();
  rdmalloc::depot_empty();
  rdmalloc::SlabCounters counters = rdmalloc::slab_counters(class_of(bytes));
  return counters.blocks - counters.free_blocks;
}

// No pages of free blocks are on their way back meanwhile, however long a test takes.
class Deferred : public ::testing::Test {
 protected:
  void SetUp() override { rdmalloc_test::set("purge.decay_ms", 3'600'000); }
  void TearDown() override { rdmalloc_test::set("purge.decay_ms", decay_ms_); }

 private:
  uint64_t decay_ms_ = rdmalloc_test::counter("purge.decay_ms");
};

// Seen to fail with a slow path that does not look at it: another block, and a trip counted.
TEST_F(Deferred, the_only_block_comes_back_without_a_trip_to_the_slow_path) {
  Worker().run([] {
    std::vector<void*> blocks = take_all(kBytes);
    void* block = blocks.back();
    uint32_t trips = mine().slow_events;
    for (int i = 0; i < 15; i++) {
      rdmalloc_free(block);
      ASSERT_EQ(mine().deferred, block);
      ASSERT_EQ(rdmalloc_malloc(kBytes), block);
      ASSERT_EQ(mine().deferred, nullptr);
    }
    EXPECT_EQ(mine().slow_events, trips);
    give(blocks);
  });
}

// Seen to fail where each malloc comes to the slow path for it: 100 takes.
TEST_F(Deferred, two_blocks_serve_who_uses_one_at_a_time) {
  Worker().run([] {
    std::vector<void*> blocks = take_all(kBytes);
    for (int i = 0; i < 16; i++) {
      rdmalloc_free(blocks.back());
      blocks.back() = rdmalloc_malloc(kBytes);
    }
    uint32_t trips = mine().slow_events;
    uint8_t takes = mine().deferred_takes;
    for (int i = 0; i < 100; i++) {
      rdmalloc_free(blocks.back());
      blocks.back() = rdmalloc_malloc(kBytes);
    }
    EXPECT_EQ(mine().slow_events, trips);
    EXPECT_EQ(mine().deferred_takes, takes);
    give(blocks);
  });
}

TEST_F(Deferred, a_block_enters_its_bin_at_the_next_free) {
  std::vector<void*> blocks = take_all(kBytes);
  void* other = rdmalloc_malloc(kOther);
  void *first = rdmalloc_malloc(kBytes), *second = rdmalloc_malloc(kBytes);
  give(take_all(kBytes));  // of what the refill brought
  rdmalloc_free(other);
  uint32_t count = in_bin(kBytes);
  rdmalloc_free(first);
  EXPECT_EQ(in_bin(kBytes), count);
  rdmalloc_free(second);
  EXPECT_EQ(in_bin(kBytes), count + 1);
  EXPECT_EQ(rdmalloc_malloc(kBytes), first);
  rdmalloc_free(first);
  give(blocks);
}

// What may be registered keeps its address: the buffer that was freed last is the next one.
// Seen to fail without is_entered_at_once().
TEST_F(Deferred, buffers_are_not) {
  for (size_t bytes : {rdmalloc::kSliceBytes, rdmalloc::kCachedMax}) {
    void *a = rdmalloc_malloc(bytes), *b = rdmalloc_malloc(bytes);
    void* small = rdmalloc_malloc(kOther);
    rdmalloc_free(small);
    rdmalloc_free(a);
    rdmalloc_free(b);
    EXPECT_EQ(mine().deferred, small);
    void* again = rdmalloc_malloc(bytes);
    EXPECT_EQ(again, b) << bytes;
    rdmalloc_free(again);
  }
}
// Seen to fail where it goes by what a class may hold after its first refill.
TEST_F(Deferred, eight_buffers_that_come_and_go_are_not) {
  Worker().run([] {
    for (size_t bytes : {rdmalloc::kSliceBytes, rdmalloc::kCachedMax}) {
      for (int round = 0; round < 100; round++) {
        std::vector<void*> all;
        for (int i = 0; i < 8; i++) all.push_back(rdmalloc_malloc(bytes));
        give(all);
        ASSERT_EQ(mine().deferred, nullptr);
        void* again = rdmalloc_malloc(bytes);
        ASSERT_EQ(again, all.back()) << bytes;
        rdmalloc_free(again);
      }
    }
  });
}

// More than the first magazine of their class has room for.
std::vector<void*> buffers(size_t bytes) {
  std::vector<void*> all;
  for (int i = 0; i < 12; i++) all.push_back(rdmalloc_malloc(bytes));
  return all;
}

// Seen to fail without defer_buffers(), and with a drop_class() that leaves it on.
TEST_F(Deferred, buffers_of_many_are_until_the_thread_gives_them_up) {
  Worker().run([] {
    for (size_t bytes : {rdmalloc::kSliceBytes, rdmalloc::kCachedMax}) {
      for (int round = 0; round < 4; round++) give(buffers(bytes));
      std::vector<void*> all = buffers(bytes);
      give(all);
      ASSERT_EQ(mine().deferred, all.back());
      ASSERT_EQ(rdmalloc_malloc(bytes), all[all.size() - 2]) << bytes;
      rdmalloc_free(all[all.size() - 2]);
      // Seen to fail with a slow path that looks at it for small blocks only.
      std::vector<void*> taken = take_all(bytes);
      uint32_t trips = mine().slow_events;
      ASSERT_EQ(rdmalloc_malloc(bytes), all[all.size() - 2]);
      ASSERT_EQ(mine().slow_events, trips);
      give(taken);
      rdmalloc_free(all[all.size() - 2]);

      rdmalloc::cache_flush_this_thread();
      ASSERT_EQ(mine().deferred, nullptr);
      void *a = rdmalloc_malloc(bytes), *b = rdmalloc_malloc(bytes);
      give({a, b});
      ASSERT_EQ(rdmalloc_malloc(bytes), b);
      rdmalloc_free(b);
    }
  });
}

// Seen to fail with a calloc() that looks at the bin only: a span of the page heap's beside it.
TEST_F(Deferred, calloc_takes_the_only_buffer_too) {
  Worker().run([] {
    constexpr size_t kBuffer = 2 * rdmalloc::kSliceBytes;
    for (int round = 0; round < 4; round++) give(buffers(kBuffer));
    std::vector<void*> taken = take_all(kBuffer);
    void* block = taken.back();
    taken.pop_back();
    if (mine().deferred != nullptr) taken.push_back(rdmalloc_malloc(kBuffer));
    memset(block, 0x5C, kBuffer);
    rdmalloc_free(block);
    ASSERT_EQ(mine().deferred, block);
    ASSERT_EQ(in_bin(kBuffer), 0u);
    auto* again = static_cast<unsigned char*>(rdmalloc_calloc(1, kBuffer));
    EXPECT_EQ(again, block);
    EXPECT_EQ(std::count(again, again + kBuffer, 0), static_cast<std::ptrdiff_t>(kBuffer));
    rdmalloc_free(again);
    give(taken);
  });
}

// Seen to fail where deferring ends with whichever class of buffers is given up.
TEST_F(Deferred, a_class_of_buffers_that_is_given_up_takes_none_with_it) {
  Worker().run([] {
    for (int round = 0; round < 4; round++) give(buffers(rdmalloc::kSliceBytes));
    rdmalloc_free(rdmalloc_malloc(rdmalloc::kCachedMax));
    ASSERT_EQ(mine().deferred_to, class_of(rdmalloc::kSliceBytes));
    for (int round = 0; round < 4; round++) give(buffers(2 * rdmalloc::kSliceBytes));
    auto give_up = [](size_t bytes) {
      rdmalloc::SlowPath slow_path(mine());
      rdmalloc::drop_class(mine(), class_of(bytes));
      return mine().deferred_to;
    };
    EXPECT_EQ(give_up(rdmalloc::kCachedMax), class_of(2 * rdmalloc::kSliceBytes));
    EXPECT_EQ(give_up(2 * rdmalloc::kSliceBytes), class_of(rdmalloc::kSliceBytes));
    EXPECT_EQ(give_up(rdmalloc::kSliceBytes), rdmalloc::kFirstSpanClass - 1);
  });
}

// Seen to fail with a drop_all() that forgets it: 51 more.
TEST_F(Deferred, a_thread_that_ends_or_flushes_gives_it_back) {
  uint64_t before = held_by_others(kBytes);
  for (int i = 0; i < 50; i++) {
    Worker().run([] {
      void* block = rdmalloc_malloc(kBytes);
      rdmalloc_free(block);
      EXPECT_EQ(mine().deferred, block);
    });
  }
  Worker flushes;
  flushes.run([] {
    void* block = rdmalloc_malloc(kBytes);
    rdmalloc_free(block);
    EXPECT_EQ(mine().deferred, block);
    rdmalloc::cache_flush_this_thread();
    EXPECT_EQ(mine().deferred, nullptr);
  });
  EXPECT_EQ(held_by_others(kBytes), before);
}

// A thread that only frees, for which bins are full again and again: of whichever class the
// deferred block is. Seen to fail with one that is dropped where its bin has no room.
TEST_F(Deferred, none_is_lost_where_bins_are_full) {
  constexpr int kEach = 2000;
  for (size_t other : {kBytes, kOther, size_t{100}, rdmalloc::kSliceBytes}) {
    std::vector<void*> blocks, others;
    uint64_t before = held_by_others(kBytes) + held_by_others(kOther) + held_by_others(100);
    for (int i = 0; i < kEach / 10; i++) blocks.push_back(rdmalloc_malloc(kBytes));
    for (int i = 0; i < kEach; i++) others.push_back(rdmalloc_malloc(other));
    Worker().run([&] {
      for (size_t i = 0; i < others.size(); i++) {
        rdmalloc_free(others[i]);
        if (i % 10 == 0) rdmalloc_free(blocks[i / 10]);
      }
    });
    EXPECT_EQ(held_by_others(kBytes) + held_by_others(kOther) + held_by_others(100), before);
    std::vector<void*> again;
    for (int i = 0; i < kEach / 10; i++) again.push_back(rdmalloc_malloc(kBytes));
    for (int i = 0; i < kEach; i++) again.push_back(rdmalloc_malloc(other));
    EXPECT_FALSE(rdmalloc_test::has_duplicates(again)) << other;
    give(again);
  }
}

// Seen to fail (a write to no magazine) without the look whether the class is open.
TEST_F(Deferred, a_class_may_be_given_up_meanwhile) {
  Worker().run([] {
    std::vector<void*> blocks = take_all(kBytes);
    void* block = blocks.back();
    blocks.pop_back();
    rdmalloc_free(block);
    ASSERT_EQ(mine().deferred, block);
    {
      rdmalloc::SlowPath slow_path(mine());
      rdmalloc::drop_class(mine(), class_of(kBytes));
    }
    void* other = rdmalloc_malloc(kOther);
    rdmalloc_free(other);
    rdmalloc_free(rdmalloc_malloc(kOther));
    EXPECT_NE(mine().deferred, block);
    give(blocks);
  });
}

// I11. Seen to fail with drop_left() that forgets it.
TEST_F(Deferred, I11_a_child_takes_back_those_of_vanished_threads) {
  constexpr int kWorkers = 20;
  Worker workers[kWorkers];
  for (Worker& worker : workers)
    worker.run([] {
      std::vector<void*> blocks = take_all(kBytes);
      rdmalloc_free(blocks.back());
      EXPECT_NE(mine().deferred, nullptr);
      EXPECT_EQ(in_bin(kBytes), 0u);
    });
  uint64_t before = held_by_others(kBytes);
  pid_t child = fork();
  if (child == 0) {
    rdmalloc_free(rdmalloc_malloc(rdmalloc::kCachedMax + 1));  // it looks what is left
    uint64_t after = held_by_others(kBytes);
    fprintf(stderr, "%lu blocks held, %lu before the fork\n", after, before);
    _exit(after == before - kWorkers ? 0 : 1);
  }
  int status = -1;
  ASSERT_TRUE(rdmalloc_test::wait_with_limit(child, 30000, &status));
  EXPECT_EQ(status, 0);
}

class DeferredDeath : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Each at the second free() of the same block, as before there were deferred ones.
TEST_F(DeferredDeath, a_block_freed_twice_in_a_row_is_reported) {
  EXPECT_DEATH(
      {
        void* block = rdmalloc_malloc(kBytes);
        rdmalloc_free(block);
        rdmalloc_free(block);
      },
      "double free");
}
TEST_F(DeferredDeath, also_a_buffer_of_many) {
  EXPECT_DEATH(
      {
        for (int round = 0; round < 4; round++) give(buffers(rdmalloc::kSliceBytes));
        void* block = rdmalloc_malloc(rdmalloc::kSliceBytes);
        rdmalloc_free(block);
        if (mine().deferred == block) rdmalloc_free(block);
      },
      "double free");
}
// Seen to fail with a drop_class() that leaves one of another class deferred.
TEST_F(DeferredDeath, also_where_another_class_of_buffers_was_given_up_between) {
  EXPECT_DEATH(
      {
        constexpr size_t kMany = 2 * rdmalloc::kSliceBytes;
        constexpr size_t kFew = rdmalloc::kSliceBytes;
        rdmalloc_free(rdmalloc_malloc(kFew));
        for (int round = 0; round < 4; round++) give(buffers(kMany));
        void* block = rdmalloc_malloc(kFew);
        rdmalloc_free(block);
        if (mine().deferred == block) {
          {
            rdmalloc::SlowPath slow_path(mine());
            rdmalloc::drop_class(mine(), class_of(kMany));
          }
          rdmalloc_free(block);
        }
      },
      "double free");
}
TEST_F(DeferredDeath, also_where_one_of_another_class_is_freed_between) {
  EXPECT_DEATH(
      {
        void* block = rdmalloc_malloc(kBytes);
        void* other = rdmalloc_malloc(kOther);
        rdmalloc_free(block);
        rdmalloc_free(other);
        rdmalloc_free(block);
      },
      "double free");
}

}  // namespace
