// SPDX-License-Identifier: BSD-3-Clause
//
// Pages of a heap's slabs in use (I7): a block that stays holds its own pages and no more, while
// blocks come and go, the heap ends, and processes fork. Seen to fail: with heap slabs left out of
// the walk; with the slab in purge freed by a destroy like any other; with blocks not put back in
// the child of a fork; with no reuse noted when blocks are taken.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "alloc/pages/page_heap.h"
#include "tests/invariants/page_model.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"
#include "tests/unit/heaps/fixture.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::Heap;
using rdmalloc_test::kKiB;
using rdmalloc_test::kMiB;
using rdmalloc_test::PageModel;
using rdmalloc_test::Random;
using rdmalloc_test::range_of;

constexpr size_t kPage = 4096;

// Fills slabs of the heap and frees all blocks but one in each; returns those.
std::vector<char*> one_in_each_slab(const Heap& heap, size_t bytes, int slabs) {
  std::vector<char*> blocks, kept;
  std::set<void*> bases;
  while (static_cast<int>(bases.size()) < slabs) {
    blocks.push_back(static_cast<char*>(heap.malloc(bytes)));
    memset(blocks.back(), 0x33, bytes);
    if (bases.insert(range_of(blocks.back()).base).second) {
      kept.push_back(blocks.back());
      blocks.pop_back();
    }
  }
  for (char* block : blocks) rdmalloc_free(block);
  return kept;
}

bool is_backed(char* at) {
  unsigned char there = 0;
  auto page = reinterpret_cast<uintptr_t>(at) / kPage * kPage;
  return mincore(reinterpret_cast<void*>(page), 1, &there) == 0 && (there & 1) != 0;
}

TEST(HeapSlabPages, I7_one_block_holds_its_own_pages_and_no_more) {
  PageModel model;
  ASSERT_EQ(model.added(), 0);
  for (size_t bytes : {size_t{64}, size_t{1000}, size_t{1500}, size_t{20000}}) {
    Heap heap;
    std::vector<char*> kept = one_in_each_slab(heap, bytes, 12);
    uint64_t before = counter("stats.slab_purged_bytes");
    ASSERT_GT(rdmalloc_purge(0), 0);
    uint64_t purged = counter("stats.slab_purged_bytes") - before;
    uint64_t held = heap.counters().span_bytes;
    ASSERT_GE(held, kept.size() * 64 * kKiB) << "the slabs are still there";
    // Of each slab go all pages but those of the block, and the end that holds no block.
    EXPECT_GE(purged, held - kept.size() * (2 * bytes + 2 * kPage)) << bytes;
    for (char* block : kept) {
      EXPECT_EQ(block[0], 0x33);
      EXPECT_EQ(block[bytes - 1], 0x33);
      rdmalloc_range slab = range_of(block);
      size_t backed = 0;
      for (size_t at = 0; at < slab.length; at += kPage)
        backed += is_backed(static_cast<char*>(slab.base) + at);
      EXPECT_LE(backed, 2 * bytes / kPage + 2);
    }
    // Nothing goes twice.
    ASSERT_GE(rdmalloc_purge(0), 0);
    EXPECT_EQ(counter("stats.slab_purged_bytes"), before + purged);
    // All of it is handed out again, with no further slab.
    size_t blocks_per_heap = 0;
    for (char* block : kept) blocks_per_heap += range_of(block).length / bytes;
    std::set<char*> again(kept.begin(), kept.end());
    while (heap.counters().span_bytes == held) {
      auto* block = static_cast<char*>(heap.malloc(bytes));
      ASSERT_TRUE(again.insert(block).second) << "handed out twice";
      memset(block, 0x44, bytes);
    }
    EXPECT_GE(again.size(), blocks_per_heap * 8 / 10);
    for (char* block : kept) EXPECT_EQ(block[bytes / 2], 0x33);
    ASSERT_GE(rdmalloc_purge(0), 0);
    for (char* block : again) ASSERT_EQ(model.state_of(block), PageModel::kUsed) << "not told";
    ASSERT_TRUE(model.violations.empty()) << model.all_violations();
  }
  rdmalloc_purge(0);
  EXPECT_TRUE(model.violations.empty()) << model.all_violations();
  EXPECT_GT(model.reuses, 0u);
}

// What to do inside the next purge of a page that `watched` lies beside.
std::function<void()> in_purge;
std::atomic<char*> watched;
int run_in_purge(void* base, size_t length) {
  char* at = watched.load();
  if (at == nullptr || !in_purge) return 0;
  rdmalloc_range slab = {};
  slab.size = sizeof slab;
  if (rdmalloc_range_of(at, &slab) != 0) return 0;
  auto* begin = static_cast<char*>(slab.base);
  if (static_cast<char*>(base) < begin || static_cast<char*>(base) + length > begin + slab.length)
    return 0;
  std::function<void()> action = std::move(in_purge);
  in_purge = nullptr;
  action();
  return 0;
}

