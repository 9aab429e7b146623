// SPDX-License-Identifier: BSD-3-Clause
//
// Sizes at the edges: zero, one, every size near every power of two, and what can't be had.
#include <errno.h>
#include <gtest/gtest.h>
#include <string.h>

#include <set>
#include <thread>
#include <vector>

#include "tests/support/alloc_under_test.h"

namespace {

constexpr size_t kHuge[] = {SIZE_MAX,         SIZE_MAX - 1,     SIZE_MAX - 4096, SIZE_MAX - 65536,
                            SIZE_MAX / 2,     SIZE_MAX / 2 + 1, SIZE_MAX - 15,   PTRDIFF_MAX,
                            size_t{1} << 62u, size_t{1} << 48u};

// Every one of these must leave a null pointer and ENOMEM.
#define EXPECT_NO_MEMORY(call)            \
  do {                                    \
    errno = 0;                            \
    void* got_ = (call);                  \
    EXPECT_EQ(got_, nullptr) << #call;    \
    EXPECT_EQ(errno, ENOMEM) << #call;    \
    if (got_ != nullptr) aut::free(got_); \
  } while (0)

TEST(MallocSizes, zero_bytes_gives_distinct_blocks_that_can_be_freed) {
  std::set<void*> seen;
  for (int i = 0; i < 100; i++) {
    void* block = aut::malloc(0);
    ASSERT_NE(block, nullptr);
    EXPECT_TRUE(seen.insert(block).second) << "two live blocks of 0 bytes at " << block;
  }
  void* zeroed = aut::calloc(0, 8);
  void* zeroed_too = aut::calloc(8, 0);
  EXPECT_NE(zeroed, nullptr);
  EXPECT_NE(zeroed_too, nullptr);
  EXPECT_NE(zeroed, zeroed_too);
  aut::free(zeroed);
  aut::free(zeroed_too);
  for (void* block : seen) aut::free(block);
}

TEST(MallocSizes, smallest_block_has_at_least_16_usable_bytes) {
  // Open MPI 5.0's mtl ofi, with sessions, allocates 4 bytes and writes the int at 12 (index 3 of
  // an array of one): glibc's smallest block has room for it.
  for (size_t bytes = 0; bytes <= 16; bytes++) {
    auto* block = static_cast<char*>(aut::malloc(bytes));
    ASSERT_NE(block, nullptr);
    EXPECT_GE(aut::usable_size(block), 16u) << bytes;
    memset(block, 0x5A, 16);
    aut::free(block);
  }
}

// Seen to fail with smallest blocks of 32 bytes, and with slabs of 16-byte blocks whose bitmap ends
// after 2,048.
TEST(MallocSizes, live_blocks_of_up_to_16_bytes_take_16_each) {
  constexpr size_t kBlocks = 100000, kPage = 4096;
  std::vector<unsigned char*> blocks(kBlocks);
  std::set<size_t> pages;
  for (size_t i = 0; i < kBlocks; i++) {
    blocks[i] = static_cast<unsigned char*>(aut::malloc(i % 16 + 1));
    ASSERT_NE(blocks[i], nullptr);
    EXPECT_EQ(aut::usable_size(blocks[i]), 16u);
    pages.insert(reinterpret_cast<size_t>(blocks[i]) / kPage);
    memset(blocks[i], static_cast<int>(i % 251), 16);
  }
  EXPECT_LE(pages.size(), kBlocks * 16 / kPage * 21 / 20);
  // Freed by turns and taken again: a block is in one place only.
  for (size_t i = 0; i < kBlocks; i += 2) aut::free(blocks[i]);
  for (size_t i = 0; i < kBlocks; i += 2) {
    blocks[i] = static_cast<unsigned char*>(aut::malloc(16));
    memset(blocks[i], static_cast<int>(i % 251), 16);
  }
  for (size_t i = 0; i < kBlocks; i++) {
    for (size_t at = 0; at < 16; at++) ASSERT_EQ(blocks[i][at], i % 251) << i;
    aut::free(blocks[i]);
  }
}

TEST(MallocSizes, every_size_round_a_power_of_two_is_usable_to_its_end) {
  for (unsigned bit = 0; bit <= 28; bit++) {
    for (int delta = -1; delta <= 1; delta++) {
      size_t bytes = (size_t{1} << bit) + static_cast<size_t>(delta);
      auto* block = static_cast<unsigned char*>(aut::malloc(bytes));
      ASSERT_NE(block, nullptr) << bytes;
      EXPECT_GE(aut::usable_size(block), bytes);
      EXPECT_TRUE(aut::is_aligned(block, 16)) << bytes;
      if (bytes > 0) {
        block[0] = 1;
        block[bytes / 2] = 2;
        block[bytes - 1] = 3;
      }
      aut::free(block);
    }
  }
}

TEST(MallocSizes, all_sizes_up_to_4096_hold_their_bytes_side_by_side) {
  std::vector<unsigned char*> blocks;
  for (size_t bytes = 1; bytes <= 4096; bytes++) {
    auto* block = static_cast<unsigned char*>(aut::malloc(bytes));
    ASSERT_NE(block, nullptr);
    memset(block, static_cast<int>(bytes % 251), bytes);
    blocks.push_back(block);
  }
  for (size_t bytes = 1; bytes <= 4096; bytes++) {
    unsigned char* block = blocks[bytes - 1];
    for (size_t i = 0; i < bytes; i++) ASSERT_EQ(block[i], bytes % 251) << bytes << " at " << i;
    aut::free(block);
  }
}

TEST(MallocSizes, waste_of_the_size_classes_is_bounded) {
  // DESIGN: steps of 16 to 1 KiB, then 8 to a doubling: 12.5 % at most, for what is not tiny and
  // not rounded to slices. glibc is far inside; so must we be, or `usable_size` is not true.
  for (size_t bytes = 128; bytes <= 8192; bytes += 8) {
    void* block = aut::malloc(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_LE(aut::usable_size(block), bytes + bytes / 7 + 16) << bytes;
    aut::free(block);
  }
}

TEST(MallocSizes, impossible_sizes_give_null_and_enomem) {
  for (size_t bytes : kHuge) {
    SCOPED_TRACE(bytes);
    EXPECT_NO_MEMORY(aut::malloc(aut::opaque(bytes)));
    EXPECT_NO_MEMORY(aut::calloc(1, aut::opaque(bytes)));
    EXPECT_NO_MEMORY(aut::calloc(aut::opaque(bytes), 1));
    EXPECT_NO_MEMORY(aut::realloc(nullptr, aut::opaque(bytes)));
    EXPECT_NO_MEMORY(aut::aligned_alloc(64, aut::opaque(bytes & ~size_t{63})));
    EXPECT_NO_MEMORY(aut::memalign(4096, aut::opaque(bytes)));
    EXPECT_NO_MEMORY(aut::valloc(aut::opaque(bytes)));
    EXPECT_NO_MEMORY(aut::pvalloc(aut::opaque(bytes)));
    void* out = &out;
    EXPECT_EQ(aut::posix_memalign(&out, 64, aut::opaque(bytes)), ENOMEM);
    EXPECT_EQ(out, &out) << "posix_memalign wrote its result although it failed";
  }
}

TEST(MallocSizes, products_that_overflow_give_null_and_enomem) {
  constexpr size_t kHalf = size_t{1} << 32u;
  const size_t pairs[][2] = {{kHalf, kHalf},        {SIZE_MAX, 2},         {2, SIZE_MAX},
                             {SIZE_MAX / 2 + 1, 2}, {SIZE_MAX / 8 + 1, 8}, {kHalf + 1, kHalf},
                             {SIZE_MAX, SIZE_MAX}};
  for (const auto& pair : pairs) {
    SCOPED_TRACE(pair[0]);
    EXPECT_NO_MEMORY(aut::calloc(aut::opaque(pair[0]), aut::opaque(pair[1])));
    EXPECT_NO_MEMORY(aut::reallocarray(nullptr, aut::opaque(pair[0]), aut::opaque(pair[1])));
    auto* kept = static_cast<char*>(aut::malloc(10));
    memcpy(kept, "unchanged", 10);
    // Hidden from the compiler, which would warn of a use after a reallocarray that has worked.
    EXPECT_NO_MEMORY(
        aut::reallocarray(aut::opaque(kept), aut::opaque(pair[0]), aut::opaque(pair[1])));
    EXPECT_STREQ(kept, "unchanged");
    aut::free(kept);
  }
}

TEST(MallocSizes, a_failed_call_does_not_spoil_the_next_one) {
  for (int round = 0; round < 1000; round++) {
    EXPECT_NO_MEMORY(aut::malloc(aut::opaque(size_t{PTRDIFF_MAX})));
    void* block = aut::malloc(100);
    ASSERT_NE(block, nullptr);
    aut::free(block);
  }
}

TEST(MallocSizes, gigabytes_can_be_had_and_touched_at_both_ends) {
  for (size_t bytes : {size_t{1} << 30u, (size_t{3} << 30u) + 12345, size_t{16} << 30u}) {
    auto* block = static_cast<unsigned char*>(aut::malloc(bytes));
    ASSERT_NE(block, nullptr) << bytes;
    EXPECT_GE(aut::usable_size(block), bytes);
    block[0] = 1;
    block[bytes - 1] = 2;
    EXPECT_EQ(block[0] + block[bytes - 1], 3);
    aut::free(block);
  }
}

TEST(MallocSizes, success_leaves_errno_alone) {
  errno = 4711;
  std::vector<void*> blocks;
  for (size_t bytes = 1; bytes <= (size_t{1} << 24u); bytes *= 2) {
    blocks.push_back(aut::malloc(bytes));
    blocks.push_back(aut::calloc(1, bytes));
    blocks.push_back(aut::memalign(256, bytes));
    blocks.push_back(aut::realloc(aut::malloc(bytes), bytes * 3));
  }
  EXPECT_EQ(errno, 4711);
  for (void* block : blocks) EXPECT_NE(block, nullptr);
  for (void* block : blocks) {
    errno = 4711;
    aut::free(block);
    EXPECT_EQ(errno, 4711) << "free changed errno (POSIX.1-2024 forbids it)";
  }
}

TEST(MallocSizes, free_keeps_errno_also_on_its_slowest_ways) {
  // On threads that have no cache yet, in numbers that overflow every magazine, and of large
  // blocks.
  for (size_t bytes : {size_t{8}, size_t{300}, size_t{5000}, size_t{30000}, size_t{3} << 20u}) {
    std::vector<void*> blocks;
    for (size_t i = 0; i < (bytes < 10000 ? 5000u : 200u); i++)
      blocks.push_back(aut::malloc(bytes));
    for (int quarter = 0; quarter < 4; quarter++) {
      int changed = 0;
      std::thread([&] {
        for (size_t i = static_cast<size_t>(quarter); i < blocks.size(); i += 4) {
          errno = 4711;
          aut::free(blocks[i]);
          changed += errno != 4711;
        }
      }).join();
      EXPECT_EQ(changed, 0) << bytes;
    }
  }
}

TEST(MallocSizes, freeing_null_does_nothing) {
  errno = 4711;
  for (int i = 0; i < 1000; i++) aut::free(nullptr);
  if (aut::has_free_sized()) {
    aut::free_sized(nullptr, 0);
    aut::free_sized(nullptr, 100);
    aut::free_aligned_sized(nullptr, 64, 128);
  }
  EXPECT_EQ(errno, 4711);
  EXPECT_EQ(aut::usable_size(nullptr), 0u);
}

TEST(MallocSizes, sized_frees_take_blocks_of_every_size) {
  if (!aut::has_free_sized()) GTEST_SKIP() << "SKIP: this malloc has no free_sized (C23)";
  for (size_t bytes = 0; bytes <= 70000; bytes = bytes < 64 ? bytes + 1 : bytes * 9 / 8) {
    std::set<void*> places;
    for (int i = 0; i < 100; i++) {
      void* block = aut::malloc(bytes);
      places.insert(block);
      aut::free_sized(block, bytes);
    }
    EXPECT_LT(places.size(), 50u) << bytes << ": not free";
    aut::free_sized(aut::calloc(1, bytes), bytes);
    for (size_t alignment : {16u, 64u, 4096u}) {
      size_t rounded = (bytes + alignment - 1) & ~(alignment - 1);
      aut::free_aligned_sized(aut::aligned_alloc(alignment, rounded), alignment, rounded);
    }
  }
}

}  // namespace
