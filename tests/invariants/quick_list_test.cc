// SPDX-License-Identifier: BSD-3-Clause
//
// The quick list of a page heap (alloc/pages/page_heap_quick.cc): freed blocks kept whole for the
// next one of their length. With RDMALLOC_PURGE=manual, so that nothing goes back by itself.
//
// Seen to fail: of_one_length, a_block_comes_back and I7_a_purge_in_part with nothing kept, and the
// first with the oldest taken first; I7_a_purge_takes and I11 with runs that a purge leaves;
// I7_a_purge_in_part with all released at once; what_is_kept_counts, with dirty slices not counted;
// with_no_decay_time without the look at it; of_buffers with 128 runs at most, and with all pushed
// out at once; of_short_blocks with as many of any; runs_are_joined (0 of 4)
// where nothing is released before new pages; a_longer_run, slabs_leave, kept_neighbours and
// a_block_grows without what they say; a_piece without makes_place_whole(); I7_runs_are_due with
// the order of puts; calloc with is_zero; the equations with counts of lengths that stay;
// each_slice_… with the last eight classes written a slice too early, and with firsts that end four
// slices too early.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <unistd.h>

#include <set>
#include <vector>

#include "alloc/core/fork.h"
#include "alloc/os/os.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/page_heap_state.h"
#include "tests/invariants/blocks.h"
#include "tests/invariants/places.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::blocks_of;
using rdmalloc_test::counter;
using rdmalloc_test::go_to;
using rdmalloc_test::Random;
using rdmalloc_test::release;
using rdmalloc_test::run_at;
using rdmalloc_test::touched;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kSlice = 64 * kKiB;
constexpr size_t kRuns = 128;      // that a heap keeps at most, of several lengths
constexpr size_t kLongest = kMiB;  // that is tried; 4 MiB go there, 16 MiB in all

class QuickList : public ::testing::Test {
 protected:
  void SetUp() override {
    rdmalloc_test::set("purge.decay_ms", 3600000);
    go_to(0);
    ASSERT_GE(rdmalloc_purge(0), 0);
    run_at(1, [] { rdmalloc_free(touched(kSlice)); });  // from here on there is a second shard
    ASSERT_GE(rdmalloc_purge(0), 0);
  }
  void TearDown() override { EXPECT_TRUE(rdmalloc::page_heap_is_valid()); }
};

// Joined, three neighbours are one span, and blocks of one slice would come in order of address.
void last_freed_comes_first() {
  std::vector<char*> blocks = blocks_of(8, kSlice);
  release(blocks);
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  for (size_t i = blocks.size(); i-- != 0;) EXPECT_EQ(touched(kSlice), blocks[i]) << i;
  release(blocks);
}
TEST_F(QuickList, of_one_length_the_last_freed_comes_first_in_each_shard) {
  last_freed_comes_first();
  ASSERT_GE(rdmalloc_purge(0), 0);  // else the second one takes what the first has free
  run_at(1, last_freed_comes_first);
}

// Whatever lies beside it and is freed meanwhile. Best fit would cut the shortest that fits.
TEST_F(QuickList, a_block_comes_back_where_one_of_its_length_lay) {
  run_at(1, [] {
    std::vector<char*> others = blocks_of(12, kMiB);  // half of all that it holds is kept
    std::vector<char*> blocks;
    for (size_t slices = 1; slices <= kLongest / kSlice; slices++)
      blocks.push_back(touched(slices * kSlice));
    std::vector<char*> freed = blocks;
    release(freed);
    for (size_t slices : {3u, 16u, 2u, 7u, 1u, 12u})
      EXPECT_EQ(touched(slices * kSlice), blocks[slices - 1]) << slices;
    for (size_t slices : {3u, 16u, 2u, 7u, 1u, 12u}) rdmalloc_free(blocks[slices - 1]);
    release(others);
  });
}