TEST(HeapSlabPages, I3_a_heap_destroyed_while_its_pages_are_on_their_way_keeps_them_out_of_reach) {
  PageModel model(run_in_purge);
  ASSERT_EQ(model.added(), 0);
  for (size_t bytes : {size_t{64}, size_t{1500}}) {
    uint64_t used = counter("stats.used_bytes");
    Heap heap;
    std::vector<char*> kept = one_in_each_slab(heap, bytes, 3);
    watched = kept[0];
    rdmalloc_range slab = range_of(kept[0]);
    bool is_out_of_reach = true;
    Heap other;
    in_purge = [&] {
      EXPECT_EQ(rdmalloc_heap_destroy(heap.release()), 0);
      // Whatever is taken now does not lie there.
      for (int i = 0; i < 2000; i++) {
        auto* block = static_cast<char*>(other.malloc(bytes));
        is_out_of_reach &=
            block < slab.base || block >= static_cast<char*>(slab.base) + slab.length;
        memset(block, 0x55, bytes);
      }
    };
    ASSERT_GT(rdmalloc_purge(0), 0);
    EXPECT_FALSE(in_purge) << "no purge came by";
    EXPECT_TRUE(is_out_of_reach);
    EXPECT_EQ(counter("stats.used_bytes"), used + other.counters().span_bytes);
    EXPECT_TRUE(rdmalloc::page_heap_is_valid());
    rdmalloc_heap_walk(
        other.get(),
        [](void* block, size_t, void*) {
          EXPECT_EQ(*static_cast<char*>(block), 0x55);
          return 0;
        },
        nullptr);
    rdmalloc_purge(0);
    EXPECT_TRUE(model.violations.empty()) << model.all_violations();
    watched = nullptr;
  }
}

// In a child: every byte of the heap's slabs can be had, and the heap ends.
bool is_whole_in_child(const Heap& heap, const std::vector<char*>& kept, size_t bytes) {
  size_t held = heap.counters().span_bytes, most = 0;
  for (char* block : kept) most += range_of(block).length / range_of(block).block_bytes;
  std::set<char*> live(kept.begin(), kept.end());
  while (heap.counters().span_bytes == held) {
    auto* block = static_cast<char*>(heap.malloc(bytes));
    if (block == nullptr || !live.insert(block).second) return false;
    memset(block, 0x44, bytes);
  }
  // The one that made the heap grow, and what its slab gave to the magazine.
  if (live.size() != most + 1) {
    dprintf(2, "%zu blocks of %zu\n", live.size(), most);
    return false;
  }
  for (char* block : kept)
    if (block[bytes / 2] != 0x33) return false;
  return true;
}

TEST(HeapSlabPages, I11_a_child_forked_while_pages_are_on_their_way_loses_no_block) {
  PageModel model(run_in_purge);
  ASSERT_EQ(model.added(), 0);
  // By the thread that purges, whose purge goes on in the child, and by another one.
  for (bool by_purging_thread : {false, true}) {
    Heap heap;
    std::vector<char*> kept = one_in_each_slab(heap, 1000, 3);
    watched = kept[1];
    pid_t child = -1;
    auto fork_here = [&] {
      child = fork();
      if (child == 0 && !by_purging_thread)
        _exit(is_whole_in_child(heap, kept, 1000) && rdmalloc_heap_destroy(heap.get()) == 0 ? 0
                                                                                            : 1);
    };
    in_purge = [&] {
      if (by_purging_thread) {
        fork_here();
      } else {
        std::thread(fork_here).join();
      }
    };
    int64_t purged = rdmalloc_purge(0);
    if (child == 0) _exit(purged > 0 && is_whole_in_child(heap, kept, 1000) ? 0 : 2);
    ASSERT_GT(child, 0);
    int status = -1;
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(child, 60000, &status));
    EXPECT_EQ(status, 0) << by_purging_thread;
    EXPECT_TRUE(is_whole_in_child(heap, kept, 1000)) << "in the parent";
    watched = nullptr;
  }
  EXPECT_TRUE(model.violations.empty()) << model.all_violations();
}

TEST(HeapSlabPages, blocks_keep_their_bytes_while_threads_work_and_pages_go) {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> lost{0}, steps{0};
  std::vector<std::thread> threads;
  Heap shared;
  for (uint64_t i = 0; i < 3; i++) {
    threads.emplace_back([&, i] {
      Random random(i + 1);
      struct Block {
        unsigned char* start;
        size_t bytes;
      };
      while (!stop.load()) {
        Heap own;
        std::vector<Block> blocks(3000);
        for (int step = 0; step < 20000 && !stop.load(); step++) {
          steps++;
          size_t at = random.below(blocks.size());
          Block& block = blocks[at];
          auto mark = static_cast<unsigned char>(at + 1);
          if (block.start != nullptr) {
            lost += block.start[0] != mark || block.start[block.bytes - 1] != mark;
            rdmalloc_free(block.start);
            block.start = nullptr;
            continue;
          }
          block.bytes = random.size_between(1, 4 * kKiB);
          block.start = static_cast<unsigned char*>(
              rdmalloc_heap_malloc(at % 2 == 0 ? shared.get() : own.get(), block.bytes));
          block.start[0] = block.start[block.bytes - 1] = mark;
        }
        for (size_t at = 0; at < blocks.size(); at++) {
          if (blocks[at].start == nullptr) continue;
          lost += blocks[at].start[0] != static_cast<unsigned char>(at + 1);
          if (at % 2 == 0) rdmalloc_free(blocks[at].start);
        }
        // The other half ends with its heap.
      }
    });
  }
  uint64_t before = counter("stats.slab_purged_bytes");
  for (int i = 0; i < 300 || steps.load() < 100000; i++)
    if (rdmalloc_purge(0) < 0) break;
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lost.load(), 0u);
  EXPECT_GT(counter("stats.slab_purged_bytes"), before);
  EXPECT_EQ(shared.counters().live_blocks, 0u);
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
