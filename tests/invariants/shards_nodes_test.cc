// SPDX-License-Identifier: BSD-3-Clause
//
// NUMA nodes, on a made-up machine of two with 16 processors each: whose threads free blocks, spans
// and segments are for. lab.nodes asks the kernel where their pages are.
//
// Seen to fail: blocks_of_a_far_node without depot_return_remote_blocks(), a_buffer and
// pages_of_another_node with no node preferred, the latter also when far pages are left alone for
// ever; those after them say it themselves.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <string.h>

#include <algorithm>
#include <set>
#include <vector>

#include "alloc/cache/long_block.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/page_heap_state.h"
#include "tests/invariants/places.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::allocate;
using rdmalloc_test::counter;
using rdmalloc_test::release;
using rdmalloc_test::Resident;
using rdmalloc_test::run_at;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr unsigned kPlacesOfNode = 16;

TEST(Nodes, blocks_of_a_far_node_return_there_near_ones_go_to_the_depot) {
  Resident near(0), far(kPlacesOfNode);
  std::vector<void*> blocks, own;
  run_at(0, [&] { blocks = allocate(4000, 64); });
  run_at(kPlacesOfNode, [&] { own = allocate(4000, 64); });
  uint64_t depot = counter("stats.depot_bytes"), sent = counter("stats.remote_blocks_returned");
  run_at(kPlacesOfNode, [&] { release(blocks); });
  EXPECT_EQ(counter("stats.depot_bytes"), depot);
  EXPECT_GT(counter("stats.remote_blocks_returned"), sent + 3000);
  sent = counter("stats.remote_blocks_returned");
  run_at(kPlacesOfNode, [&] { release(own); });
  EXPECT_GT(counter("stats.depot_bytes"), depot + size_t{3000} * 64);
  EXPECT_EQ(counter("stats.remote_blocks_returned"), sent);
}

// Those of its magazine are its next ones: as many as its frees are beyond the last full one. Seen
// to fail without shrink_limit(), and where a bin grows although the latest of it were far: 292 of
// 1,705.
TEST(Nodes, of_blocks_of_a_far_node_few_stay_where_they_are_freed) {
  Resident near(0), far(kPlacesOfNode);
  size_t stayed = 0, freed = 0;
  for (size_t bytes = 2 * kKiB, count = 40; bytes <= 32 * kKiB; bytes += kKiB, count++) {
    std::vector<void*> blocks;
    run_at(0, [&] { blocks = allocate(count, bytes); });
    std::set<void*> theirs(blocks.begin(), blocks.end());
    freed += theirs.size();
    run_at(kPlacesOfNode, [&] {
      for (int round = 0; round < 4; round++) release(allocate(count, bytes));
      release(blocks);
      std::vector<void*> own = allocate(count, bytes);
      for (void* block : own) stayed += theirs.count(block);
      release(own);
    });
  }
  EXPECT_LT(stayed * 12, freed) << stayed << " of " << freed;
}

// Whether its pages are near is asked as it leaves its bin. Seen to fail where defer_buffers() does
// not ask for nodes.
TEST(Nodes, no_buffer_is_deferred) {
  Resident near(0);
  run_at(0, [] {
    for (int round = 0; round < 4; round++) release(allocate(12, rdmalloc::kSliceBytes));
    EXPECT_EQ(rdmalloc::detail::this_cache->deferred, nullptr);
  });
}

TEST(Nodes, a_buffer_comes_back_to_the_node_that_touched_it) {
  constexpr size_t kBytes = 1 * kMiB;
  Resident near(0), far(kPlacesOfNode);
  void *of_near = nullptr, *of_far = nullptr;
  run_at(0, [&] { of_near = allocate(1, kBytes)[0]; });
  run_at(kPlacesOfNode, [&] { of_far = allocate(1, kBytes)[0]; });
  rdmalloc_free(of_near);
  rdmalloc_free(of_far);
  for (int round = 0; round < 2; round++) {
    // Either is the one used last by then, in one of the rounds.
    run_at(0, [&] {
      void* block = rdmalloc_malloc(kBytes);
      EXPECT_EQ(block, of_near);
      rdmalloc_free(block);
    });
    run_at(kPlacesOfNode, [&] {
      void* block = rdmalloc_malloc(kBytes);
      EXPECT_EQ(block, of_far);
      rdmalloc_free(block);
    });
  }
}

// 100 KiB: no buffer, so of the family that slabs are made of. 400 of them: a quick list holds 128,
// which other shards get from the purge thread, and here is none.
TEST(Nodes, pages_of_another_node_are_used_only_once_they_are_old) {
  constexpr size_t kBytes = 100 * kKiB;
  Resident near(0), far(kPlacesOfNode);
  run_at(0, [&] { release(allocate(400, kBytes)); });
  uint64_t dirty = counter("stats.dirty_bytes");
  ASSERT_GT(dirty, 300 * kBytes);
  run_at(kPlacesOfNode, [&] {
    std::vector<void*> blocks = allocate(50, kBytes);
    EXPECT_GE(counter("stats.dirty_bytes"), dirty);
    release(blocks);
  });
  dirty = counter("stats.dirty_bytes");
  uint64_t mapped = counter("stats.mapped_bytes");
  rdmalloc_test::set("purge.decay_ms", 0);
  run_at(kPlacesOfNode, [&] {
    std::vector<void*> blocks = allocate(150, kBytes);
    EXPECT_LT(counter("stats.dirty_bytes"), dirty);
    EXPECT_EQ(counter("stats.mapped_bytes"), mapped);
    release(blocks);
  });
}

