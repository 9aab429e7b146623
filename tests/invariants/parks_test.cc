// SPDX-License-Identifier: BSD-3-Clause
//
// Parks: runs that were freed last, kept by each shard for the next block of their length. On a
// made-up machine of two nodes with two processors each, with RDMALLOC_PURGE=manual, so that
// nothing goes back by itself; parks_thread_test.cc has the rest.
//
// Seen to fail: ParksClosed with parks open from the start, and with meetings with a purge counted;
// what_is_freed with statistics that count parked runs as used, with one park a thread; calloc with
// parked runs called zero; alignment_… with any alignment served, with arrays that grew parked;
// in_use_for_nobody and the double free with the class map kept; generations_… with each park
// counting for itself; shards_… with shard 0 for all; pages_of_another_node with any node parked;
// I7_each_shard with no bound in bytes, with full parks that keep the older; I7_all_of_them with no
// share of the ceiling; a decay time of 0 with parks that keep their size; rdmalloc_purge_… with
// parks left as they are; takes_nothing_of_the_limit and a_parked_neighbour without parks_return()
// in taking, without make_room_of_parks(); a_registration with runs that leave dirty, not spared;
// I11 with parks left as they were, with no walk for those of vanished threads; can_stop_them_too
// with the locks of counted shards alone freed.
#include "tests/invariants/parks.h"

#include <gtest/gtest.h>
#include <rdmalloc/regcache.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "alloc/pages/page_heap.h"
#include "tests/invariants/places.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::go_to;
using rdmalloc_test::Random;
using rdmalloc_test::run_at;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kSlice = 64 * kKiB;
constexpr size_t kLongest = 1 * kMiB, kMostOfShard = 8 * kMiB, kMostRunsOfShard = 32;

char* touched(size_t bytes) {
  auto* block = static_cast<char*>(rdmalloc_malloc(bytes));
  memset(block, 1, bytes);
  return block;
}
std::vector<char*> blocks_of(size_t count, size_t bytes) {
  std::vector<char*> blocks(count);
  for (char*& block : blocks) block = touched(bytes);
  return blocks;
}
void release(const std::vector<char*>& blocks) {
  for (char* block : blocks) rdmalloc_free(block);
}

uint64_t parked() {
  return counter("stats.parked_bytes");
}
uint64_t hits() {
  return counter("stats.park_hits");
}

// Parks are open and empty.
class Parks : public ::testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_test::set("purge.decay_ms", 3600000);
    go_to(0);
    // No pages of another node, of the test before: runs of them would come back again and again.
    ASSERT_GE(rdmalloc_purge(0), 0);
    rdmalloc_test::open_parks();
    ASSERT_GE(rdmalloc_purge(0), 0);
    ASSERT_EQ(parked(), 0u);
  }
};

// First of all, before any two threads met.
TEST(ParksClosed, a_program_of_one_thread_parks_nothing_whatever_a_purge_does_beside_it) {
  std::atomic<bool> is_ending{false};
  std::thread purger([&] {
    while (!is_ending) EXPECT_GE(rdmalloc_purge(0), 0);
  });
  Random random(1);
  for (int i = 0; i < 200000; i++) rdmalloc_free(rdmalloc_malloc(random.size_between(40000, kMiB)));
  is_ending = true;
  purger.join();
  rdmalloc_free(rdmalloc_malloc(kMiB));
  EXPECT_EQ(parked(), 0u);
  EXPECT_EQ(hits(), 0u);
}

