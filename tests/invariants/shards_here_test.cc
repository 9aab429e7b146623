// SPDX-License-Identifier: BSD-3-Clause
//
// Which shard a thread is in on this machine, as it is.
//
// Seen to fail: with a thread that goes to the shard of its processor at each look; with one that
// never leaves its shard.
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "alloc/pages/page_heap_state.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;

constexpr size_t kLargeBytes = 1 << 20;

std::vector<int> processors() {
  cpu_set_t all;
  std::vector<int> found;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return found;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
    if (CPU_ISSET(cpu, &all)) found.push_back(cpu);
  return found;
}

void run_on(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

// Asking looks where the thread is, as each 32nd trip to the slow path does.
uint64_t shard() {
  rdmalloc_free(rdmalloc_malloc(64));
  return counter("thread.shard");
}

TEST(ShardsHere, a_thread_alone_in_a_shard_stays_and_two_that_meet_part) {
  std::vector<int> cpus = processors();
  if (cpus.size() < 2) GTEST_SKIP() << "SKIP: one processor here";
  ASSERT_EQ(rdmalloc_init(), 0);
  std::atomic<int> step{0};
  std::thread first([&] {
    run_on(cpus[0]);
    uint64_t home = shard();
    run_on(cpus[1]);
    EXPECT_EQ(shard(), home) << "it has it for itself";
    std::thread second([&] {
      run_on(cpus[0]);
      EXPECT_EQ(shard(), home) << "that of the processor";
      step = 1;
      while (step != 2) usleep(1000);
      EXPECT_EQ(shard(), home);
    });
    while (step != 1) usleep(1000);
    EXPECT_NE(shard(), home) << "now there are two";
    step = 2;
    second.join();
  });
  first.join();
}

// The heap that a block of 1 MiB is from, which is that of the shard of its thread.
unsigned heap_of_a_large_block() {
  void* block = rdmalloc_malloc(kLargeBytes);
  rdmalloc::SliceIndex slice = rdmalloc::arena.slice_of(reinterpret_cast<uintptr_t>(block));
  rdmalloc_free(block);
  return rdmalloc::page_heap_state::heap_of(slice).index;
}

// Threads that never allocate a small block: 16 of them on as many processors met in 13 heaps for
// good. Seen to fail without the look in cache_shard_for_large(), and without a cache there.
TEST(ShardsHere, threads_of_large_blocks_alone_part_too) {
  std::vector<int> cpus = processors();
  if (cpus.size() < 2) GTEST_SKIP() << "SKIP: one processor here";
  ASSERT_EQ(rdmalloc_init(), 0);
  std::atomic<int> step{0};
  unsigned heaps[2] = {};
  auto work = [&](int i) {
    run_on(cpus[0]);
    while (step < i) usleep(1000);
    heaps[i] = heap_of_a_large_block();
    step++;
    while (step < 2) usleep(1000);
    if (i == 1) run_on(cpus[1]);
    for (int n = 0; n < 100; n++) heaps[i] = heap_of_a_large_block();
    step++;
    while (step < 4) usleep(1000);  // one that is alone may stay
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  EXPECT_NE(heaps[0], heaps[1]);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_TOPOLOGY=auto", "RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
