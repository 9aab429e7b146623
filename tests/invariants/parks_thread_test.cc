// SPDX-License-Identifier: BSD-3-Clause
//
// Parks beside the purge thread, and in an arena that ends: what they hold goes back in time, and
// is no reason for malloc to fail. See parks_test.cc.
//
// Seen to fail: I7 without ageing; a_run_alone without the wake in purge_note_parked() (it never
// ends); parks_close without closing; the_ceiling with what is parked left out of it;
// counts_once with the page heap's count of what is used; no_reason_for_malloc_to_fail without
// parks_return() in taking.
#include <gtest/gtest.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/invariants/parks.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::Random;
using rdmalloc_test::wait_until;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kSlice = 64 * kKiB;

uint64_t parked() {
  return counter("stats.parked_bytes");
}
void park(size_t count, size_t bytes) {
  std::vector<void*> blocks(count);
  for (void*& block : blocks) {
    block = rdmalloc_malloc(bytes);
    ASSERT_NE(block, nullptr);
    memset(block, 1, bytes);
  }
  for (void* block : blocks) rdmalloc_free(block);
}

// Parks are open, for as long as something is parked.
class ParksAge : public ::testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_test::set("purge.decay_ms", 3600000);
    ASSERT_EQ(rdmalloc_init(), 0);  // which starts the purge thread
    // Until the first thread has a cache, that one looks each second whether it is the last.
    rdmalloc_free(rdmalloc_malloc(64));
    rdmalloc_test::open_parks();
  }
};

TEST_F(ParksAge, I7_what_is_parked_goes_back_after_the_decay_time_with_no_further_call) {
  park(60, kSlice);
  ASSERT_GE(parked(), kMiB);
  uint64_t purged = counter("stats.purged_bytes");
  rdmalloc_test::set("purge.decay_ms", 20);
  wait_until([] { return counter("stats.dirty_bytes") == 0; });
  EXPECT_EQ(parked(), 0u);
  // Which is counted when the kernel has taken all of it.
  wait_until([&] { return counter("stats.purged_bytes") >= purged + kMiB; });
}

TEST_F(ParksAge, a_run_alone_wakes_the_purge_thread_that_sleeps_for_want_of_work) {
  rdmalloc_test::set("purge.decay_ms", 100);
  for (int round = 0; round < 36; round++) {
    uint64_t hits = counter("stats.park_hits");
    park(1, 300 * kKiB);
    park(1, 300 * kKiB);
    if (counter("stats.park_hits") == hits) {
      rdmalloc_test::open_parks();
    }
    // At its next tick the thread finds nothing, but that parks are in use. It goes to sleep then,
    // once it has settled the slabs of the threads above.
    ASSERT_GE(rdmalloc_purge(0), 0);
    usleep(40000);
    if (round % 12 != 11) continue;
    park(1, 300 * kKiB);
    wait_until([] { return counter("stats.dirty_bytes") == 0; });
    ASSERT_EQ(parked(), 0u);
  }
}

TEST_F(ParksAge, parks_close_when_they_are_not_used) {
  rdmalloc_test::set("purge.decay_ms", 20);
  // Never closed: the test's own limit ends that.
  for (bool is_closed = false; !is_closed;) {
    usleep(50000);  // ten ticks, where the thread gets to run
    uint64_t hits = counter("stats.park_hits");
    park(1, 300 * kKiB);
    park(1, 300 * kKiB);
    is_closed = counter("stats.park_hits") == hits;
  }
  rdmalloc_test::open_parks();
}

TEST_F(ParksAge, what_is_parked_counts_against_the_ceiling) {
  uint64_t ceiling = counter("purge.dirty_max_bytes");
  park(60, kSlice);
  ASSERT_GE(parked(), kMiB);
  // The next tick finds that it is too much, long before it is old.
  rdmalloc_test::set("purge.dirty_max_bytes", 300 * kKiB);
  wait_until([] { return counter("stats.dirty_bytes") <= 300 * kKiB; });
  rdmalloc_test::set("purge.dirty_max_bytes", ceiling);
}

