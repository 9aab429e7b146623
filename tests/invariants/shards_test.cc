// SPDX-License-Identifier: BSD-3-Clause
//
// Shards of the depot and the slabs, on a made-up machine of two nodes with 16 processors
// each. Threads say which of them they run at ("thread.place").
//
// Seen to fail: empty_magazines with one stack for all shards, with no bound and with one new
// magazine at once; a_shard_steals with no stealing from depots; a_dead_shards_memory and
// what_a_live_shard with none from slabs; the_depot_is_bounded with a whole share for each shard;
// I11_…_memory with the lists of shard 0 alone made anew in a child, I11_…_threads with their
// counts cleared there whichever thread recovers and with the caches of vanished threads kept,
// I11_…_segments with new ones whose words are written behind the first one's heap. Nodes have a
// file of their own, shards_nodes_test.cc.
#include <errno.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "alloc/cache/depot.h"
#include "alloc/core/shard.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/segments.h"
#include "tests/invariants/places.h"
#include "tests/support/by_steps.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::allocate;
using rdmalloc_test::counter;
using rdmalloc_test::go_to;
using rdmalloc_test::Random;
using rdmalloc_test::release;
using rdmalloc_test::Resident;
using rdmalloc_test::run_at;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr unsigned kPlaces = 32, kPlacesOfNode = 16;

// Leaves full magazines in this place's part of the depot.
void fill_depot(size_t bytes) {
  release(allocate(4000, bytes));
  ASSERT_GT(counter("stats.depot_bytes"), 0u);
}

TEST(Shards, a_shard_comes_to_be_when_a_thread_is_first_seen_at_its_place) {
  rdmalloc_free(rdmalloc_malloc(64));
  EXPECT_EQ(counter("stats.shards"), 1u);
  EXPECT_EQ(counter("thread.shard"), 0u);
  go_to(9);
  EXPECT_EQ(counter("stats.shards"), 2u);
  EXPECT_EQ(counter("thread.shard"), 1u);
  go_to(0);
  EXPECT_EQ(counter("thread.shard"), 0u);
  go_to(9);
  EXPECT_EQ(counter("stats.shards"), 2u);
  uint64_t place = kPlaces;
  EXPECT_EQ(rdmalloc_ctl("thread.place", nullptr, nullptr, &place, sizeof place), -EPERM);
}

// The first call of each of two threads, in children that know no topology yet. Seen to fail with
// -EPERM for the thread that met the other on its way through the table.
TEST(Shards, threads_may_choose_their_places_at_once_and_first_of_all) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kChildren = 50;
#else
  constexpr int kChildren = 200;
#endif
  counter("purge.decay_ms");  // all else is known
  for (int child = 0; child < kChildren; child++) {
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      std::atomic<int> ready{0}, errors{0};
      auto choose = [&](uint64_t place) {
        ready++;
        while (ready != 2) {
        }
        if (rdmalloc_ctl("thread.place", nullptr, nullptr, &place, sizeof place) != 0) errors++;
      };
      std::thread other(choose, 9);
      choose(3);
      other.join();
      _exit(errors);
    }
    int status = -1;
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status)) << "the child hangs";
    ASSERT_EQ(status, 0) << child;
  }
}

TEST(Shards, threads_are_dealt_to_the_places_in_turn) {
  rdmalloc_free(rdmalloc_malloc(64));
  for (uint64_t i = 1; i < kPlaces; i++)
    std::thread([i] {
      rdmalloc_free(rdmalloc_malloc(64));
      EXPECT_EQ(counter("thread.place"), i);
    }).join();
  EXPECT_EQ(counter("stats.shards"), kPlaces);
}

TEST(Shards, a_thread_takes_from_its_own_depot) {
  Resident first(0), second(1);
  go_to(0);
  std::vector<void*> ours = allocate(4000, 64), theirs;
  run_at(1, [&] { theirs = allocate(4000, 64); });
  run_at(1, [&] { release(theirs); });
  release(ours);
  uint64_t steals = counter("stats.shard_steals"), depot = counter("stats.depot_bytes");
  std::vector<void*> blocks = allocate(1000, 64);
  EXPECT_EQ(counter("stats.shard_steals"), steals);
  EXPECT_LE(counter("stats.depot_bytes") + size_t{500} * 64, depot);
  release(blocks);
}