// Of every length, at even and odd slices, taken anew and off the list.
TEST_F(QuickList, each_slice_of_a_block_is_that_blocks_alone) {
  using rdmalloc::arena;
  auto expect_in_use = [](const char* block, size_t slices, bool is_in_use) {
    auto first = arena.slice_of(reinterpret_cast<uintptr_t>(block));
    for (size_t i = 0; i < slices; i++) {
      EXPECT_EQ(arena.class_at(first + i) != 0, is_in_use) << slices << ' ' << i;
      if (!is_in_use) continue;
      EXPECT_EQ(arena.first[first + i].load(), first) << slices << ' ' << i;
    }
  };
  constexpr size_t kMost = 20, kSpans = 5;  // from there on no thread caches them
  for (int round = 0; round < 2; round++) {
    std::vector<char*> blocks;
    for (size_t slices = kSpans; slices <= kMost; slices++)
      blocks.push_back(touched(slices * kSlice));
    for (size_t i = 0; i < blocks.size(); i += 2) rdmalloc_free(blocks[i]);
    for (size_t i = 0; i < blocks.size(); i++) expect_in_use(blocks[i], i + kSpans, i % 2 != 0);
    for (size_t i = 1; i < blocks.size(); i += 2) rdmalloc_free(blocks[i]);
    for (size_t i = 0; i < blocks.size(); i++) expect_in_use(blocks[i], i + kSpans, false);
  }
}

TEST_F(QuickList, what_is_kept_counts_as_free_and_dirty) {
  run_at(1, [] {
    std::vector<char*> blocks = blocks_of(10, 300 * kKiB);
    uint64_t used = counter("stats.used_bytes"), dirty = counter("stats.dirty_bytes");
    uint64_t large = counter("stats.large_spans");
    release(blocks);
    EXPECT_EQ(counter("stats.used_bytes"), used - 10 * 5 * kSlice);
    EXPECT_EQ(counter("stats.dirty_bytes"), dirty + 10 * 5 * kSlice);
    EXPECT_EQ(counter("stats.large_spans"), large - 10);
  });
}

TEST_F(QuickList, I7_a_purge_takes_what_is_kept) {
  for (uint64_t place : {0, 1}) {
    run_at(place, [] { release(blocks_of(20, 200 * kKiB)); });
    EXPECT_GT(counter("stats.dirty_bytes"), 0u);
    EXPECT_GE(rdmalloc_purge(0), 0);
    EXPECT_EQ(counter("stats.dirty_bytes"), 0u) << place;
  }
}

// What is kept is younger than what was freed before it to the lists.
TEST_F(QuickList, I7_a_purge_in_part_takes_the_oldest_and_keeps_the_rest) {
  run_at(1, [] {
    std::vector<char*> old = blocks_of(8, kMiB), young = blocks_of(8, kSlice);
    release(old);
    usleep(20000);
    release(young);
    EXPECT_GE(rdmalloc_purge(counter("stats.dirty_bytes") - 2 * kMiB), 0);
    for (size_t i = young.size(); i-- != 0;) EXPECT_EQ(touched(kSlice), young[i]) << i;
    release(young);
  });
}

TEST_F(QuickList, with_no_decay_time_nothing_is_kept) {
  rdmalloc_test::set("purge.decay_ms", 0);
  run_at(1, [] {
    std::vector<char*> blocks = blocks_of(8, kSlice);
    release(blocks);
    // Joined to one span: the first one of it.
    EXPECT_EQ(touched(kSlice), blocks[0]);
    rdmalloc_free(blocks[0]);
  });
}

// Of more than it keeps the oldest go on, and are joined: a block as long as they are together
// fits.
TEST_F(QuickList, more_than_it_keeps_goes_on_to_the_free_spans) {
  run_at(1, [] {
    std::vector<char*> blocks = blocks_of(2 * kRuns, kSlice);
    release(blocks);
    std::set<char*> of_free(blocks.begin(), blocks.end());
    char* block = touched(kMiB);
    EXPECT_EQ(of_free.count(block), 1u);
    rdmalloc_free(block);
  });
}

