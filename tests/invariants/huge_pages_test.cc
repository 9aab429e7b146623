// SPDX-License-Identifier: BSD-3-Clause
//
// Which addresses of the arena huge pages are asked for under (the flag "hg" of /proc/self/smaps),
// and that there are none elsewhere, whatever the kernel's setting is ("nh"). Each test wants a
// process of its own, as ctest gives it.
//
// Seen to fail: a_large_block_… without huge_ask_for_block(), a_block_that_is_hardly_used_… with
// the mark in each chunk's first Span (8.8 MiB), a_large_heap_… with is_dense() always false,
// a_medium_heap_… with kLargeHeapSlices of 64 MiB, the_arena_… without advise_small(),
// a_longer_buffer_… without ask_for_block() in take_longest_and_more(), blocks_that_grow_… with the
// capacity in place of the size asked for, the_rest_of_… without Where::kSmallPages, never_… with
// huge_ask_for_block() not asking arena_may_be_huge(), hardly_… with blocks that are spans counted
// as touched, …_of_shards… with is_dense_of_heap() always false, or true.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "rdmalloc/rdmalloc.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB, kHugePage = 2 * kMiB;

// Bytes of [begin, end) whose mappings have the flag.
size_t bytes_with_flag(uintptr_t begin, uintptr_t end, const char* flag) {
  std::ifstream smaps("/proc/self/smaps");
  uintptr_t from = 0, to = 0;
  size_t found = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t a = 0, b = 0;
    if (sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &a, &b) == 2) {
      from = std::max(a, begin);
      to = std::min(b, end);
    } else if (line.starts_with("VmFlags:") && line.find(flag) != std::string::npos && from < to) {
      found += to - from;
    }
  }
  return found;
}

// Under which huge pages were asked for.
size_t huge_bytes(uintptr_t begin, uintptr_t end) {
  return bytes_with_flag(begin, end, " hg");
}

uintptr_t address_of(const void* block) {
  return reinterpret_cast<uintptr_t>(block);
}

// Fills a program densely, for good. The address of the highest block.
uintptr_t fill(size_t bytes) {
  uintptr_t highest = 0;
  for (size_t used = 0; used < bytes; used += 64)
    highest = std::max(highest, address_of(rdmalloc_malloc(64)));
  return highest;
}

class HugePages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) != 0)
      GTEST_SKIP() << "SKIP: this kernel has no transparent huge pages";
    if (sysconf(_SC_PAGESIZE) != 4096)
      GTEST_SKIP() << "SKIP: huge pages are of another size than a chunk with this page size";
    ASSERT_EQ(rdmalloc_init(), 0);
    if (rdmalloc_test::counter("stats.mapped_bytes") > kMiB)
      GTEST_SKIP() << "SKIP: another test came before in this process";
  }
};

// Two blocks of each size up to 32 KiB: 80 slabs, most of them of 512 KiB, and hardly a page used.
std::vector<char*> blocks_of_many_sizes() {
  std::vector<char*> blocks;
  for (size_t bytes = 16; bytes <= 32 * kKiB; bytes += bytes < kKiB ? 16 : bytes / 8)
    for (int i = 0; i < 2; i++) {
      blocks.push_back(static_cast<char*>(rdmalloc_malloc(bytes)));
      *blocks.back() = 1;
    }
  return blocks;
}

TEST_F(HugePages, a_program_of_many_sizes_and_few_bytes_has_none) {
  size_t before = rdmalloc_test::resident_bytes();
  std::vector<char*> blocks = blocks_of_many_sizes();
  auto [first, last] = std::minmax_element(blocks.begin(), blocks.end());
  ASSERT_GT(*last - *first, static_cast<ptrdiff_t>(12 * kMiB)) << "the test wants many addresses";
  EXPECT_EQ(huge_bytes(address_of(*first), address_of(*last)), 0u);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  EXPECT_LT(rdmalloc_test::resident_bytes() - before, 4 * kMiB);
#endif
  for (char* block : blocks) rdmalloc_free(block);
}