TEST(Shards, a_shard_steals_from_the_depot_of_another_of_its_node) {
  Resident first(0), third(2);
  go_to(0);
  fill_depot(64);
  uint64_t depot = counter("stats.depot_bytes"), used = counter("stats.used_bytes");
  run_at(2, [&] {
    // Its own slab has 1,024 of them.
    std::vector<void*> blocks = allocate(3000, 64);
    EXPECT_GT(counter("stats.shard_steals"), 0u);
    EXPECT_LE(counter("stats.depot_bytes") + size_t{1900} * 64, depot);
    EXPECT_LE(counter("stats.used_bytes"), used + 64 * kKiB);
    release(blocks);
  });
}

// Of a slab each of whose pages has a block that stays. Seen to fail with the others' depots asked
// first.
TEST(Shards, pages_that_a_shard_has_used_come_before_what_others_have) {
  Resident first(0), third(2);
  std::vector<void*> kept, blocks;
  go_to(0);
  std::vector<void*> ours = allocate(4000, 64);
  run_at(2, [&] {
    blocks = allocate(900, 64);  // its slab has 1,024
    for (size_t i = 0; i < blocks.size(); i++)
      if (i % 8 == 0) {
        kept.push_back(blocks[i]);
        blocks[i] = nullptr;
      }
    release(blocks);
  });
  EXPECT_GE(rdmalloc_purge(0), 0);  // from the depot into the slab
  release(ours);
  ASSERT_GT(counter("stats.depot_bytes"), 0u);
  run_at(2, [&] {
    uint64_t steals = counter("stats.shard_steals"), depot = counter("stats.depot_bytes");
    blocks = allocate(600, 64);
    EXPECT_EQ(counter("stats.shard_steals"), steals);
    EXPECT_EQ(counter("stats.depot_bytes"), depot);
    release(blocks);
  });
  release(kept);
}

// Seen to fail with the whole slab taken first, and for the second size, of which no magazine is
// full, with full ones alone.
TEST(Shards, what_others_have_comes_before_pages_that_are_new) {
  Resident first(0), third(2);
  std::vector<void*> kept;
  run_at(2, [&] { kept = allocate(8, 64); });  // its slab has 1,024
  run_at(2, [&] {
    std::vector<void*> more = allocate(2, 1000);
    kept.insert(kept.end(), more.begin(), more.end());
  });
  go_to(0);
  fill_depot(64);
  run_at(0, [] { release(allocate(20, 1000)); });
  uint64_t depot = counter("stats.depot_bytes");
  run_at(2, [&] {
    std::vector<void*> blocks = allocate(800, 64);
    EXPECT_LE(counter("stats.depot_bytes") + size_t{700} * 64, depot);
    depot = counter("stats.depot_bytes");
    std::vector<void*> longer = allocate(16, 1000);
    EXPECT_LE(counter("stats.depot_bytes") + size_t{8} * 1000, depot);
    release(blocks);
    release(longer);
  });
  release(kept);
}

// Seen to fail with the blocks put into the depot of the shard that frees them.
TEST(Shards, what_a_thread_only_frees_goes_where_it_is_allocated) {
  Resident first(0), third(2);
  go_to(0);
  std::vector<void*> ours = allocate(4000, 64);
  run_at(2, [&] { release(ours); });
  uint64_t steals = counter("stats.shard_steals"), depot = counter("stats.depot_bytes");
  EXPECT_GT(depot, 1000u * 64);
  std::vector<void*> blocks = allocate(1000, 64);
  EXPECT_EQ(counter("stats.shard_steals"), steals);
  EXPECT_LE(counter("stats.depot_bytes") + size_t{800} * 64, depot);
  release(blocks);
}