// What is kept in all shards.
uint32_t runs_kept() {
  uint32_t runs = 0;
  rdmalloc::page_heap_state::for_each_heap([&](auto& heap) { runs += heap.quick.count; });
  return runs;
}
TEST_F(QuickList, of_buffers_more_is_kept_while_all_are_of_one_length) {
  run_at(1, [] {
    std::vector<char*> blocks = blocks_of(200, 5 * kSlice), others = blocks_of(20, kMiB);
    release(blocks);
    EXPECT_GE(runs_kept(), 195u);
    rdmalloc_free(others.back());
    EXPECT_GE(runs_kept(), 130u) << "one free pushes out a few";
    others.pop_back();
    release(others);
    EXPECT_LE(runs_kept(), kRuns);
  });
}
// Another shard has no use of them before they are old: long_lists_test has one shard.
TEST_F(QuickList, of_short_blocks_no_more_is_kept_beside_another_shard) {
  run_at(1, [] {
    std::vector<char*> blocks = blocks_of(900, kSlice);
    release(blocks);
    EXPECT_LE(runs_kept(), kRuns);
  });
}

// No clean page is taken for what fits in a longer run; and a slab, which would not be given a
// young buffer's place, leaves all of them.
TEST_F(QuickList, a_longer_run_is_cut_before_clean_pages_are_taken) {
  run_at(1, [] {
    char* block = touched(kMiB);
    rdmalloc_free(block);
    uint64_t dirty = counter("stats.dirty_bytes");
    char* shorter = touched(400 * kKiB);
    EXPECT_EQ(shorter, block);
    EXPECT_EQ(counter("stats.dirty_bytes"), dirty - 7 * kSlice);
    rdmalloc_free(shorter);
  });
}
// Kept, it would lie before the rest of the place, where the next buffer then begins.
TEST_F(QuickList, a_piece_that_makes_a_place_whole_goes_back_there) {
  char* place = touched(16 * kMiB);
  rdmalloc_free(place);
  for (size_t mib : {2, 5, 3, 16}) {
    char* block = touched(mib * kMiB);
    EXPECT_EQ(block, place) << mib;
    rdmalloc_free(block);
  }
}

TEST_F(QuickList, slabs_leave_the_runs_of_buffers) {
  run_at(1, [] {
    std::vector<char*> buffers = blocks_of(8, 3 * kSlice);
    release(buffers);
    std::vector<char*> small = blocks_of(5000, 64);  // slabs of a slice
    // Joined with what was cut from it, the last one of them would be another.
    for (size_t i = buffers.size(); i-- != 0;) EXPECT_EQ(touched(3 * kSlice), buffers[i]) << i;
    release(buffers);
    release(small);
  });
}

// All of a segment is kept, as single slices.
TEST_F(QuickList, kept_neighbours_are_one_before_another_segment_is_taken) {
  run_at(1, [] {
    uint64_t segments = counter("stats.segments");
    std::vector<char*> blocks = blocks_of(64, kSlice);
    EXPECT_LE(counter("stats.segments"), segments + 1);
    segments = counter("stats.segments");
    release(blocks);
    char* block = touched(4 * kMiB);
    EXPECT_EQ(counter("stats.segments"), segments);
    rdmalloc_free(block);
  });
}

// Of several shards, beside runs that come and go. Taken whole or not at all, 16 blocks of 256 KiB
// to 1 MiB of each of four threads held 80 MiB instead of 66.
TEST_F(QuickList, runs_are_joined_before_a_longer_block_takes_new_pages) {
  std::vector<char*> others = blocks_of(12, kMiB);  // half of all that it holds is kept
  std::vector<char*> runs = blocks_of(12, 5 * kSlice), longer;
  std::vector<char*> freed = runs;
  release(freed);
  size_t joined = 0;
  for (int i = 0; i < 4; i++) {
    rdmalloc_free(touched(kSlice));
    longer.push_back(touched(15 * kSlice));
    joined += longer.back() >= runs.front() && longer.back() <= runs.back();
  }
  EXPECT_GE(joined, 3u) << "of four that fill it, beside one of a slice";
  release(longer);
  release(others);
}

