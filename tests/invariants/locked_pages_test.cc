// SPDX-License-Identifier: BSD-3-Clause
//
// Free memory with pages that the kernel does not take back, for the program has locked them, and
// slices that an observer refuses: what lies before and behind them goes (I7). Seen to fail where a
// refused call is not tried in parts (16 MiB stayed for one page, and before, with what lies behind
// offered from its front again, all of 64); where what was refused makes what lies behind it young;
// in parts without end (63 calls for 14); with no new generation after a call that took some pages.
#include <errno.h>
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/support/counters.h"
#include "tests/support/observer.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::Observer;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kPage = 4096;

// Not libc's function, which a sanitizer's runtime takes the place of.
bool lock(const void* base, size_t length) {
  return syscall(SYS_mlock, base, length) == 0;
}
bool unlock(const void* base, size_t length) {
  return syscall(SYS_munlock, base, length) == 0;
}
char* written(size_t bytes) {
  return static_cast<char*>(memset(rdmalloc_malloc(bytes), 1, bytes));
}
uint64_t dirty_bytes() {
  return counter("stats.dirty_bytes");
}

class LockedPages : public ::testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_purge(0);
    before_ = dirty_bytes();
  }
  uint64_t dirty_more() { return dirty_bytes() - before_; }

 private:
  uint64_t before_ = 0;
};

TEST_F(LockedPages, I7_one_page_keeps_its_slice_and_no_more) {
  for (size_t at : {size_t{0}, 9 * kMiB + kPage, 16 * kMiB - kPage, 40 * kMiB}) {
    char* block = written(64 * kMiB);
    ASSERT_TRUE(lock(block + at, kPage));
    rdmalloc_free(block);
    uint64_t failures = counter("stats.purge_failures");
    EXPECT_GT(rdmalloc_purge(0), static_cast<int64_t>(63 * kMiB)) << at;
    EXPECT_GT(counter("stats.purge_failures"), failures) << at;
    EXPECT_EQ(dirty_more(), 64 * kKiB) << at;
    ASSERT_TRUE(unlock(block + at, kPage));
    EXPECT_EQ(rdmalloc_purge(0), static_cast<int64_t>(64 * kKiB)) << at;
  }
}

// Each is found by calls in vain, more of them than may come in a row. Seen to fail where those
// before a call that took pages count too.
TEST_F(LockedPages, I7_pages_far_apart_keep_their_slices_and_no_more) {
  char* block = written(32 * kMiB);
  for (size_t at = kMiB; at < 32 * kMiB; at += 8 * kMiB)
    if (!lock(block + at, kPage)) GTEST_SKIP() << "SKIP: RLIMIT_MEMLOCK leaves no page";
  rdmalloc_free(block);
  EXPECT_GT(rdmalloc_purge(0), static_cast<int64_t>(31 * kMiB));
  EXPECT_EQ(dirty_more(), 4 * 64 * kKiB);
  for (size_t at = kMiB; at < 32 * kMiB; at += 8 * kMiB) ASSERT_TRUE(unlock(block + at, kPage));
  EXPECT_EQ(rdmalloc_purge(0), static_cast<int64_t>(4 * 64 * kKiB));
}

// Ahead of what goes, and longer than what is taken in flight at once.
TEST_F(LockedPages, I7_what_lies_behind_what_is_refused_is_offered) {
  char* block = written(64 * kMiB);
  char* end = block + 20 * kMiB;
  Observer observer([&](char* base, size_t) { return base < end ? -EBUSY : 0; });
  ASSERT_EQ(observer.added(), 0);
  rdmalloc_free(block);
  EXPECT_EQ(rdmalloc_purge(0), static_cast<int64_t>(44 * kMiB));
  EXPECT_EQ(dirty_more(), 20 * kMiB);
  ASSERT_EQ(observer.remove(), 0);
}

TEST_F(LockedPages, I7_what_lies_behind_goes_by_age_too) {
  uint64_t decay_ms = 50, was = counter("purge.decay_ms");
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &decay_ms, sizeof decay_ms), 0);
  char* block = written(64 * kMiB);
  char* end = block + 20 * kMiB;
  Observer observer([&](char* base, size_t) { return base < end ? -EBUSY : 0; });
  ASSERT_EQ(observer.added(), 0);
  ASSERT_EQ(rdmalloc_init(), 0);
  rdmalloc_free(block);
  rdmalloc_test::wait_until([&] { return dirty_more() == 20 * kMiB; });
  ASSERT_EQ(rdmalloc_fini(), 0);
  ASSERT_EQ(observer.remove(), 0);
  ASSERT_EQ(rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &was, sizeof was), 0);
}