// How many of the blocks lie where some of the others did.
size_t overlaps(const std::vector<void*>& blocks, size_t bytes, const std::vector<void*>& others,
                size_t bytes_of_others) {
  size_t found = 0;
  for (void* block : blocks)
    for (void* other : others) {
      auto begin = reinterpret_cast<uintptr_t>(block), theirs = reinterpret_cast<uintptr_t>(other);
      if (begin < theirs + bytes_of_others && theirs < begin + bytes) {
        found++;
        break;
      }
    }
  return found;
}

// Whole segments that shards gave back. Seen to fail with segments adopted whatever their node:
// then those who are near find new pages only.
TEST(Nodes, segments_of_another_node_are_left_while_they_are_young) {
  constexpr size_t kBytes = 2 * kMiB, kWanted = kBytes - 300 * kKiB;
  Resident near(1), far(kPlacesOfNode), beside_near(2);
  rdmalloc_test::set("purge.decay_ms", 3600000);
  std::vector<void*> of_near;
  run_at(1, [&] { release(of_near = allocate(40, kBytes)); });
  run_at(kPlacesOfNode, [&] {
    std::vector<void*> blocks = allocate(20, kWanted);
    EXPECT_EQ(overlaps(blocks, kWanted, of_near, kBytes), 0u);
    release(blocks);
  });
  run_at(2, [&] {
    std::vector<void*> blocks = allocate(20, kWanted);
    EXPECT_GE(overlaps(blocks, kWanted, of_near, kBytes), 16u);
    release(blocks);
  });
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
}

// Of the central page heap, where neighbours are of both nodes: buffers, whose places are retained,
// and arrays that grew, which leave dirty spans. Seen to fail: with find_latest() of any
// node; with dirty neighbours of two nodes made one.
TEST(Nodes, neighbours_of_two_nodes_go_back_to_the_threads_of_theirs) {
  constexpr size_t kBytes = 6 * kMiB, kWanted = 5 * kMiB;
  Resident near(0), far(kPlacesOfNode);
  rdmalloc_test::set("purge.decay_ms", 3600000);
  for (bool has_grown : {false, true}) {
    ASSERT_GE(rdmalloc_purge(0), 0);
    std::vector<void*> of_near, of_far;
    auto one = [&] {
      void* block = rdmalloc_malloc(has_grown ? kWanted : kBytes);
      if (has_grown) block = rdmalloc_realloc(block, kBytes);
      memset(block, 1, kBytes);
      return block;
    };
    for (int i = 0; i < 12; i++) {
      run_at(0, [&] { of_near.push_back(one()); });
      run_at(kPlacesOfNode, [&] { of_far.push_back(one()); });
    }
    run_at(0, [&] { release(of_near); });
    run_at(kPlacesOfNode, [&] { release(of_far); });
    EXPECT_TRUE(rdmalloc::page_heap_is_valid());
    run_at(kPlacesOfNode, [&] {
      std::vector<void*> blocks = allocate(9, kWanted);
      EXPECT_EQ(overlaps(blocks, kWanted, of_near, kBytes), 0u) << has_grown;
      EXPECT_EQ(overlaps(blocks, kWanted, of_far, kBytes), 9u) << has_grown;
      release(blocks);
    });
  }
}

// The last resort of the page heap, in dirty spans of both nodes by turns. Seen to fail where what
// lies behind the run is taken in whatever its node: what is left of it and the next span of its
// node are two then.
TEST(Nodes, the_last_resort_leaves_neighbours_of_one_node_joined) {
  using namespace rdmalloc::page_heap_state;
  constexpr size_t kBytes = 6 * kMiB;
  constexpr uint32_t kWanted = 5 * kMiB / rdmalloc::kSliceBytes;
  Resident near(0), far(kPlacesOfNode);
  rdmalloc_test::set("purge.decay_ms", 3600000);
  ASSERT_GE(rdmalloc_purge(0), 0);
  std::vector<void*> by_turns, others;
  // An array that grew: it leaves a dirty span.
  auto one = [&] {
    void* block = rdmalloc_realloc(rdmalloc_malloc(5 * kMiB), kBytes);
    memset(block, 1, kBytes);
    by_turns.push_back(block);
  };
  for (unsigned i = 0; i < 12; i++) run_at(i % 2 * kPlacesOfNode, one);
  for (unsigned i = 0; i < 12; i++)
    run_at(i % 2 * kPlacesOfNode, [&] { rdmalloc_free(by_turns[i]); });
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  // Each time from the lowest run of free slices that is long enough.
  bool is_there = false;
  for (int i = 0; i < 100 && !is_there; i++) {
    rdmalloc::SliceIndex slice = 0;
    {
      rdmalloc::LockGuard guard(central.lock);
      ASSERT_TRUE(use(central, kWanted));
      slice = take_mixed(central, kWanted, 1);
    }
    ASSERT_NE(slice, 0u);
    rdmalloc::page_heap_publish_large(slice, 0);
    others.push_back(reinterpret_cast<void*>(rdmalloc::arena.address_of(slice)));
    is_there = overlaps({others.back()}, kBytes, by_turns, kBytes) != 0;
    ASSERT_TRUE(rdmalloc::page_heap_is_valid()) << i;
  }
  EXPECT_TRUE(is_there);
  release(others);
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
}