// 40 classes, of which one block each is three times the share. Seen to fail with none of its own.
TEST(Shards, a_thread_keeps_a_few_blocks_of_each_class_whatever_its_share) {
  std::vector<std::unique_ptr<Resident>> all;
  for (unsigned place = 1; place < kPlaces; place++)
    all.push_back(std::make_unique<Resident>(place));
  go_to(0);
  std::vector<void*> blocks;
  for (size_t doubling = kKiB; doubling < 32 * kKiB; doubling *= 2)
    for (size_t eighth = 1; eighth <= 8; eighth++)
      blocks.push_back(rdmalloc_malloc(doubling + doubling / 8 * eighth));
  release(blocks);
  EXPECT_EQ(counter("stats.depot_bytes"), 0u);
}

// Of slabs of few blocks. Seen to fail with one kept, as where there is one shard.
TEST(Shards, slabs_that_are_empty_stay_for_the_next_blocks_of_their_shard) {
  std::vector<std::unique_ptr<Resident>> all;
  for (unsigned place = 0; place < kPlacesOfNode; place++)
    all.push_back(std::make_unique<Resident>(place));
  go_to(0);
  std::vector<void*> blocks = allocate(128, 32 * kKiB);  // eight slabs
  uint64_t slabs = counter("stats.slab_spans");
  release(blocks);
  EXPECT_EQ(counter("stats.slab_spans"), slabs);
  EXPECT_GE(rdmalloc_purge(0), 0);
  EXPECT_LE(counter("stats.slab_spans") + 8, slabs);
}

TEST(Shards, the_depot_of_another_node_is_left_alone) {
  Resident near(0), far(kPlacesOfNode);
  go_to(0);
  fill_depot(64);
  uint64_t depot = counter("stats.depot_bytes"), steals = counter("stats.shard_steals");
  run_at(kPlacesOfNode, [&] {
    std::vector<void*> blocks = allocate(2000, 64);
    EXPECT_EQ(counter("stats.depot_bytes"), depot);
    EXPECT_EQ(counter("stats.shard_steals"), steals);
    release(blocks);
  });
}

TEST(Shards, the_depot_is_bounded_over_all_shards_as_it_is_over_one) {
  constexpr size_t kBytes = 64, kBound = 2 * kMiB;
  go_to(0);
  release(allocate(100000, kBytes));  // one shard's share is all of it so far
  EXPECT_GT(counter("stats.depot_bytes"), kBound / 2);
  EXPECT_LE(counter("stats.depot_bytes"), kBound);
  std::vector<std::vector<void*>> of_place(kPlaces);
  for (unsigned place = 0; place < kPlaces; place++) {
    run_at(place, [&] { of_place[place] = allocate(20000, kBytes); });
    EXPECT_LE(counter("stats.depot_bytes"), kBound) << place;
  }
  for (unsigned place = 0; place < kPlaces; place++) {
    run_at(place, [&] { release(of_place[place]); });
    EXPECT_LE(counter("stats.depot_bytes"), kBound) << place;
  }
  EXPECT_GT(counter("stats.depot_bytes"), kBound / 2);
}