TEST_F(HugePages, a_large_block_has_them_under_all_chunks_it_covers) {
  auto* block = static_cast<char*>(rdmalloc_malloc(9 * kMiB));
  uintptr_t begin = (address_of(block) + kHugePage - 1) & ~(kHugePage - 1);
  uintptr_t end = (address_of(block) + 9 * kMiB) & ~(kHugePage - 1);
  EXPECT_GE(end - begin, 3 * kHugePage);
  EXPECT_EQ(huge_bytes(begin, end), end - begin);
  EXPECT_EQ(huge_bytes(end, address_of(block) + 16 * kMiB), 0u) << "not under what follows";
  rdmalloc_free(block);
}

// A job takes address space by the 100 GiB and uses what it needs. Marks beside the spans, of which
// a page tells of two chunks, were a thousandth of it.
TEST_F(HugePages, a_block_that_is_hardly_used_takes_next_to_no_memory) {
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
  size_t before = rdmalloc_test::resident_bytes();
  auto* block = static_cast<char*>(rdmalloc_malloc(8 * kGiB));
  if (block == nullptr) GTEST_SKIP() << "SKIP: no address space for a block of 8 GiB";
  EXPECT_LT(rdmalloc_test::resident_bytes() - before, 4 * kMiB);
  rdmalloc_free(block);
#endif
}

TEST_F(HugePages, blocks_below_8_MiB_have_none) {
  std::vector<uintptr_t> blocks;
  for (size_t bytes : {40 * kKiB, kMiB, 3 * kMiB, 8 * kMiB - 64 * kKiB})
    for (int i = 0; i < 8; i++) blocks.push_back(address_of(rdmalloc_malloc(bytes)));
  auto [first, last] = std::minmax_element(blocks.begin(), blocks.end());
  EXPECT_EQ(huge_bytes(*first, *last + 8 * kMiB), 0u);
}

// It begins where the longest one lay, and only what is behind that is new.
TEST_F(HugePages, a_longer_buffer_has_them_behind_the_longest_before_it) {
  constexpr size_t kFirst = 12 * kMiB, kSecond = 20 * kMiB;
  void* shorter = rdmalloc_malloc(kFirst);
  uintptr_t begin = address_of(shorter);
  rdmalloc_free(shorter);
  void* longer = rdmalloc_malloc(kSecond);
  ASSERT_EQ(address_of(longer), begin) << "the test wants the same place";
  EXPECT_GE(huge_bytes(begin + kFirst, begin + kSecond), kSecond - kFirst - 2 * kHugePage);
  rdmalloc_free(longer);
}

// What an array keeps ready for its growth is not backed with it.
TEST_F(HugePages, blocks_that_grow_have_them_under_what_was_asked_for) {
  void* array = rdmalloc_malloc(kMiB);
  void* behind = rdmalloc_malloc(kMiB);  // so that it moves
  size_t asked = 13 * kMiB;
  array = rdmalloc_realloc(array, asked);
  uintptr_t begin = address_of(array);
  ASSERT_GT(rdmalloc_malloc_usable_size(array), 14 * kMiB) << "the test wants room to grow";
  EXPECT_GE(huge_bytes(begin, begin + asked), 10 * kMiB);
  EXPECT_EQ(huge_bytes(begin + asked, begin + 32 * kMiB), 0u);
  rdmalloc_free(array);
  rdmalloc_free(behind);
}

// A clean huge page is backed as a whole once a small thing takes a part of it.
TEST_F(HugePages, the_rest_of_a_huge_page_is_not_taken_for_small_blocks) {
  uintptr_t begin = address_of(rdmalloc_aligned_alloc(kHugePage, 16 * kMiB));
  ASSERT_EQ(huge_bytes(begin, begin + 16 * kMiB), 16 * kMiB);
  rdmalloc_free(reinterpret_cast<void*>(begin));
  rdmalloc_purge(0);
  for (size_t bytes : {64 * kKiB, 256 * kKiB, kMiB}) {
    uintptr_t block = address_of(rdmalloc_malloc(bytes));
    EXPECT_TRUE(block >= begin + 16 * kMiB || block + bytes <= begin) << bytes;
  }
  EXPECT_LE(address_of(rdmalloc_malloc(16 * kMiB)), begin) << "another large block takes it";
}

