// SPDX-License-Identifier: BSD-3-Clause
//
// realloc: contents, corner cases, growth. calloc: zero, also where dirty memory comes back.
#include <errno.h>
#include <gtest/gtest.h>
#include <string.h>

#include <set>
#include <vector>

#include "tests/support/alloc_under_test.h"
#include "tests/support/process.h"
#include "tests/support/words.h"

namespace {

using rdmalloc_test::Random;
using rdmalloc_test::test_seed;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

auto pattern(size_t seed) {
  return [seed](size_t at) { return rdmalloc_test::mixed_word(at, seed); };
}
void fill_from(unsigned char* block, size_t from, size_t bytes, size_t seed) {
  rdmalloc_test::fill_words(block, from, bytes, pattern(seed));
}
void fill(unsigned char* block, size_t bytes, size_t seed) {
  fill_from(block, 0, bytes, seed);
}
// Index of the first byte that differs, or `bytes`.
size_t first_difference(const unsigned char* block, size_t bytes, size_t seed) {
  return rdmalloc_test::first_unlike(block, bytes, pattern(seed));
}
unsigned char* resize(unsigned char* block, size_t bytes) {
  return static_cast<unsigned char*>(aut::realloc(block, bytes));
}

TEST(MallocRealloc, from_null_allocates) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{100}, 100 * kKiB, 5 * kMiB}) {
    unsigned char* block = resize(nullptr, bytes);
    ASSERT_NE(block, nullptr);
    fill(block, bytes, 1);
    aut::free(block);
  }
}

// Seen to fail with one that returns NULL and frees nothing.
TEST(MallocRealloc, to_zero_frees_and_returns_null) {
  // As glibc does, and programs rely on: the block is gone, the result is NULL and is no error.
  for (size_t bytes : {size_t{1}, size_t{100}, 100 * kKiB, 5 * kMiB}) {
    std::set<void*> places;
    for (int round = 0; round < 2000; round++) {
      void* block = aut::malloc(bytes);
      ASSERT_NE(block, nullptr);
      places.insert(block);
      errno = 4711;
      ASSERT_EQ(aut::realloc(block, aut::opaque(size_t{0})), nullptr);
      ASSERT_EQ(errno, 4711);
    }
    EXPECT_LT(places.size(), 50u) << bytes << ": not free";
  }
  // Which a leak of what is never touched would not show in.
  EXPECT_LT(rdmalloc_test::resident_bytes(), 1024 * kMiB);
}

TEST(MallocRealloc, growing_and_shrinking_keeps_the_bytes_of_the_smaller) {
  Random random(test_seed(7));
  for (int chain = 0; chain < 60; chain++) {
    size_t bytes = random.size_between(1, kMiB);
    unsigned char* block = resize(nullptr, bytes);
    fill(block, bytes, static_cast<size_t>(chain));
    for (int step = 0; step < 20; step++) {
      size_t next = random.size_between(1, chain % 10 == 0 ? 8 * kMiB : 128 * kKiB);
      block = resize(block, next);
      ASSERT_NE(block, nullptr);
      size_t common = next < bytes ? next : bytes;
      ASSERT_EQ(first_difference(block, common, static_cast<size_t>(chain)), common)
          << "chain " << chain << ", " << bytes << " to " << next << " bytes";
      fill(block, next, static_cast<size_t>(chain));
      bytes = next;
    }
    aut::free(block);
  }
}

TEST(MallocRealloc, within_the_usable_size_stays_in_place) {
  for (size_t bytes : {size_t{1}, size_t{40}, size_t{1000}, size_t{5000}, 100 * kKiB, 3 * kMiB}) {
    auto* block = static_cast<unsigned char*>(aut::malloc(bytes));
    ASSERT_NE(block, nullptr);
    size_t usable = aut::usable_size(block);
    for (size_t next : {usable, bytes, usable}) {
      unsigned char* moved = resize(block, next);
      EXPECT_EQ(moved, block) << bytes << " to " << next << " of usable " << usable;
      block = moved;
    }
    aut::free(block);
  }
}