TEST_F(Parks, what_is_freed_comes_back_at_its_address_for_each_length_up_to_1_mib) {
  for (size_t bytes = kSlice; bytes <= kLongest; bytes += kSlice) {
    char* block = touched(bytes);
    uint64_t used = counter("stats.used_bytes"), large = counter("stats.large_spans");
    uint64_t dirty = counter("stats.dirty_bytes"), hits_before = hits(), parked_before = parked();
    rdmalloc_free(block);
    EXPECT_EQ(counter("stats.used_bytes"), used - bytes);
    EXPECT_EQ(counter("stats.dirty_bytes"), dirty + bytes);
    EXPECT_EQ(counter("stats.large_spans"), large - 1);
    // What had to go for it is of shorter runs.
    EXPECT_GE(parked(), bytes);
    EXPECT_LE(parked(), parked_before + bytes);
    EXPECT_EQ(rdmalloc_malloc(bytes - 1000), block) << bytes;
    EXPECT_EQ(hits(), hits_before + 1);
    EXPECT_EQ(counter("stats.used_bytes"), used);
    EXPECT_EQ(counter("stats.large_spans"), large);
    rdmalloc_free(block);
  }
  char* longer = touched(kLongest + 1);
  uint64_t before = parked();
  rdmalloc_free(longer);
  EXPECT_EQ(parked(), before);
}

TEST_F(Parks, calloc_clears_what_was_parked) {
  rdmalloc_free(touched(200 * kKiB));
  uint64_t before = hits();
  auto* block = static_cast<char*>(rdmalloc_calloc(200, kKiB));
  EXPECT_EQ(hits(), before + 1);
  for (size_t i = 0; i < 200 * kKiB; i++) ASSERT_EQ(block[i], 0) << i;
  rdmalloc_free(block);
}

TEST_F(Parks, alignment_of_more_than_a_slice_and_arrays_that_grew_are_the_page_heaps) {
  rdmalloc_free(touched(200 * kKiB));
  uint64_t before = hits();
  void* aligned = rdmalloc_aligned_alloc(2 * kSlice, 200 * kKiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % (2 * kSlice), 0u);
  EXPECT_EQ(hits(), before);
  rdmalloc_free(aligned);
  ASSERT_GE(rdmalloc_purge(0), 0);
  void* array = rdmalloc_malloc(100 * kKiB);
  array = rdmalloc_realloc(array, 700 * kKiB);
  rdmalloc_free(array);
  // Its first place may be parked, that is no array any more.
  EXPECT_LE(parked(), 2 * kSlice);
}

TEST_F(Parks, a_parked_block_is_in_use_for_nobody) {
  char* block = touched(300 * kKiB);
  rdmalloc_range range = {};
  range.size = sizeof range;
  ASSERT_EQ(rdmalloc_range_of(block, &range), 0);
  uint64_t generation = range.generation;
  rdmalloc_free(block);
  ASSERT_GT(parked(), 0u);
  EXPECT_TRUE(rdmalloc_range_is_idle(block, 300 * kKiB));
  EXPECT_EQ(rdmalloc_range_of(block, &range), -EFAULT);
  EXPECT_TRUE(rdmalloc_owns(block));
  auto is_other = [](const rdmalloc_range* seen, void* arg) {
    auto* address = static_cast<char*>(arg);
    auto* base = static_cast<char*>(seen->base);
    return address >= base && address < base + seen->length ? 1 : 0;
  };
  EXPECT_EQ(rdmalloc_range_foreach(is_other, block), 0);
  ASSERT_EQ(rdmalloc_malloc(300 * kKiB), block);
  EXPECT_FALSE(rdmalloc_range_is_idle(block, 1));
  EXPECT_FALSE(rdmalloc_range_is_idle(block + 300 * kKiB - 1, 1));
  EXPECT_EQ(rdmalloc_range_foreach(is_other, block), 1);
  ASSERT_EQ(rdmalloc_range_of(block, &range), 0);
  EXPECT_EQ(range.base, block);
  EXPECT_EQ(range.length, 320 * kKiB);
  EXPECT_NE(range.generation, generation);
  rdmalloc_free(block);
}

TEST_F(Parks, generations_of_one_address_never_repeat) {
  std::vector<uint64_t> seen;
  rdmalloc_range range = {};
  range.size = sizeof range;
  for (int i = 0; i < 1000; i++) {
    char* block = touched(kSlice);
    ASSERT_EQ(rdmalloc_range_of(block, &range), 0);
    for (uint64_t generation : seen) ASSERT_NE(generation, range.generation) << i;
    seen.push_back(range.generation);
    rdmalloc_free(block);
    // Some by way of the page heap, whose numbers are drawn beside.
    if (i % 50 == 0) {
      ASSERT_GE(rdmalloc_purge(0), 0);
    }
  }
}