TEST_F(QuickList, a_block_grows_in_place_over_a_kept_one) {
  run_at(1, [] {
    std::vector<char*> blocks = blocks_of(16, kSlice);
    size_t i = 0;
    while (i + 1 < blocks.size() && blocks[i + 1] != blocks[i] + kSlice) i++;
    ASSERT_LT(i + 1, blocks.size());
    rdmalloc_free(blocks[i + 1]);
    auto* grown = static_cast<char*>(rdmalloc_realloc(blocks[i], 2 * kSlice));
    EXPECT_EQ(grown, blocks[i]);
    EXPECT_TRUE(rdmalloc::page_heap_is_valid());
    for (size_t k = 0; k < blocks.size(); k++)
      if (k != i + 1) rdmalloc_free(blocks[k]);
  });
}

TEST_F(QuickList, calloc_clears_what_was_kept) {
  run_at(1, [] {
    rdmalloc_free(touched(200 * kKiB));
    auto* block = static_cast<char*>(rdmalloc_calloc(200, kKiB));
    for (size_t i = 0; i < 200 * kKiB; i++) ASSERT_EQ(block[i], 0) << i;
    rdmalloc_free(block);
  });
}

TEST_F(QuickList, I11_the_child_of_a_fork_keeps_what_is_kept) {
  run_at(1, [] {
    char* block = touched(300 * kKiB);
    rdmalloc_free(block);
    pid_t child = fork();
    if (child == 0) {
      rdmalloc::fork_check();  // which what is called from outside does
      bool is_right = rdmalloc::page_heap_is_valid() && rdmalloc_malloc(300 * kKiB) == block;
      rdmalloc_free(block);
      is_right = is_right && rdmalloc_purge(0) >= 0 && counter("stats.dirty_bytes") == 0;
      _exit(is_right && rdmalloc::page_heap_is_valid() ? 0 : 1);
    }
    int status = -1;
    EXPECT_TRUE(rdmalloc_test::wait_with_limit(child, 30000, &status)) << "the child hangs";
    EXPECT_EQ(status, 0);
  });
}

TEST_F(QuickList, I7_runs_are_due_by_their_age_after_any_number_of_frees) {
  rdmalloc::page_heap_state::PageHeap& heap = rdmalloc::page_heap_state::heap_of_shard(0);
  char* old = touched(300 * kKiB);
  char* others[] = {touched(400 * kKiB), touched(500 * kKiB)};
  rdmalloc_free(old);
  uint32_t freed_ms = rdmalloc::arena.span(rdmalloc::arena.slice_of(uintptr_t(old))).freed_ms;
  heap.quick.puts += uint32_t{1} << 31;  // as many frees
  for (char* other : others) {
    while (uint32_t(rdmalloc::os::coarse_ms()) == freed_ms) usleep(1000);
    rdmalloc_free(other);
  }
  {
    rdmalloc::LockGuard guard(heap.lock);
    ASSERT_EQ(heap.quick.count, 3u);
    rdmalloc::page_heap_state::quick_release_until(heap, freed_ms);
    EXPECT_EQ(heap.quick.count, 2u);
    EXPECT_FALSE(heap.quick.has(5));
  }
}

TEST_F(QuickList, freeing_a_kept_block_again_is_told) {
  char* block = touched(300 * kKiB);
  rdmalloc_free(block);
  EXPECT_DEATH(rdmalloc_free(block), "double free");
}

// Any lengths on two shards, beside the equations of the page heap.
TEST_F(QuickList, the_equations_hold_after_each_of_many_frees) {
  Random random(7);
  std::vector<char*> blocks(40);
  for (int round = 0; round < 60; round++) {
    run_at(round % 2, [&] {
      for (int i = 0; i < 20; i++) {
        char*& block = blocks[random.below(blocks.size())];
        rdmalloc_free(block);
        block = static_cast<char*>(rdmalloc_malloc(random.size_between(40 * kKiB, 2 * kMiB)));
        ASSERT_TRUE(rdmalloc::page_heap_is_valid());
      }
    });
  }
  release(blocks);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_TOPOLOGY=2x2", "RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