TEST(MallocRealloc, shrinking_a_lot_gives_the_rest_back) {
  // 200 blocks of 1 MiB cut to 100 bytes must not keep 200 MiB resident for good.
  std::vector<unsigned char*> blocks;
  size_t before = rdmalloc_test::resident_bytes();
  for (int i = 0; i < 200; i++) {
    auto* block = static_cast<unsigned char*>(aut::malloc(kMiB));
    ASSERT_NE(block, nullptr);
    memset(block, 0x11, kMiB);
    block = resize(block, 100);
    ASSERT_NE(block, nullptr);
    for (int at = 0; at < 100; at++) ASSERT_EQ(block[at], 0x11);
    blocks.push_back(block);
  }
  size_t after = rdmalloc_test::resident_bytes();
  EXPECT_LT(after, before + 50 * kMiB) << "the cut-off ends are not used again";
  for (unsigned char* block : blocks) aut::free(block);
}

TEST(MallocRealloc, growth_by_small_steps_keeps_every_byte) {
  unsigned char* block = nullptr;
  size_t bytes = 0;
  for (size_t next = 1; next < 16 * kMiB; next += next / 16 + 64) {
    block = resize(block, next);
    ASSERT_NE(block, nullptr);
    fill_from(block, bytes, next, 3);
    bytes = next;
  }
  EXPECT_EQ(first_difference(block, bytes, 3), bytes);
  aut::free(block);
}

TEST(MallocRealloc, two_blocks_growing_in_turn_do_not_run_into_each_other) {
  unsigned char* blocks[4] = {};
  size_t bytes[4] = {};
  for (int step = 0; step < 200; step++) {
    int which = step % 4;
    size_t next = bytes[which] + 40 * kKiB + static_cast<size_t>(step) * 16;
    blocks[which] = resize(blocks[which], next);
    ASSERT_NE(blocks[which], nullptr);
    fill_from(blocks[which], bytes[which], next, static_cast<size_t>(which));
    bytes[which] = next;
  }
  for (size_t which = 0; which < 4; which++) {
    EXPECT_EQ(first_difference(blocks[which], bytes[which], which), bytes[which]) << which;
    aut::free(blocks[which]);
  }
}

TEST(MallocRealloc, a_block_that_keeps_growing_is_copied_a_few_times_only) {
  // After each step something else is put where there is room: blocks of the step's size, and small
  // ones that need new slabs.
  constexpr size_t kStep = 64 * kKiB, kEnd = 16 * kMiB;
  std::vector<void*> others;
  auto* block = static_cast<unsigned char*>(aut::malloc(kStep));
  size_t copied = 0, moves = 0, bytes = kStep;
  fill(block, kStep, 5);
  for (; bytes < kEnd; bytes += kStep) {
    for (int i = 0; i < 3; i++) others.push_back(aut::malloc(kStep));
    for (int i = 0; i < 300; i++) others.push_back(aut::malloc(1000));
    auto* grown = static_cast<unsigned char*>(aut::realloc(block, bytes + kStep));
    ASSERT_NE(grown, nullptr);
    if (grown != block) {
      moves++;
      copied += bytes;
    }
    block = grown;
    fill_from(block, bytes, bytes + kStep, 5);
  }
  ASSERT_EQ(first_difference(block, bytes, 5), bytes);
  // Where a move made room for a quarter more it would be log(256) / log(1.25), 25 of them, and the
  // sum of what is copied 5 times the end. It makes a sixth, but from 2 MiB on there is as much
  // room again behind it: 21 and 3.6 times, seen.
  EXPECT_LE(moves, 25u);
  EXPECT_LE(copied, 5 * kEnd);
  aut::free(block);
  for (void* other : others) aut::free(other);
}