TEST(Shards, empty_magazines_go_round_within_their_shard_up_to_a_bound) {
  constexpr size_t kBound = 128;
  run_at(1, [] { rdmalloc_free(rdmalloc_malloc(64)); });
  ASSERT_EQ(counter("stats.shards"), 2u);
  // What there is already, until a page of new ones is made; and the rest of that.
  constexpr uint32_t kAtOnce = 4096 / sizeof(rdmalloc::Magazine);
  for (unsigned shard : {0u, 1u}) {
    uint32_t before = rdmalloc::magazines.used();
    while (rdmalloc::magazines.used() == before) rdmalloc::depot_take_empty(shard);
    ASSERT_LE(rdmalloc::magazines.used(), before + kAtOnce);
    for (uint32_t i = before + 1; i < rdmalloc::magazines.used(); i++)
      rdmalloc::depot_take_empty(shard);
  }
  std::vector<rdmalloc::Magazine*> made(kBound + 1);
  for (rdmalloc::Magazine*& magazine : made) magazine = rdmalloc::magazines.allocate();
  uint32_t used = rdmalloc::magazines.used();
  for (rdmalloc::Magazine* magazine : made) rdmalloc::depot_put_empty(1, magazine);
  // The one too many is everybody's.
  EXPECT_EQ(rdmalloc::depot_take_empty(0), made.back());
  EXPECT_EQ(rdmalloc::magazines.used(), used);
  for (size_t i = kBound; i-- > 0;) EXPECT_EQ(rdmalloc::depot_take_empty(1), made[i]) << i;
  rdmalloc::depot_take_empty(0);
  EXPECT_EQ(rdmalloc::magazines.used(), used + kAtOnce) << "taken of the other shard, or alone";
}

TEST(Shards, producer_and_consumer_in_different_shards_stay_within_bounds) {
  for (unsigned consumer : {1u, kPlacesOfNode}) {
    constexpr size_t kBatch = 500, kBatches = 2000;
    std::atomic<std::vector<void*>*> handed{nullptr};
    std::thread frees([&, consumer] {
      go_to(consumer);
      for (size_t i = 0; i < kBatches; i++) {
        std::vector<void*>* batch = nullptr;
        while ((batch = handed.exchange(nullptr)) == nullptr) sched_yield();
        release(*batch);
        delete batch;
      }
    });
    run_at(0, [&] {
      for (size_t i = 0; i < kBatches; i++) {
        auto* batch = new std::vector<void*>(allocate(kBatch, 64));
        std::vector<void*>* none = nullptr;
        while (!handed.compare_exchange_weak(none, batch)) {
          none = nullptr;
          sched_yield();
        }
      }
    });
    frees.join();
    // A million blocks, 64 MB, passed; as many as three batches are alive at once.
    EXPECT_LE(counter("stats.used_bytes"), 8 * kMiB) << consumer;
  }
}

TEST(Shards, a_dead_shards_memory_is_used_by_the_others_before_new_memory) {
  constexpr size_t kBytes = 256, kBlocks = 100000;
  Resident here(0), there(kPlacesOfNode);
  for (uint64_t place : {uint64_t{1}, uint64_t{kPlacesOfNode + 1}}) {
    std::vector<void*> kept;
    run_at(place, [&] {
      std::vector<void*> blocks = allocate(kBlocks, kBytes);
      for (size_t i = 0; i < kBlocks; i++) {
        if (i % 100 == 0) {
          kept.push_back(blocks[i]);
        } else {
          rdmalloc_free(blocks[i]);
        }
      }
    });
    uint64_t used = counter("stats.used_bytes");
    // No thread is left there. On the same node and on the other one:
    for (uint64_t heir : {uint64_t{0}, uint64_t{kPlacesOfNode}}) {
      run_at(heir, [&] {
        std::vector<void*> blocks = allocate(kBlocks / 2, kBytes);
        EXPECT_LE(counter("stats.used_bytes"), used + 1 * kMiB) << place << ' ' << heir;
        release(blocks);
      });
    }
    release(kept);
  }
}

TEST(Shards, what_a_live_shard_can_spare_is_used_before_new_memory) {
  constexpr size_t kBytes = 256, kBlocks = 100000;
  Resident first(0), second(1);
  std::vector<void*> kept;
  run_at(0, [&] {
    std::vector<void*> blocks = allocate(kBlocks, kBytes);
    for (size_t i = 0; i < kBlocks; i++)
      i % 100 == 0 ? kept.push_back(blocks[i]) : rdmalloc_free(blocks[i]);
  });
  uint64_t used = counter("stats.used_bytes");
  run_at(1, [&] {
    std::vector<void*> blocks = allocate(kBlocks / 2, kBytes);
    EXPECT_LE(counter("stats.used_bytes"), used + 1 * kMiB);
    release(blocks);
  });
  release(kept);
}