TEST_F(LockedPages, a_span_that_is_locked_as_a_whole_costs_few_calls) {
  char* block = written(2 * kMiB);
  if (!lock(block, 2 * kMiB)) GTEST_SKIP() << "SKIP: RLIMIT_MEMLOCK leaves no 2 MiB";
  uint64_t calls = counter("stats.purge_failures");
  rdmalloc_free(block);
  EXPECT_EQ(rdmalloc_purge(0), 0);
  EXPECT_LE(counter("stats.purge_failures") - calls, 16u);
  ASSERT_TRUE(unlock(block, 2 * kMiB));
  EXPECT_GE(rdmalloc_purge(0), static_cast<int64_t>(2 * kMiB));
}

// Seen to fail where a run of pages is offered whole only: half of what is free stays.
TEST_F(LockedPages, I7_one_page_of_a_slab_keeps_itself_and_no_more) {
  std::vector<char*> blocks(64 * kMiB / kPage);
  for (char*& block : blocks) block = written(kPage);
  std::vector<char*> kept;
  for (size_t i = 0; i < blocks.size(); i += 128) kept.push_back(blocks[i]);
  // A page of each slab stays in use, and one is locked.
  for (size_t i = 64; i < blocks.size(); i += 128) ASSERT_TRUE(lock(blocks[i], kPage));
  uint64_t before = counter("stats.slab_purged_bytes");
  uint64_t failures = counter("stats.purge_failures");
  for (size_t i = 0; i < blocks.size(); i++)
    if (i % 128 != 0) rdmalloc_free(blocks[i]);
  ASSERT_GE(rdmalloc_purge(0), 0);
  EXPECT_GE(counter("stats.slab_purged_bytes") - before, 126 * kPage * kept.size());
  EXPECT_GE(counter("stats.purge_failures") - failures, kept.size());
  for (size_t i = 64; i < blocks.size(); i += 128) ASSERT_TRUE(unlock(blocks[i], kPage));
  for (char* block : kept) rdmalloc_free(block);
  ASSERT_GE(rdmalloc_purge(0), 0);
}

// Seen to fail where no call in vain ends the parts: 8,064 calls for 112 at most.
TEST_F(LockedPages, slabs_that_are_locked_as_a_whole_cost_few_calls) {
  std::vector<char*> blocks(16 * kMiB / kPage);
  for (char*& block : blocks) block = written(kPage);
  char *low = blocks[0], *high = blocks[0];
  for (char* block : blocks) low = std::min(low, block), high = std::max(high, block);
  if (!lock(low, static_cast<size_t>(high + kPage - low)))
    GTEST_SKIP() << "SKIP: RLIMIT_MEMLOCK leaves no 16 MiB";
  uint64_t calls = counter("stats.purge_failures");
  for (size_t i = 0; i < blocks.size(); i++)
    if (i % 128 != 0) rdmalloc_free(blocks[i]);
  ASSERT_GE(rdmalloc_purge(0), 0);
  // A call for each run, of 64 pages and 63 at most.
  EXPECT_LE(counter("stats.purge_failures") - calls, 3 * blocks.size() / 128 + 16);
  ASSERT_TRUE(unlock(low, static_cast<size_t>(high + kPage - low)));
  for (size_t i = 0; i < blocks.size(); i += 128) rdmalloc_free(blocks[i]);
  ASSERT_GE(rdmalloc_purge(0), 0);
}

TEST_F(LockedPages, I5_a_slab_of_which_some_pages_went_has_a_new_generation) {
  std::vector<char*> blocks(32);
  for (char*& block : blocks) block = written(4 * kKiB);
  char* kept = blocks[0];
  rdmalloc_range range = {};
  range.size = sizeof range;
  int result = 0;
  Observer observer;
  observer.purged = [&](char* base, size_t length, int error) {
    if (error != 0 && base <= blocks[20] && blocks[20] < base + length) result = error;
  };
  ASSERT_EQ(observer.add(), 0);
  ASSERT_TRUE(lock(blocks[20], kPage));
  for (size_t i = 1; i < blocks.size(); i++) rdmalloc_free(blocks[i]);
  rdmalloc_purge(0);  // all that can go
  ASSERT_EQ(rdmalloc_range_of(kept, &range), 0);
  uint64_t generation = range.generation;
  result = 0;
  rdmalloc_purge(0);
  EXPECT_EQ(result, -EINVAL);
  ASSERT_EQ(rdmalloc_range_of(kept, &range), 0);
  EXPECT_NE(range.generation, generation);
  ASSERT_TRUE(unlock(blocks[20], kPage));
  ASSERT_EQ(observer.remove(), 0);
  rdmalloc_free(kept);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_HUGE=never", "RDMALLOC_DIRTY_MAX=1G"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