TEST(MallocRealloc, a_refused_realloc_leaves_the_block_as_it_was) {
  for (size_t bytes : {size_t{10}, size_t{3000}, 300 * kKiB}) {
    auto* block = static_cast<unsigned char*>(aut::malloc(bytes));
    fill(block, bytes, 9);
    errno = 0;
    EXPECT_EQ(aut::realloc(block, aut::opaque(SIZE_MAX - 100)), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(first_difference(block, bytes, 9), bytes);
    aut::free(block);
  }
}

TEST(MallocRealloc, reallocarray_multiplies) {
  auto* block = static_cast<unsigned char*>(aut::reallocarray(nullptr, 100, 30));
  ASSERT_NE(block, nullptr);
  EXPECT_GE(aut::usable_size(block), 3000u);
  fill(block, 3000, 4);
  block = static_cast<unsigned char*>(aut::reallocarray(block, 1000, 30));
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(first_difference(block, 3000, 4), 3000u);
  aut::free(block);
}

size_t first_nonzero(const unsigned char* block, size_t bytes) {
  return rdmalloc_test::first_unlike(block, bytes, [](size_t) { return uint64_t{0}; });
}

TEST(MallocCalloc, memory_that_was_dirty_comes_back_zero_for_every_size) {
  // Seen to fail with a calloc that is malloc; one that leaves out each of its eight writes of up
  // to 256 bytes, or makes the last 16 bytes longer.
  for (size_t bytes = 1; bytes <= 9 * kMiB; bytes = bytes < 600 ? bytes + 1 : bytes * 5 / 4) {
    size_t count = bytes < 64 * kKiB ? 40 : 3;
    std::vector<unsigned char*> blocks;
    for (size_t i = 0; i < count; i++) {
      auto* block = static_cast<unsigned char*>(aut::malloc(bytes));
      ASSERT_NE(block, nullptr);
      memset(block, 0xEE, aut::usable_size(block));
      blocks.push_back(block);
    }
    for (unsigned char* block : blocks) aut::free(block);
    blocks.clear();
    for (size_t i = 0; i < count; i++) {
      auto* block = static_cast<unsigned char*>(aut::calloc(1, bytes));
      ASSERT_NE(block, nullptr);
      ASSERT_EQ(first_nonzero(block, bytes), bytes) << "calloc(1, " << bytes << ")";
      memset(block, 0xDD, bytes);
      blocks.push_back(block);
    }
    for (unsigned char* block : blocks) {
      // What later ones zeroed is not of its.
      ASSERT_EQ(
          rdmalloc_test::first_unlike(block, bytes, [](size_t) { return 0xDDDDDDDDDDDDDDDDu; }),
          bytes)
          << "beside calloc(1, " << bytes << ")";
      aut::free(block);
    }
  }
}

TEST(MallocCalloc, stays_zero_through_splitting_and_merging_of_large_runs) {
  Random random(test_seed(11));
  std::vector<std::pair<unsigned char*, size_t>> live;
  for (int step = 0; step < 1500; step++) {
    if (live.size() < 24 && random.below(2) == 0) {
      size_t bytes = random.size_between(16 * kKiB, 4 * kMiB);
      bool zeroed = random.below(2) == 0;
      auto* block =
          static_cast<unsigned char*>(zeroed ? aut::calloc(bytes, 1) : aut::malloc(bytes));
      ASSERT_NE(block, nullptr);
      if (zeroed) {
        ASSERT_EQ(first_nonzero(block, bytes), bytes) << "step " << step;
      }
      memset(block, 0x77, bytes);
      live.emplace_back(block, bytes);
    } else if (!live.empty()) {
      size_t which = random.below(live.size());
      aut::free(live[which].first);
      live[which] = live.back();
      live.pop_back();
    }
  }
  for (auto& [block, bytes] : live) aut::free(block);
}

}  // namespace