// RDMALLOC_LIMIT is 256 MiB, of which all this takes 250: there is nothing to purge for.
TEST_F(ParksAge, what_is_parked_counts_once_against_the_limit) {
  ASSERT_GE(rdmalloc_purge(0), 0);
  rdmalloc_test::open_parks();
  void* used = rdmalloc_malloc(222 * kMiB);
  ASSERT_NE(used, nullptr);
  park(60, 4 * kSlice);  // 8 MiB are parked, the rest is dirty
  park(1, 13 * kMiB);
  uint64_t before = parked(), dirty = counter("stats.dirty_bytes");
  ASSERT_GE(before, 7 * kMiB);
  ASSERT_GE(dirty, 27 * kMiB);
  for (uint64_t round = 1; round <= 5; round++) {
    rdmalloc_test::set("purge.decay_ms", 3600000 - round);  // wakes the purge thread
    usleep(20000);
  }
  EXPECT_EQ(parked(), before);
  EXPECT_EQ(counter("stats.dirty_bytes"), dirty);
  rdmalloc_free(used);
  ASSERT_GE(rdmalloc_purge(0), 0);
}

// Takes all there is as blocks of one slice, and frees the last ones, which lie side by side.
// Whether these were parked: a tick that found nothing parked may have closed the parks.
bool park_the_last(std::vector<void*>& all) {
  while (void* block = rdmalloc_malloc(kSlice)) all.push_back(block);
  for (size_t i = 0; i < 32; i++) {
    rdmalloc_free(all.back());
    all.pop_back();
  }
  return parked() >= kMiB;
}

// RDMALLOC_ARENA is 256 MiB.
TEST_F(ParksAge, what_is_parked_is_no_reason_for_malloc_to_fail) {
  for (size_t bytes : {100 * kKiB, 1000 * kKiB, 30 * kKiB}) {
    std::vector<void*> all;
    while (!park_the_last(all)) {
      for (void* block : all) rdmalloc_free(block);
      all.clear();
      rdmalloc_test::open_parks();
    }
    ASSERT_GT(all.size(), 3000u);
    void* block = rdmalloc_malloc(bytes);
    EXPECT_NE(block, nullptr) << bytes;
    rdmalloc_free(block);
    for (void* one : all) rdmalloc_free(one);
  }
}

TEST_F(ParksAge, threads_that_pass_runs_to_each_other_keep_what_is_theirs) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kForks = 0, kRounds = 3000;
#else
  constexpr int kForks = 20, kRounds = 20000;
#endif
  constexpr size_t kThreads = 4, kPassed = 8;
  struct Block {
    unsigned char* start;
    size_t bytes;
  };
  std::mutex lock;
  std::vector<Block> passed;
  std::atomic<unsigned> running{kThreads};
  uint64_t hits = counter("stats.park_hits");
  auto fill = [](const Block& block, unsigned char mark) {
    for (size_t at = 0; at < block.bytes; at += 8 * kKiB) block.start[at] = mark;
  };
  auto is_filled = [](const Block& block) {
    for (size_t at = 0; at < block.bytes; at += 8 * kKiB)
      if (block.start[at] != block.start[0]) return false;
    return true;
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; i++) {
    threads.emplace_back([&, i] {
      Random random(i + 1);
      for (int round = 0; round < kRounds; round++) {
        Block block = {nullptr, random.size_between(kSlice / 2 + 1, 1200 * kKiB)};
        block.start = static_cast<unsigned char*>(
            random.below(4) == 0 ? rdmalloc_calloc(1, block.bytes) : rdmalloc_malloc(block.bytes));
        ASSERT_NE(block.start, nullptr);
        fill(block, static_cast<unsigned char>(round * 4 + static_cast<int>(i)));
        if (random.below(8) == 0) {
          size_t bytes = random.size_between(kSlice / 2 + 1, 1200 * kKiB);
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
  // Not before they are used: until then a tick that finds nothing parked would close them.
  wait_until([&] { return counter("stats.park_hits") > hits; });
  rdmalloc_test::set("purge.decay_ms", 10);
  for (int child = 0; child < kForks && running != 0; child++) {
    usleep(5000);
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      for (int i = 0; i < 200; i++) {
        size_t bytes = kSlice * static_cast<size_t>(1 + i % 16);
        void* block = rdmalloc_malloc(bytes);
        if (block == nullptr) _exit(2);
        memset(block, 1, bytes);
        rdmalloc_free(block);
      }
      _exit(rdmalloc_purge(0) < 0 ? 3 : 0);
    }
    int status = -1;
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status)) << "the child hangs";
    EXPECT_EQ(status, 0) << child;
  }
  for (std::thread& thread : threads) thread.join();
  for (const Block& block : passed) rdmalloc_free(block.start);
  wait_until([] { return counter("stats.dirty_bytes") == 0; });
  EXPECT_EQ(counter("stats.parked_runs"), 0u);
  EXPECT_EQ(counter("stats.large_spans"), 0u);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_ARENA=256M", "RDMALLOC_LIMIT=256M"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