TEST(Shards, I7_a_thousand_threads_on_32_shards_stay_within_ones_bounds) {
  constexpr unsigned kThreads = 1000;
  std::atomic<unsigned> ready{0};
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; i++) {
    threads.emplace_back([&, i] {
      Random random(i + 1);
      std::vector<void*> blocks(200);
      for (void*& block : blocks) block = rdmalloc_malloc(random.size_between(16, 4 * kKiB));
      release(blocks);
      ready++;
      while (!end) usleep(2000);
    });
  }
  while (ready < kThreads) usleep(1000);
  EXPECT_EQ(counter("stats.shards"), kPlaces);
  EXPECT_EQ(counter("stats.threads"), kThreads);
  // Shares, loans, and own blocks of each class (alloc/cache/shares.h).
  EXPECT_LE(counter("stats.cached_bytes"), 66u * 1000 * 1000);
  // 104 classes of 1 MiB, or eight magazines of the largest.
  EXPECT_LE(counter("stats.depot_bytes"), 110 * kMiB);
  end = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(counter("stats.depot_bytes"), 0u);
  EXPECT_LE(counter("stats.live_bytes"), 1 * kMiB);
}

// Seen to fail where a thread takes each magazine whole, which holds up to 62 blocks.
TEST(Shards, a_thread_takes_of_a_magazine_what_it_may_hold) {
  constexpr size_t kBytes = 512, kThreads = 16;
  run_at(0, [&] { release(allocate(62 * 40, kBytes)); });
  uint64_t before = counter("stats.depot_bytes");
  ASSERT_GE(before, 62 * 30 * kBytes);
  std::atomic<unsigned> ready{0};
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; i++) {
    threads.emplace_back([&] {
      go_to(0);
      void* block = rdmalloc_malloc(kBytes);
      ready++;
      while (!end) usleep(1000);
      rdmalloc_free(block);
    });
  }
  while (ready < kThreads) usleep(1000);
  // 16 at the first trip where few threads are: twice what a thread begins with, doubled.
  EXPECT_GE(counter("stats.depot_bytes") + kThreads * 16 * kBytes, before);
  end = true;
  for (std::thread& thread : threads) thread.join();
}

// A thread made there recovers before the one that forked, whose cache is in use all the same.
TEST(Shards, I11_a_child_counts_its_threads_whichever_recovers) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "SKIP: the sanitizer's runtime does not survive a fork beside running threads";
#endif
  rdmalloc_free(rdmalloc_malloc(64));
  Resident one(3), other(4);
  pid_t pid = fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    static uint64_t caches;
    run_at(1, [] {
      rdmalloc_free(rdmalloc_malloc(64));
      caches = counter("stats.threads");
    });
    if (caches != 2) _exit(2);  // this one's and that thread's
    go_to(2);
    uint32_t threads = 0;
    for (const rdmalloc::Shard& shard : rdmalloc::shards) threads |= shard.threads;
    _exit(threads == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status)) << "the child hangs";
  EXPECT_EQ(status, 0);
}

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

// Blocks of 32 KiB until the shard's heap has taken segments: the first time one, then several.
int blocks_until_segments(uint64_t more, std::vector<void*>& blocks) {
  int count = 0;
  for (uint64_t before = counter("stats.segments"); counter("stats.segments") < before + more;
       count++)
    blocks.push_back(rdmalloc_malloc(32 * kKiB));
  return count;
}

