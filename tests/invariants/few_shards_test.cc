// SPDX-License-Identifier: BSD-3-Clause
//
// What few shards take of each other while both are at work: it comes before new pages, and ends.
//
// Seen to fail: takes_end where may_take_beyond() is always true (4,938 for 2,072), the others
// where it never is (36, 0 and 0).
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <set>
#include <vector>

#include "alloc/core/shard.h"
#include "alloc/pages/page_heap.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"
#include "tests/support/worker.h"

namespace {

using rdmalloc_test::allocate;
using rdmalloc_test::release;
using rdmalloc_test::Worker;

constexpr size_t kKiB = 1024;

// Two threads, each in a shard of its own.
struct Pair {
  Worker first, second;
  std::vector<void*> kept;

  Pair() {
    EXPECT_GE(rdmalloc_purge(0), 0);  // no free pages of an earlier test's
    first.run([] { rdmalloc_test::set("thread.place", 1); });
    // Pages of its own: by those it is allowed how much it takes.
    second.run([this] {
      rdmalloc_test::set("thread.place", 2);
      kept = allocate(8, 100 * kKiB);
    });
  }
  ~Pair() {
    release(kept);
    EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  }
};

// The first thread frees `count` blocks of which the second allocates `wanted`; how many of those
// are of the first one's.
size_t taken_of_first(size_t count, size_t wanted, size_t bytes) {
  Pair pair;
  std::vector<void*> blocks;
  std::set<void*> theirs;
  pair.first.run([&] {
    blocks = allocate(count, bytes);
    theirs.insert(blocks.begin(), blocks.end());
    release(blocks);
  });
  size_t taken = 0;
  pair.second.run([&] {
    blocks = allocate(wanted, bytes);
    for (void* block : blocks) taken += theirs.count(block);
    release(blocks);
  });
  return taken;
}

TEST(FewShardsAtWork, blocks_on_used_pages_come_before_new_pages) {
  EXPECT_GE(taken_of_first(200, 100, 8 * kKiB), 80u);
}

TEST(FewShardsAtWork, spans_of_a_depot_come_before_new_pages) {
  EXPECT_GE(taken_of_first(150, 30, 64 * kKiB), 8u);
}

TEST(FewShardsAtWork, buffers_places_come_before_new_pages) {
  EXPECT_GE(taken_of_first(10, 5, 350 * kKiB), 4u);
}

// Seen to fail without kThreadsThatTake (5).
TEST(FewShardsAtWork, a_shard_of_many_threads_takes_none_of_them) {
  std::deque<Worker> many(rdmalloc::kThreadsThatTake);
  for (Worker& worker : many)
    worker.run([] {
      rdmalloc_test::set("thread.place", 2);
      rdmalloc_free(rdmalloc_malloc(100));
    });
  EXPECT_EQ(taken_of_first(10, 5, 350 * kKiB), 0u);
}

// Two that each have what the other wants now and then.
TEST(FewShardsAtWork, takes_end) {
  Pair pair;
  for (int round = 0; round < 2000; round++)
    for (Worker* worker : {&pair.first, &pair.second})
      worker->run([&] {
        for (size_t bytes : {3 * kKiB, 8 * kKiB, 64 * kKiB, 300 * kKiB}) {
          size_t count = bytes < 64 * kKiB ? 40 : 9;
          std::vector<void*> blocks = allocate(count, bytes + round % 7 * bytes / 8);
          release(blocks);
        }
      });
  constexpr uint32_t kOneLook = 8;
  for (unsigned shard = 0; shard < rdmalloc::shard_count(); shard++) {
    uint32_t slices = rdmalloc::shards[shard].new_slices;
    EXPECT_LE(rdmalloc::shards[shard].takes_beyond, rdmalloc::kTakesOfNewSlice * slices + kOneLook)
        << shard;
    EXPECT_LE(slices, 1000u) << shard;
  }
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_TOPOLOGY=1x4", "RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