// In a child, where parks are opened anew.
TEST(ParksDeathTest, a_double_free_of_a_parked_block_is_reported) {
  EXPECT_DEATH(
      {
        rdmalloc_test::open_parks();
        char* block = touched(300 * kKiB);
        uint64_t before = counter("stats.parked_runs");
        rdmalloc_free(block);
        if (counter("stats.parked_runs") >= before) rdmalloc_free(block);
      },
      "double free");
}

TEST_F(Parks, shards_have_parks_of_their_own) {
  char* block = touched(300 * kKiB);
  rdmalloc_free(block);
  run_at(1, [&] {
    uint64_t before = hits();
    void* other = rdmalloc_malloc(300 * kKiB);
    EXPECT_NE(other, block);
    EXPECT_EQ(hits(), before);
    rdmalloc_free(other);
    EXPECT_EQ(rdmalloc_malloc(300 * kKiB), other);
    EXPECT_EQ(hits(), before + 1);
    rdmalloc_free(other);
  });
  EXPECT_EQ(rdmalloc_malloc(300 * kKiB), block);
  rdmalloc_free(block);
}

TEST_F(Parks, threads_of_a_shard_find_each_others_runs) {
  char* block = touched(300 * kKiB);
  rdmalloc_free(block);
  // Thread ids follow each other, so each begins with another park.
  for (int i = 0; i < 5; i++)
    run_at(0, [&] {
      EXPECT_EQ(rdmalloc_malloc(300 * kKiB), block) << i;
      rdmalloc_free(block);
    });
}

TEST_F(Parks, pages_of_another_node_are_not_parked) {
  char* far = nullptr;
  run_at(2, [&] { far = touched(300 * kKiB); });
  rdmalloc_free(far);
  EXPECT_EQ(parked(), 0u);
  run_at(2, [&] {
    char* here = touched(300 * kKiB);
    rdmalloc_free(here);
  });
  EXPECT_GT(parked(), 0u);
}

TEST_F(Parks, I7_each_shard_holds_8_mib_at_most_and_the_newest) {
  for (size_t bytes : {kSlice, 3 * kSlice, 7 * kSlice, kLongest}) {
    // What lies in parks that no thread begins with would stay.
    ASSERT_GE(rdmalloc_purge(0), 0);
    std::vector<char*> blocks = blocks_of(60, bytes);
    release(blocks);
    EXPECT_LE(parked(), kMostOfShard);
    EXPECT_LE(counter("stats.parked_runs"), kMostRunsOfShard);
    EXPECT_GE(parked(), std::min(kMostOfShard, kMostRunsOfShard * bytes) / 2);
    uint64_t before = hits();
    EXPECT_EQ(rdmalloc_malloc(bytes), blocks.back()) << bytes;
    EXPECT_EQ(hits(), before + 1);
    rdmalloc_free(blocks.back());
  }
}

TEST_F(Parks, I7_all_of_them_hold_a_quarter_of_the_ceiling_at_most) {
  uint64_t ceiling = counter("purge.dirty_max_bytes");
  for (uint64_t most : {64 * kMiB, 8 * kMiB, 4 * kMiB, 1 * kMiB}) {
    rdmalloc_test::set("purge.dirty_max_bytes", most);
    ASSERT_GE(rdmalloc_purge(0), 0);
    for (uint64_t place = 0; place < 4; place++)
      run_at(place, [] {
        for (size_t bytes : {kSlice, 3 * kSlice, kLongest}) release(blocks_of(20, bytes));
      });
    EXPECT_LE(parked(), most / 4);
    if (most >= 8 * kMiB) {
      EXPECT_GT(parked(), most / 16);
    }
  }
  rdmalloc_test::set("purge.dirty_max_bytes", ceiling);
}

