// SPDX-License-Identifier: BSD-3-Clause
//
// Segments beside the purge thread, and in an arena that ends: what shards hold goes back in time,
// and is no reason for malloc to fail. See segments_test.cc.
//
// Seen to fail: what_other_shards_keep without segments_gather() in taking; what_lies_beside
// without asking each shard's heap after that; I7 with no segment kept. That a free looks at the
// ceiling, and not the next tick alone, no test tells: a tick comes within a second.
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "alloc/pages/page_heap.h"
#include "tests/invariants/places.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::Random;
using rdmalloc_test::run_at;
using rdmalloc_test::wait_until;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kSlice = 64 * kKiB;

std::vector<void*> blocks_at(uint64_t place, size_t count, size_t bytes) {
  std::vector<void*> blocks(count);
  run_at(place, [&] {
    for (void*& block : blocks) {
      block = rdmalloc_malloc(bytes);
      ASSERT_NE(block, nullptr);
      memset(block, 1, bytes);
    }
  });
  return blocks;
}
void release(const std::vector<void*>& blocks) {
  for (void* block : blocks) rdmalloc_free(block);
}
void free_at(uint64_t place, size_t count, size_t bytes) {
  release(blocks_at(place, count, bytes));
}

class SegmentsAge : public ::testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_test::set("purge.decay_ms", 3600000);
    ASSERT_EQ(rdmalloc_init(), 0);  // which starts the purge thread
    // Until the first thread has a cache, that one looks each second whether it is the last.
    rdmalloc_free(rdmalloc_malloc(64));
    rdmalloc_test::go_to(0);
    ASSERT_GE(rdmalloc_purge(0), 0);
  }
};

// All addresses are used up; a block fits in what is clean and retained together, and dirty pages
// follow. Seen to fail with the rest of the two, dirty as well, left beside those.
TEST_F(SegmentsAge, what_a_block_out_of_several_families_leaves_is_joined) {
  rdmalloc_test::set("purge.decay_ms", 3600000);
  ASSERT_GE(rdmalloc_purge(0), 0);
  struct Row {
    void *first, *second, *last;
  };
  std::vector<Row> rows;
  do {
    rows.push_back(
        {rdmalloc_malloc(8 * kMiB), rdmalloc_malloc(8 * kMiB), rdmalloc_malloc(2 * kSlice)});
  } while (rows.back().first != nullptr && rows.back().second != nullptr);
  std::vector<void*> others;
  while (void* block = rdmalloc_malloc(kMiB)) others.push_back(block);
  ASSERT_GT(rows.size(), 10u);
  const Row row = rows[5];
  ASSERT_EQ(row.second, static_cast<char*>(row.first) + 8 * kMiB);
  ASSERT_EQ(row.last, static_cast<char*>(row.second) + 8 * kMiB);
  rdmalloc_free(row.first);
  ASSERT_GE(rdmalloc_purge(0), 0);
  rdmalloc_free(row.second);
  rdmalloc_free(row.last);
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  EXPECT_EQ(rdmalloc_malloc(12 * kMiB), row.first);
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  rows[5] = {row.first, nullptr, nullptr};
  for (const Row& each : rows) release({each.first, each.second, each.last});
  release(others);
}

TEST_F(SegmentsAge, I7_what_shards_keep_goes_back_after_the_decay_time) {
  // Of all shards at once: one takes what others have free before new pages.
  std::vector<void*> blocks[3];
  for (uint64_t place = 1; place < 4; place++) blocks[place - 1] = blocks_at(place, 20, 500 * kKiB);
  for (const std::vector<void*>& of_place : blocks) release(of_place);
  ASSERT_GE(counter("stats.dirty_bytes"), 30 * kMiB);
  rdmalloc_test::set("purge.decay_ms", 20);
  wait_until([] { return counter("stats.dirty_bytes") == 0; });
}

TEST_F(SegmentsAge, a_free_in_a_shard_wakes_the_idle_purge_thread) {
  rdmalloc_test::set("purge.decay_ms", 100);
  for (int round = 0; round < 6; round++) {
    ASSERT_GE(rdmalloc_purge(0), 0);
    usleep(120000);  // it goes to sleep, once it has settled the slabs of the threads above
    free_at(1, 1, 300 * kKiB);
    wait_until([] { return counter("stats.dirty_bytes") == 0; });
  }
}

TEST_F(SegmentsAge, the_ceiling_is_for_all_shards_together) {
  uint64_t ceiling = counter("purge.dirty_max_bytes");
  rdmalloc_test::set("purge.dirty_max_bytes", 40 * kMiB);
  uint64_t purges = counter("stats.purges");
  // None of them passes it alone.
  std::vector<void*> blocks[4];
  for (uint64_t place = 0; place < 4; place++) blocks[place] = blocks_at(place, 15, kMiB);
  for (const std::vector<void*>& of_place : blocks) release(of_place);
  wait_until([] { return counter("stats.dirty_bytes") <= 40 * kMiB; });
  EXPECT_GT(counter("stats.purges"), purges);
  rdmalloc_test::set("purge.dirty_max_bytes", ceiling);
}

