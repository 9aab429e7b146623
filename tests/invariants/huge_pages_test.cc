// SPDX-License-Identifier: BSD-3-Clause
//
// Which addresses of the arena huge pages are asked for under: the flag "hg" of /proc/self/smaps.
// Each test wants a process of its own, as ctest gives it.
//
// Seen to fail: a_program_of_many_sizes_… with is_dense() always true, a_large_block_… without
// huge_ask_for_whole(), a_program_that_fills_… and buffers_… with is_dense() always false,
// a_small_… with a zone of small pages of 4 MiB, buffers_… with kLatestForBuffers of 64 MiB,
// never_… with huge_choose_end() not asking arena_may_be_huge().
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "rdmalloc/rdmalloc.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kHugePage = 2 * kMiB;

// Bytes of [begin, end) under which huge pages were asked for.
size_t huge_bytes(uintptr_t begin, uintptr_t end) {
  std::ifstream smaps("/proc/self/smaps");
  uintptr_t from = 0, to = 0;
  size_t found = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t a = 0, b = 0;
    if (sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &a, &b) == 2) {
      from = std::max(a, begin);
      to = std::min(b, end);
    } else if (line.starts_with("VmFlags:") && line.find(" hg") != std::string::npos && from < to) {
      found += to - from;
    }
  }
  return found;
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

TEST_F(HugePages, a_large_block_has_them_under_all_it_covers) {
  void* before = rdmalloc_malloc(4 * kMiB);  // begins in the first 2 MiB, which never have any
  auto* block = static_cast<char*>(rdmalloc_malloc(9 * kMiB));
  uintptr_t begin = (address_of(block) + kHugePage - 1) & ~(kHugePage - 1);
  uintptr_t end = (address_of(block) + 9 * kMiB) & ~(kHugePage - 1);
  EXPECT_GE(end - begin, 3 * kHugePage);
  EXPECT_EQ(huge_bytes(begin, end), end - begin);
  rdmalloc_free(block);
  rdmalloc_free(before);
}

TEST_F(HugePages, a_program_that_fills_its_addresses_has_them_from_then_on) {
  uintptr_t end = fill(40 * kMiB) & ~(kHugePage - 1);
  EXPECT_EQ(huge_bytes(end - 16 * kMiB, end), 16 * kMiB);
}

// But for the first 2 MiB of its addresses: what small programs stay under.
TEST_F(HugePages, a_small_program_that_fills_its_addresses_has_them_too) {
  uintptr_t begin = address_of(rdmalloc_malloc(1)) & ~(kHugePage - 1);
  fill(kMiB);
  EXPECT_EQ(huge_bytes(begin, begin + kHugePage), 0u);
  fill(3 * kMiB);
  EXPECT_EQ(huge_bytes(begin, begin + 2 * kHugePage), kHugePage);
}

// As a rank of an MPI job: it starts with all sizes, and then it is buffers, none of which covers a
// huge page.
TEST_F(HugePages, buffers_that_fill_the_latest_addresses_have_them_from_then_on) {
  blocks_of_many_sizes();
  std::vector<uintptr_t> buffers;
  for (int i = 0; i < 32; i++) buffers.push_back(address_of(rdmalloc_malloc(kMiB)));
  uintptr_t end = (*std::max_element(buffers.begin(), buffers.end()) + kMiB) & ~(kHugePage - 1);
  EXPECT_EQ(huge_bytes(end - 16 * kMiB, end), 16 * kMiB);
  for (uintptr_t buffer : buffers) rdmalloc_free(reinterpret_cast<void*>(buffer));
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