TEST_F(Parks, with_a_decay_time_of_0_nothing_is_parked) {
  rdmalloc_test::set("purge.decay_ms", 0);
  rdmalloc_free(touched(300 * kKiB));
  EXPECT_EQ(parked(), 0u);
}

TEST_F(Parks, rdmalloc_purge_gives_parked_pages_back) {
  release(blocks_of(60, kLongest));
  uint64_t before = parked(), purged = counter("stats.purged_bytes");
  ASSERT_GE(before, kMostOfShard / 2) << "the test wants them full";
  // What may stay includes it.
  EXPECT_GE(rdmalloc_purge(before), 0);
  EXPECT_LE(counter("stats.dirty_bytes"), before);
  EXPECT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(parked(), 0u);
  EXPECT_EQ(counter("stats.dirty_bytes"), 0u);
  EXPECT_GE(counter("stats.purged_bytes"), purged + before);
}

// Allocates until there is no more, and frees it. How many.
size_t most_blocks(size_t bytes) {
  std::vector<void*> blocks;
  while (void* block = rdmalloc_malloc(bytes)) blocks.push_back(block);
  for (void* block : blocks) rdmalloc_free(block);
  return blocks.size();
}

// RDMALLOC_LIMIT is 96 MiB.
TEST_F(Parks, what_is_parked_takes_nothing_of_the_limit) {
  for (size_t bytes : {2 * kMiB, 700 * kKiB, 20 * kKiB}) {
    ASSERT_GE(rdmalloc_purge(0), 0);
    ASSERT_EQ(parked(), 0u);
    size_t without = most_blocks(bytes);
    ASSERT_GE(rdmalloc_purge(0), 0);
    release(blocks_of(60, kSlice));
    ASSERT_GE(parked(), kMostRunsOfShard * kSlice / 2);
    // Slabs lie in one piece; large blocks of this size leave a rest where they are cut.
    EXPECT_EQ(most_blocks(bytes), without) << bytes;
  }
  ASSERT_GE(rdmalloc_purge(0), 0);
  // Growing in place likewise.
  void* array = rdmalloc_malloc(80 * kMiB);
  release(blocks_of(60, kSlice));
  ASSERT_GE(parked(), kMostRunsOfShard * kSlice / 2);
  EXPECT_EQ(rdmalloc_realloc(array, 95 * kMiB), array);
  EXPECT_EQ(parked(), 0u);
  rdmalloc_free(array);
}

TEST_F(Parks, a_parked_neighbour_makes_room_for_a_block_that_grows) {
  // Neighbours, in a heap that was all given back.
  char* block = touched(kSlice);
  char* behind = touched(kSlice);
  ASSERT_EQ(behind, block + kSlice) << "the test wants neighbours";
  char* far = touched(4 * kSlice);
  rdmalloc_free(behind);
  rdmalloc_free(far);
  uint64_t before = parked();
  ASSERT_GE(before, 5 * kSlice);
  EXPECT_EQ(rdmalloc_realloc(block, 2 * kSlice), block);
  EXPECT_EQ(parked(), before - kSlice);
  rdmalloc_free(block);
}

// ---- registrations ----

std::atomic<int> registered{0};
rdmalloc_domain* open_domain() {
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "counts";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = [](void*, void*, size_t, uint32_t, rdmalloc_key*) {
    registered++;
    return 0;
  };
  ops.deregister = [](void*, void*, size_t, const rdmalloc_key*) { return 0; };
  rdmalloc_domain* domain = nullptr;
  EXPECT_EQ(rdmalloc_domain_open(&ops, nullptr, nullptr, &domain), 0);
  return domain;
}
void use(rdmalloc_domain* domain, char* block, size_t bytes) {
  rdmalloc_reg* reg = nullptr;
  ASSERT_EQ(rdmalloc_reg_get(domain, block, bytes, RDMALLOC_ACCESS_LOCAL_WRITE, &reg), 0);
  rdmalloc_reg_put(reg);
}