// RDMALLOC_ARENA is 256 MiB.
TEST_F(SegmentsAge, what_other_shards_keep_is_no_reason_for_malloc_to_fail) {
  for (size_t bytes : {2 * kSlice, 16 * kSlice, 30 * kKiB, 300 * kSlice}) {
    for (uint64_t place = 0; place < 4; place++) {
      // All there is becomes one shard's, and free.
      run_at(place, [] {
        std::vector<void*> all;
        while (void* block = rdmalloc_malloc(kMiB)) all.push_back(block);
        ASSERT_GT(all.size(), 200u);
        for (void* block : all) rdmalloc_free(block);
      });
      run_at((place + 1) % 4, [&] {
        std::vector<void*> all;
        while (void* block = rdmalloc_malloc(bytes)) all.push_back(block);
        EXPECT_GT(all.size() * bytes, 200 * kMiB) << bytes << " after place " << place;
        for (void* block : all) rdmalloc_free(block);
      });
    }
  }
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
}

// The rest of a segment that another shard has a block in.
TEST_F(SegmentsAge, what_lies_beside_anothers_block_is_no_reason_to_fail) {
  std::vector<void*> kept;
  for (uint64_t place = 0; place < 4; place++) {
    run_at(place, [&] {
      std::vector<void*> all;
      for (int i = 0; i < 900; i++)
        if (void* block = rdmalloc_malloc(kSlice)) all.push_back(block);
      // One of 64 stays: hardly a segment is free as a whole.
      for (size_t i = 0; i < all.size(); i++)
        i % 64 == 0 ? kept.push_back(all[i]) : rdmalloc_free(all[i]);
    });
  }
  run_at(2, [&] {
    std::vector<void*> all;
    while (void* block = rdmalloc_malloc(200 * kKiB)) all.push_back(block);
    EXPECT_GT(all.size() * 256 * kKiB, 220 * kMiB);
    for (void* block : all) rdmalloc_free(block);
  });
  for (void* block : kept) rdmalloc_free(block);
}

TEST_F(SegmentsAge, threads_that_pass_blocks_to_each_other_keep_what_is_theirs) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kForks = 0, kRounds = 3000;
#else
  constexpr int kForks = 20, kRounds = 6000;
#endif
  constexpr size_t kThreads = 4, kPassed = 8, kLongest = 5 * kMiB;
  struct Block {
    unsigned char* start;
    size_t bytes;
  };
  std::mutex lock;
  std::vector<Block> passed;
  std::atomic<unsigned> running{kThreads};
  auto fill = [](const Block& block, unsigned char mark) {
    for (size_t at = 0; at < block.bytes; at += 32 * kKiB) block.start[at] = mark;
  };
  auto is_filled = [](const Block& block) {
    for (size_t at = 0; at < block.bytes; at += 32 * kKiB)
      if (block.start[at] != block.start[0]) return false;
    return true;
  };
  rdmalloc_test::set("purge.decay_ms", 10);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; i++) {
    threads.emplace_back([&, i] {
      rdmalloc_test::go_to(i);
      Random random(i + 1);
      for (int round = 0; round < kRounds; round++) {
        Block block = {nullptr, random.size_between(kSlice / 2 + 1, kLongest)};
        block.start = static_cast<unsigned char*>(
            random.below(4) == 0 ? rdmalloc_calloc(1, block.bytes) : rdmalloc_malloc(block.bytes));
        ASSERT_NE(block.start, nullptr);
        fill(block, static_cast<unsigned char>(round * 4 + static_cast<int>(i)));
        if (random.below(8) == 0) {
          size_t bytes = random.size_between(kSlice / 2 + 1, kLongest);
          block.start = static_cast<unsigned char*>(rdmalloc_realloc(block.start, bytes));
          if (bytes < block.bytes) block.bytes = bytes;
        }
        {
          std::lock_guard guard(lock);
          passed.push_back(block);
          if (passed.size() < kPassed) continue;
          std::swap(block, passed[random.below(passed.size())]);
          passed.pop_back();
        }
        ASSERT_TRUE(is_filled(block));
        rdmalloc_free(block.start);
      }
      running--;
    });
  }
  for (int child = 0; child < kForks && running != 0; child++) {
    usleep(5000);
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      for (int i = 0; i < 200; i++) {
        size_t bytes = kSlice * static_cast<size_t>(i % 50 == 0 ? 64 : 1 + i % 8);
        void* block = rdmalloc_malloc(bytes);
        if (block == nullptr) _exit(2);
        memset(block, 1, bytes);
        rdmalloc_free(block);
      }
      if (rdmalloc_purge(0) < 0) _exit(3);
      _exit(rdmalloc::page_heap_is_valid() ? 0 : 4);
    }
    int status = -1;
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status)) << "the child hangs";
    EXPECT_EQ(status, 0) << child;
  }
  for (std::thread& thread : threads) thread.join();
  for (const Block& block : passed) rdmalloc_free(block.start);
  wait_until([] { return counter("stats.dirty_bytes") == 0; });
  EXPECT_EQ(counter("stats.large_spans"), 0u);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_TOPOLOGY=2x2", "RDMALLOC_ARENA=256M"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