// In a child of its own. 0: its child, born when another thread had gone so many steps into the
// block that takes several new segments, is whole; 1: it would have been born behind; 2: not whole.
int born_amid_new_segments(int steps) {
  using namespace rdmalloc_test::by_steps;
  static int count;
  static std::atomic<void*> last{nullptr};
  std::vector<void*> blocks;
  for (uint64_t place = 1; place <= rdmalloc::kFewShards; place++)
    run_at(place, [] { rdmalloc_free(rdmalloc_malloc(64)); });
  // How many it takes is the same at each place.
  run_at(5, [&] {
    blocks_until_segments(1, blocks);
    count = blocks_until_segments(2, blocks);
  });
  prepare([](int) {});
  std::thread other([&] {
    go_to(6);
    blocks_until_segments(1, blocks);
    for (int i = 1; i < count; i++) blocks.push_back(rdmalloc_malloc(32 * kKiB));
    go_by_steps(steps, [] { last = rdmalloc_malloc(32 * kKiB); });
  });
  while (rdmalloc_test::by_steps::where == kBefore) usleep(100);
  pid_t pid = fork();
  if (pid == 0) {
    for (size_t bytes : {16 * kKiB, 3000 * kKiB}) rdmalloc_free(rdmalloc_malloc(bytes));
    _exit(rdmalloc::page_heap_is_valid() ? 0 : 1);
  }
  int status = -1;
  bool is_whole = pid > 0 && rdmalloc_test::wait_with_limit(pid, 20000, &status) && status == 0;
  bool is_behind = last != nullptr;
  may_go_on = true;
  other.join();
  return !is_whole ? 2 : is_behind ? 1 : 0;
}

TEST(Shards, I11_a_child_born_amid_the_taking_of_segments_is_whole) {
#if RDMALLOC_CHECKED
  constexpr int kStride = 67;  // of more steps; the release build's are users'
#else
  constexpr int kStride = 17;
#endif
  int ends[3] = {};
  for (int steps = 0; steps < 2400 * kStride && ends[1] == 0 && ends[2] == 0; steps += kStride) {
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) _exit(born_amid_new_segments(steps));
    int status = -1;
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 60000, &status)) << steps;
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 3) << steps << " steps: " << status;
    ends[WEXITSTATUS(status)]++;
    EXPECT_EQ(ends[2], 0) << steps << " steps";
  }
  printf("%d children\n", ends[0]);
  EXPECT_GT(ends[0], 10);
  EXPECT_EQ(ends[1], 1);
}

#else

TEST(Shards, I11_a_child_born_amid_the_taking_of_segments_is_whole) {
  GTEST_SKIP() << "SKIP: steps by x86-64's trap flag, and the sanitizers' runtimes survive no fork "
                  "beside running threads";
}

#endif

TEST(Shards, I11_the_child_of_a_fork_has_the_memory_of_all_shards) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "SKIP: the sanitizer's runtime does not survive a fork beside running threads";
#endif
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; i++) {
    threads.emplace_back([&, i] {
      Random random(i + 1);
      std::vector<void*> blocks(500);
      while (!end) {
        go_to(random.below(4) * 8);
        for (void*& block : blocks) {
          if (block != nullptr && random.below(2) == 0) {
            rdmalloc_free(block);
            block = nullptr;
          } else if (block == nullptr) {
            block = rdmalloc_malloc(random.size_between(16, 32 * kKiB));
          }
        }
      }
      release(blocks);
    });
  }
  for (int child = 0; child < 40; child++) {
    usleep(2000);
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      uint64_t used = 0;
      size_t size = sizeof used;
      for (uint64_t place = 0; place < kPlaces; place += 8) {
        if (rdmalloc_ctl("thread.place", nullptr, nullptr, &place, sizeof place) != 0) _exit(2);
        for (size_t bytes = 16; bytes <= 32 * kKiB; bytes *= 2) {
          void* blocks[200];
          for (void*& block : blocks) {
            block = rdmalloc_malloc(bytes);
            if (block == nullptr) _exit(3);
            memset(block, 0x5A, bytes);
          }
          for (void* block : blocks) rdmalloc_free(block);
        }
      }
      if (rdmalloc_purge(0) < 0) _exit(4);
      if (rdmalloc_ctl("stats.used_bytes", &used, &size, nullptr, 0) != 0) _exit(5);
      _exit(0);
    }
    int status = -1;
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status)) << "the child hangs";
    EXPECT_EQ(status, 0) << child;
  }
  end = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_TOPOLOGY=2x16", "RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
