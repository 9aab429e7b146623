// SPDX-License-Identifier: BSD-3-Clause
//
// The ceiling of free memory where RDMALLOC_DIRTY_MAX is not set: 512 MiB, or 32 for each shard,
// but no more than a quarter of the memory there is (alloc/pages/limits.h).
//
// Seen to fail: both without limits_note_shards() in make_shard(), the second one's last line where
// take_default() does not ask whether the ceiling was set.
#include <gtest/gtest.h>

#include <algorithm>

#include "alloc/os/memory.h"
#include "alloc/pages/page_heap.h"
#include "tests/invariants/places.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::run_at;
using rdmalloc_test::set;

constexpr uint64_t kMiB = uint64_t{1} << 20, kShards = 40;

uint64_t expected(uint64_t bytes) {
  return std::min(bytes, rdmalloc::os::memory_limit_bytes() / 4);
}

void make_shards(uint64_t count) {
  ASSERT_EQ(rdmalloc_init(), 0);  // reads the kernel's files
  for (uint64_t place = 0; place < count; place++)
    run_at(place, [] { rdmalloc_free(rdmalloc_malloc(64)); });
  ASSERT_EQ(counter("stats.shards"), count);
}

// 64 threads of four blocks of 2 MiB each moved 4.1 cache lines at each malloc and free.
TEST(Ceiling, I7_a_thread_finds_14_mib_again_in_one_shard_of_many) {
  make_shards(kShards);
  if (expected(kShards * 32 * kMiB) != kShards * 32 * kMiB)
    GTEST_SKIP() << "SKIP: less memory than 5 GiB";
  run_at(kShards - 1, [] {
    uint64_t moves = 0;
    for (int round = 0; round < 12; round++) {
      if (round == 2) moves = rdmalloc::page_heap_counters().segment_moves;
      rdmalloc_test::release(rdmalloc_test::allocate(7, 2 * kMiB));
    }
    EXPECT_EQ(rdmalloc::page_heap_counters().segment_moves, moves);
  });
}

TEST(Ceiling, goes_with_the_shards_until_it_is_set) {
  make_shards(16);
  EXPECT_EQ(counter("purge.dirty_max_bytes"), expected(512 * kMiB));
  make_shards(24);
  EXPECT_EQ(counter("purge.dirty_max_bytes"), expected(768 * kMiB));
  set("purge.dirty_max_bytes", 100 * kMiB);
  make_shards(kShards);
  EXPECT_EQ(counter("purge.dirty_max_bytes"), 100 * kMiB);
}

TEST(Ceiling, above_0_as_the_setting_is) {
  const uint64_t before = counter("purge.dirty_max_bytes"), none = 0;
  EXPECT_EQ(rdmalloc_ctl("purge.dirty_max_bytes", nullptr, nullptr, &none, sizeof none), -EINVAL);
  EXPECT_EQ(counter("purge.dirty_max_bytes"), before);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_TOPOLOGY=1x40", "RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