// Seen to fail without a look at the node as one is kept.
TEST(Nodes, a_long_block_that_a_thread_keeps_is_of_its_node) {
  Resident near(0), far(kPlacesOfNode);
  void* theirs = nullptr;
  run_at(0, [&] { theirs = allocate(1, kMiB).front(); });
  run_at(kPlacesOfNode, [&] {
    auto kept = [] { return rdmalloc::long_block_bytes(*rdmalloc::detail::this_cache); };
    for (int i = 0; i < rdmalloc::kScoreToKeep; ++i) release(allocate(1, kMiB));
    void* own = allocate(1, kMiB).front();
    EXPECT_EQ(kept(), 0u);
    rdmalloc_free(theirs);
    EXPECT_EQ(kept(), 0u);
    rdmalloc_free(own);
    EXPECT_EQ(kept(), kMiB);
    rdmalloc_test::go_to(0);
    void* block = allocate(1, kMiB).front();
    EXPECT_NE(block, own);
    EXPECT_EQ(kept(), 0u);
    rdmalloc_free(block);
  });
}

// Seen to fail without is_far_span(): all of them; with the table's steps of spans entered for
// several nodes: 2.
TEST(Nodes, a_span_that_another_node_frees_is_not_given_to_it) {
  Resident near(0), far(kPlacesOfNode);
  rdmalloc_test::set("purge.decay_ms", 3600000);
  for (size_t bytes : {60 * kKiB, 100 * kKiB, 250 * kKiB}) {
    std::vector<void*> of_near;
    run_at(0, [&] { of_near = allocate(8, bytes); });
    run_at(kPlacesOfNode, [&] {
      for (int i = 0; i < 2; i++) release(allocate(8, bytes));  // from here on it caches them
      release(of_near);
      std::vector<void*> blocks = allocate(16, bytes);
      EXPECT_EQ(overlaps(blocks, bytes, of_near, bytes), 0u) << bytes;
      release(blocks);
    });
  }
}

// Seen to fail without send_far_home(): 118.
TEST(Nodes, a_thread_keeps_at_most_a_magazine_of_blocks_of_another_node) {
  constexpr size_t kBytes = 64;
  Resident near(0), far(kPlacesOfNode);
  std::vector<void*> of_near;
  run_at(0, [&] { of_near = allocate(4000, kBytes); });
  run_at(kPlacesOfNode, [&] {
    release(allocate(1000, kBytes));
    release(of_near);
    std::vector<void*> blocks = allocate(1000, kBytes);
    std::set<void*> theirs(of_near.begin(), of_near.end());
    auto kept = std::count_if(blocks.begin(), blocks.end(),
                              [&](void* block) { return theirs.count(block) != 0; });
    EXPECT_LE(kept, 62);
    release(blocks);
  });
}

// Own blocks and another node's, freed in any order: limits of bins of several magazines are halved
// and grow, and what stays of a full magazine leaves room. Each block is whole as it goes. Seen to
// fail, in a checked build, where as much stays as the bin may hold.
TEST(Nodes, bins_whose_limits_come_and_go_hold_what_they_may) {
  struct Block {
    uint64_t* words;
    uint64_t id;
  };
  Resident near(0), far(kPlacesOfNode);
  rdmalloc_test::Random random(7);
  run_at(kPlacesOfNode, [&] {
    for (size_t bytes = 1 * kKiB; bytes <= 32 * kKiB; bytes += 1536) {
      std::vector<Block> held;
      uint64_t next_id = 1;
      auto allocate_some = [&](size_t count) {
        for (; count != 0; count--) {
          auto* words = static_cast<uint64_t*>(rdmalloc_malloc(bytes));
          words[0] = next_id;
          held.push_back({words, next_id++});
        }
      };
      for (int step = 0; step < 80; step++) {
        if (random.below(3) == 0) run_at(0, [&] { allocate_some(random.below(60)); });
        if (random.below(2) == 0) allocate_some(random.below(120));
        for (size_t count = random.below(held.size() + 1); count != 0; count--) {
          // Half of the times the latest, which are of one node.
          if (step % 2 == 0) std::swap(held[random.below(held.size())], held.back());
          ASSERT_EQ(held.back().words[0], held.back().id) << bytes;
          rdmalloc_free(held.back().words);
          held.pop_back();
        }
      }
      for (Block& block : held) rdmalloc_free(block.words);
    }
  });
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_TOPOLOGY=2x16", "RDMALLOC_PURGE=manual"});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