TEST_F(HugePages, a_medium_heap_of_small_blocks_has_none) {
  uintptr_t begin = address_of(rdmalloc_malloc(64));
  uintptr_t end = fill(100 * kMiB);
  EXPECT_EQ(huge_bytes(begin & ~(kHugePage - 1), end + kHugePage), 0u);
}

TEST_F(HugePages, a_large_heap_of_small_blocks_has_them_from_256_MiB_on) {
  uintptr_t end = fill(300 * kMiB) & ~(kHugePage - 1);
  EXPECT_EQ(huge_bytes(end - 16 * kMiB, end), 16 * kMiB);
}

// What is written of a block at an alignment of 64 KiB is a page of it; huge pages would back all.
uintptr_t fill_with_aligned(size_t bytes) {
  uintptr_t highest = 0;
  for (size_t used = 0; used < bytes; used += 67 * kKiB) {
    highest = std::max(highest, address_of(rdmalloc_malloc(3 * kKiB)));
    highest = std::max(highest, address_of(rdmalloc_aligned_alloc(64 * kKiB, 100)));
  }
  return highest;
}

TEST_F(HugePages, hardly_touched_blocks_have_none_nor_slabs_among_them) {
  uintptr_t begin = address_of(rdmalloc_malloc(64));
  uintptr_t end = fill_with_aligned(300 * kMiB);
  EXPECT_EQ(huge_bytes(begin & ~(kHugePage - 1), end + kHugePage), 0u);
}

TEST_F(HugePages, segments_of_shards_have_them_where_slabs_are_dense) {
  if (getenv("RDMALLOC_TOPOLOGY") == nullptr) {
    rdmalloc_test::ChildResult result = rdmalloc_test::run_child(
        {"/proc/self/exe", "--gtest_filter=HugePages.segments_of_shards_*"},
        {.environment = {"RDMALLOC_TOPOLOGY=2x2"}});
    EXPECT_TRUE(result.clean()) << result.describe();
    return;
  }
  uintptr_t end = address_of(rdmalloc_malloc(64));  // the first shard has no segments
  auto in_another_shard = [](auto work) { std::thread(work).join(); };
  in_another_shard([&] { end = fill_with_aligned(1024 * kMiB); });
  EXPECT_EQ(huge_bytes(0, end + 64 * kMiB), 0u);
  in_another_shard([&] { end = fill(100 * kMiB) & ~(kHugePage - 1); });
  EXPECT_GE(huge_bytes(end - 16 * kMiB, end), 12 * kMiB);
}

TEST_F(HugePages, the_arena_has_none_whatever_the_kernels_setting_is) {
  uintptr_t begin = address_of(rdmalloc_malloc(kMiB)) & ~(kHugePage - 1);
  EXPECT_EQ(bytes_with_flag(begin, begin + 64 * kMiB, " nh"), 64 * kMiB);
}

TEST_F(HugePages, never_means_never) {
  if (getenv("RDMALLOC_HUGE") == nullptr) {
    rdmalloc_test::ChildResult result =
        rdmalloc_test::run_child({"/proc/self/exe", "--gtest_filter=HugePages.never_means_never"},
                                 {.environment = {"RDMALLOC_HUGE=never"}});
    EXPECT_TRUE(result.clean()) << result.describe();
    return;
  }
  uintptr_t large = address_of(rdmalloc_malloc(80 * kMiB));
  uintptr_t end = fill(40 * kMiB);
  EXPECT_EQ(huge_bytes(std::min(large, end - 40 * kMiB), std::max(large + 80 * kMiB, end)), 0u);
}

}  // namespace