TEST_F(Parks, a_registration_lives_on_while_its_buffer_is_parked_and_after_that) {
  constexpr size_t kBytes = 500 * kKiB;
  rdmalloc_domain* domain = open_domain();
  ASSERT_NE(domain, nullptr);
  char* block = touched(kBytes);
  use(domain, block, kBytes);
  ASSERT_EQ(registered, 1);
  for (int i = 0; i < 10; i++) {
    uint64_t before = hits();
    rdmalloc_free(block);
    ASSERT_EQ(rdmalloc_malloc(kBytes), block);
    EXPECT_EQ(hits(), before + 1);
    use(domain, block, kBytes);
  }
  // Pushed out of its park, its place is a buffer's still: the next one lies there once none of its
  // length is parked.
  rdmalloc_free(block);
  release(blocks_of(60, kLongest));
  run_at(1, [&] {
    EXPECT_EQ(rdmalloc_malloc(kBytes), block);
    use(domain, block, kBytes);
  });
  EXPECT_EQ(registered, 1);
  rdmalloc_free(block);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

// ---- fork ----

TEST_F(Parks, I11_the_child_of_a_fork_has_what_was_parked) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "SKIP: the sanitizer's runtime does not survive a fork beside running threads";
#endif
  ASSERT_GE(rdmalloc_purge(0), 0);
  std::atomic<bool> is_ending{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; i++) {
    threads.emplace_back([&, i] {
      go_to(i);
      Random random(i + 1);
      while (!is_ending) rdmalloc_free(rdmalloc_malloc(random.size_between(kSlice, kLongest)));
    });
  }
  for (int child = 0; child < 40; child++) {
    usleep(2000);
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      uint64_t left = 0;
      size_t size = sizeof left;
      std::vector<void*> blocks;
      for (int i = 0; i < 60; i++) {
        blocks.push_back(rdmalloc_malloc(kSlice * static_cast<size_t>(1 + i % 16)));
        if (blocks.back() == nullptr) _exit(2);
        memset(blocks.back(), i + 1, kSlice * static_cast<size_t>(1 + i % 16));
      }
      for (int i = 0; i < 60; i++) {
        auto* block = static_cast<char*>(blocks[static_cast<size_t>(i)]);
        if (block[0] != i + 1 || block[kSlice * static_cast<size_t>(1 + i % 16) - 1] != i + 1)
          _exit(3);
        rdmalloc_free(block);
      }
      rdmalloc_ctl("stats.parked_runs", &left, &size, nullptr, 0);
      if (left != 0) _exit(4);
      if (rdmalloc_purge(0) < 0) _exit(5);
      // Of each vanished thread one block was on its way at most.
      rdmalloc_ctl("stats.large_spans", &left, &size, nullptr, 0);
      if (left > 4) _exit(6);
      _exit(0);
    }
    int status = -1;
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status)) << "the child hangs";
    EXPECT_EQ(status, 0) << child;
  }
  is_ending = true;
  for (std::thread& thread : threads) thread.join();
}

// As a checked build's purge thread does after each round: of parks it holds all there may ever be.
TEST_F(Parks, I11_a_child_born_while_another_thread_stops_all_parks_can_stop_them_too) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "SKIP: the sanitizer's runtime does not survive a fork beside running threads";
#endif
  std::atomic<bool> is_ending{false};
  std::thread checker([&] {
    while (!is_ending) EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  });
  for (int child = 0; child < 20; child++) {
    usleep(1000);
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      rdmalloc_free(rdmalloc_malloc(kMiB));
      _exit(rdmalloc::page_heap_is_valid() ? 0 : 2);
    }
    int status = -1;
    EXPECT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status)) << "the child hangs";
    EXPECT_EQ(status, 0) << child;
    if (HasFailure()) break;
  }
  is_ending = true;
  checker.join();
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(
      argv, {"RDMALLOC_TOPOLOGY=2x2", "RDMALLOC_PURGE=manual", "RDMALLOC_LIMIT=96M"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
