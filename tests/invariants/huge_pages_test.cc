// SPDX-License-Identifier: BSD-3-Clause
//
// Which addresses of the arena huge pages are asked for under (the flag "hg" of /proc/self/smaps),
// and that there are none elsewhere, whatever the kernel's setting is ("nh"). Each test wants a
// process of its own, as ctest gives it.
//
// Seen to fail: a_large_block_…, a_longer_buffer_… and blocks_that_grow_… with is_for_huge() always
// false, a_block_that_is_hardly_used_… with the mark in each chunk's first Span (8.8 MiB),
// blocks_of_64_…, _250_… and _5_… with look_below() that looks at nothing, the first with a
// looked_at_slices() of 1 MiB, what_is_not_… and hardly_… with a kResident32nds of 2,
// a_program_that_touches_less_… with a kEarnedDivisor of 1, other_sizes_… and zeroes_… with
// huge_is_earned() the same for all, blocks_lie_… with an extend_frontier() to the end of the
// chunk, …_where_a_purge_was without take_rest_and_clean(), only_long_blocks_… with a
// count_resident() that finds all where it is refused, the_arena_… without advise_small(),
// the_rest_of_… without Where::kSmallPages, never_… with huge_ask() not asking arena_may_be_huge(),
// …_of_shards… without huge_ask_for_segment(), what_the_last_one_… without page_heap_enter_rest(),
// …_after_a_month_too with an `asked_ms` that is earlier than `part_until_ms`, I7_… without
// purge_note_new_pages(),
// …_passed_by_… without huge_note_passed(), and with a huge_note_use() that does nothing,
// …_seldom_looked_at with looks that are never left out, …_soon with a kSlicesOfLook of 1.
#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "alloc/core/purge_signal.h"
#include "alloc/os/fault.h"
#include "alloc/os/os.h"
#include "alloc/os/sanitizers.h"
#include "alloc/pages/page_heap.h"
#include "rdmalloc/rdmalloc.h"
#include "tests/support/call_filter.h"
#include "tests/support/counters.h"
#include "tests/support/first_test.h"
#include "tests/support/kernel_has.h"
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

uintptr_t chunk_below(uintptr_t address) {
  return address & ~(kHugePage - 1);
}

// Takes so many bytes for good, in blocks of one size, and writes to the first of each of their
// pages up to `written`. The end of the highest block.
uintptr_t fill(size_t bytes, size_t block_bytes = 64, size_t written = SIZE_MAX) {
  uintptr_t end = 0;
  for (size_t used = 0; used < bytes; used += block_bytes) {
    auto* block = static_cast<char*>(rdmalloc_malloc(block_bytes));
    for (size_t at = 0; at < std::min(block_bytes, written); at += 4 * kKiB) block[at] = 1;
    end = std::max(end, address_of(block) + block_bytes);
  }
  return end;
}

class HugePages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) != 0)
      GTEST_SKIP() << "SKIP: this kernel has no transparent huge pages";
    if (sysconf(_SC_PAGESIZE) != 4096)
      GTEST_SKIP() << "SKIP: huge pages are of another size than a chunk with this page size";
    ASSERT_EQ(rdmalloc_init(), 0);
    const bool is_fresh = rdmalloc_test::counter("stats.mapped_bytes") <= kMiB;
    ASSERT_TRUE(!rdmalloc_test::is_first_test() || is_fresh);
    if (!is_fresh) GTEST_SKIP() << "SKIP: another test came before in this process";
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
  [[maybe_unused]] size_t before = rdmalloc_test::resident_bytes();
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
  if (block == nullptr) {
    void* kernels =
        mmap(nullptr, 8 * kGiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_EQ(kernels, MAP_FAILED) << "the kernel has them";
    GTEST_SKIP() << "SKIP: no address space for a block of 8 GiB";
  }
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

// A program that was seen to touch what it takes: one chunk in so many has small pages, to see
// whether it still does.
void expect_huge_from_on(size_t from, size_t block_bytes) {
  uintptr_t begin = chunk_below(address_of(rdmalloc_malloc(64)));
  uintptr_t middle = chunk_below(fill(from - 10 * kMiB, block_bytes));
  EXPECT_EQ(huge_bytes(begin, middle), 0u);
  uintptr_t end = chunk_below(fill(100 * kMiB, block_bytes));
  EXPECT_GE(huge_bytes(middle, end), 56 * kMiB);
  EXPECT_LE(huge_bytes(middle, end), 94 * kMiB);
}
TEST_F(HugePages, blocks_of_64_bytes_have_them_where_all_is_touched) {
  expect_huge_from_on(44 * kMiB, 64);
}
TEST_F(HugePages, blocks_of_250_KiB_have_them_where_all_is_touched) {
  expect_huge_from_on(20 * kMiB, 250 * kKiB);
}
TEST_F(HugePages, blocks_of_5_MiB_have_them_where_all_is_touched) {
  expect_huge_from_on(20 * kMiB, 5 * kMiB);
}

TEST_F(HugePages, what_is_not_touched_has_none) {
  uintptr_t begin = address_of(rdmalloc_malloc(64));
  fill(100 * kMiB, kMiB, 10 * kKiB);
  uintptr_t end = fill(100 * kMiB, 33'000, 8 * kKiB);
  EXPECT_EQ(huge_bytes(chunk_below(begin), end + kHugePage), 0u);
}

// Of what is written of a block at an alignment of 64 KiB a page is touched, and they lie among
// the slabs; 33,000 bytes are nine pages of the sixteen of a slice.
uintptr_t fill_with_aligned(size_t bytes) {
  uintptr_t highest = 0;
  for (size_t used = 0; used < bytes; used += 67 * kKiB) {
    highest = std::max(highest, address_of(memset(rdmalloc_malloc(3 * kKiB), 1, 3 * kKiB)));
    void* block = rdmalloc_aligned_alloc(64 * kKiB, 100);
    highest = std::max(highest, address_of(memset(block, 1, 100)));
  }
  return highest;
}

TEST_F(HugePages, hardly_touched_spans_have_none_nor_slabs_among_them) {
  uintptr_t begin = address_of(rdmalloc_malloc(64));
  fill(100 * kMiB, 33'000);
  uintptr_t end = fill_with_aligned(300 * kMiB);
  EXPECT_EQ(huge_bytes(chunk_below(begin), end + kHugePage), 0u);
}

// What was seen is worth a quarter of the heap; and nothing for what the program did not do before.
// At 46 MiB most of what it has earned is left.
constexpr size_t kDense = 46 * kMiB;

TEST_F(HugePages, a_program_that_touches_less_and_less_loses_them) {
  uintptr_t dense = fill(kDense, kMiB);
  uintptr_t end = fill(64 * kMiB, kMiB, 10 * kKiB);
  EXPECT_GT(huge_bytes(dense, end), 0u) << "the test wants some";
  EXPECT_LE(huge_bytes(dense, end), kDense / 4 + kHugePage);
  uintptr_t later = fill(64 * kMiB, kMiB, 10 * kKiB);
  EXPECT_EQ(huge_bytes(end + kHugePage, later), 0u);
}

TEST_F(HugePages, other_sizes_have_none_before_they_are_touched_too) {
  uintptr_t dense = fill(kDense);
  uintptr_t end = fill(64 * kMiB, kMiB, 10 * kKiB);
  EXPECT_LE(huge_bytes(dense, end), kHugePage);
}

// Tables of zeros, of which a page here and there is written.
TEST_F(HugePages, zeroes_have_none_before_the_program_writes_them) {
  uintptr_t begin = address_of(rdmalloc_malloc(64)), end = 0;
  fill(64 * kMiB, kMiB);
  uintptr_t middle = fill(kHugePage, kMiB);
  for (int i = 0; i < 8; i++) {
    auto* zeroes = static_cast<char*>(rdmalloc_calloc(1, 12 * kMiB));
    zeroes[i * kMiB] = 1;
    end = address_of(zeroes) + 12 * kMiB;
  }
  EXPECT_GT(huge_bytes(begin, middle), 8 * kMiB) << "the test wants them for others";
  EXPECT_LE(huge_bytes(middle, end), kHugePage);
  for (int i = 0; i < 8; i++) {
    void* zeroes = rdmalloc_calloc(1, 12 * kMiB);
    end = address_of(memset(zeroes, 1, 12 * kMiB));
  }
  EXPECT_GE(huge_bytes(middle, end), 48 * kMiB);
}

TEST_F(HugePages, blocks_that_a_small_program_writes_have_them_soon) {
  fill(60 * kMiB, kMiB, 1);
  uintptr_t end = fill(48 * kMiB, kMiB);
  EXPECT_GE(huge_bytes(end - 40 * kMiB, end), 36 * kMiB);
}

// Each look is calls of the kernel under the lock. They are soon seen to be written all the same.
TEST_F(HugePages, blocks_that_are_not_touched_are_seldom_looked_at) {
  const uint64_t refused = rdmalloc::os::faults_fired();
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kResident, 1500);
  fill(4 * kGiB, kMiB, 1);
  EXPECT_EQ(rdmalloc::os::faults_fired(), refused);
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kResident, 0);
  uintptr_t end = fill(128 * kMiB, kMiB);
  EXPECT_GE(huge_bytes(end - 64 * kMiB, end), 60 * kMiB);
}

// A block that doesn't fit into the rest of a huge page begins there all the same.
TEST_F(HugePages, blocks_lie_back_to_back_across_them) {
  fill(56 * kMiB, 1'100'000);
  uintptr_t begin = address_of(rdmalloc_malloc(1'100'000));
  uintptr_t end = fill(50 * 1'100'000, 1'100'000);
  EXPECT_LE(end - begin, 52 * 18 * 64 * kKiB);
  EXPECT_GE(huge_bytes(begin, end), 32 * kMiB);
}

// Nor a block that is longer than the rest of the last one's, of what a purge has made clean.
TEST_F(HugePages, blocks_lie_back_to_back_where_a_purge_was) {
  constexpr size_t kBlocks = 10, kBytes = 9 * kMiB;
  uintptr_t begin = address_of(rdmalloc_aligned_alloc(kHugePage, kBlocks * kBytes));
  ASSERT_EQ(huge_bytes(begin, begin + kBlocks * kBytes), kBlocks * kBytes);
  rdmalloc_free(reinterpret_cast<void*>(begin));
  rdmalloc_purge(0);
  EXPECT_LE(fill(kBlocks * kBytes, kBytes, 1), begin + kBlocks * kBytes);
}

// Whole huge pages of a span go before its ends, which keep it no older than what was refused: it
// would be offered from its front again in the pass. Seen to fail where all that is offered has
// more behind it.
TEST_F(HugePages, what_was_refused_of_a_span_is_young_with_its_ends) {
  constexpr size_t kBytes = 9 * kMiB;
  uintptr_t begin = address_of(rdmalloc_aligned_alloc(kHugePage, kBytes));
  ASSERT_EQ(huge_bytes(begin, begin + kBytes), 8 * kMiB);
  rdmalloc_free(reinterpret_cast<void*>(begin));
  auto now = static_cast<int64_t>(rdmalloc::os::coarse_ms());
  constexpr uint32_t kMost = 4 * kMiB >> 16;
  rdmalloc::PurgeChoice choice = {false, now + 1000, now - 1000000, kMost};
  rdmalloc::PurgeOffered last;
  for (bool has_more : {true, false}) {
    uint32_t slices = 0;
    rdmalloc::SliceIndex slice = rdmalloc::page_heap_purge_begin(choice, &last, &slices);
    ASSERT_NE(slice, 0u);
    EXPECT_EQ(slices, kMost);
    EXPECT_EQ(last.has_more, has_more);
    rdmalloc::page_heap_purge_end(slice, false, static_cast<uint32_t>(now + 5000), last.has_more);
  }
  uint32_t slices = 0;
  rdmalloc::PurgeOffered other;
  EXPECT_EQ(rdmalloc::page_heap_purge_begin(choice, &other, &slices), 0u);
}

size_t resident_pages(uintptr_t begin, uintptr_t end) {
  std::vector<unsigned char> pages((end - begin) / (4 * kKiB));
  if (mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()) != 0) return SIZE_MAX;
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(),
                                           [](unsigned char page) { return (page & 1) != 0; }));
}

// It was in no list and no count: up to 2 MiB for good of a program that had freed all.
TEST_F(HugePages, what_the_last_one_has_behind_all_blocks_is_given_back_too) {
  constexpr size_t kBytes = 1'100'000;
  std::vector<void*> blocks;
  uintptr_t end = 0, chunk_end = 0;
  auto is_backed_behind = [&] {
    chunk_end = chunk_below(end) + kHugePage;
    return chunk_end - end >= kMiB && huge_bytes(end, chunk_end) == chunk_end - end &&
           resident_pages(end, chunk_end) == (chunk_end - end) / (4 * kKiB);
  };
  while (blocks.size() < 150 && (blocks.size() < 50 || !is_backed_behind())) {
    blocks.push_back(memset(rdmalloc_malloc(kBytes), 1, kBytes));
    uintptr_t block_end = address_of(blocks.back()) + rdmalloc_malloc_usable_size(blocks.back());
    end = std::max(end, (block_end + 64 * kKiB - 1) & ~(64 * kKiB - 1));
  }
  bool is_backed = is_backed_behind();
  const bool there_are = is_backed || rdmalloc_test::gives_huge_pages();
  for (void* block : blocks) rdmalloc_free(block);
  ASSERT_EQ(is_backed, there_are) << "blocks have none";
  if (!there_are) GTEST_SKIP() << "SKIP: this kernel gives no transparent huge pages";
  rdmalloc_purge(0);
  EXPECT_EQ(resident_pages(end, chunk_end), 0u);
  EXPECT_EQ(rdmalloc_test::counter("stats.dirty_bytes"), 0u);
  // What comes next lies there.
  void* next = rdmalloc_malloc(kBytes);
  EXPECT_LT(address_of(next), end);
  rdmalloc_free(next);
}

// So that it is to be woken for what comes. Until the first thread has a cache the purge thread
// looks each second whether it is the last.
void wait_until_it_idles() {
  using namespace rdmalloc::detail;
  rdmalloc_free(rdmalloc_malloc(64));
  rdmalloc::purge_wake();
  rdmalloc_test::wait_until([] { return purge_signal.sleep.load() == kIdle; });
}

// Takes blocks until the last one ends within a huge page. Where it ends.
uintptr_t end_within_a_huge_page() {
  uintptr_t end = 0;
  auto is_within = [&] {
    uintptr_t chunk_end = chunk_below(end) + kHugePage;
    return chunk_end - end >= kMiB && huge_bytes(end, chunk_end) == chunk_end - end;
  };
  for (int i = 0; i < 150 && (i < 50 || !is_within()); i++) {
    size_t bytes = 17 * 64 * kKiB;
    end = std::max(end, address_of(memset(rdmalloc_malloc(bytes), 1, bytes)) + bytes);
  }
  EXPECT_TRUE(is_within()) << "the test wants a rest";
  return end;
}

TEST_F(HugePages, what_lies_behind_all_blocks_is_given_back_after_a_month_too) {
  end_within_a_huge_page();
  ASSERT_EQ(rdmalloc_test::counter("stats.dirty_bytes"), 0u);
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  constexpr int64_t kDay = 24 * 3600 * 1000;
  rdmalloc::PurgeChoice choice = {};
  choice.whole_until_ms = choice.part_until_ms = now.tv_sec * 1000 + 30 * kDay;
  rdmalloc::page_heap_enter_rest(choice);
  EXPECT_GE(rdmalloc_test::counter("stats.dirty_bytes"), kMiB);
}

// The purge thread had nothing to do when the last block was taken.
TEST_F(HugePages, I7_what_lies_behind_all_blocks_goes_where_nothing_is_freed) {
  rdmalloc_test::set("purge.decay_ms", 100);
  uintptr_t end = end_within_a_huge_page();
  uintptr_t chunk_end = chunk_below(end) + kHugePage;
  rdmalloc_test::wait_until([&] { return resident_pages(end, chunk_end) == 0; });
}

// It lay behind all spans no more, where it was looked for, and was 26 MiB of a program with thirty
// such blocks. Seen to fail with the rest left clean.
TEST_F(HugePages, I7_what_an_aligned_block_passes_over_is_given_back) {
  uintptr_t end = end_within_a_huge_page();
  uintptr_t chunk_end = chunk_below(end) + kHugePage;
  uintptr_t block = address_of(rdmalloc_aligned_alloc(kHugePage, 1'100'000));
  EXPECT_GE(block, chunk_end);
  EXPECT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(resident_pages(end, chunk_end), 0u);
}

// The frontier moved so far that it would have fitted below. Seen to fail with that: the rest was
// clean, though backed, what came next had no huge pages, and 32 MiB stayed committed.
TEST_F(HugePages, I7_a_block_that_is_refused_leaves_the_arena_as_it_was) {
  if (rdmalloc::os::kAddressSanitizer || rdmalloc::os::kThreadSanitizer)
    GTEST_SKIP() << "SKIP: the kernel's limits are no limits for the memory of sanitizers";
  uintptr_t end = end_within_a_huge_page();
  uintptr_t chunk_end = chunk_below(end) + kHugePage;
  uint64_t mapped = rdmalloc_test::counter("stats.mapped_bytes");
  size_t data = rdmalloc_test::status_kib("VmData") * kKiB;
  rlimit limit = {data + 64 * kMiB, RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
  EXPECT_EQ(rdmalloc_malloc(mapped + 32 * kMiB), nullptr);
  limit.rlim_cur = RLIM_INFINITY;
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &limit), 0);
  EXPECT_EQ(rdmalloc_test::counter("stats.mapped_bytes"), mapped);
  EXPECT_LT(rdmalloc_test::status_kib("VmData") * kKiB, data + kMiB);
  EXPECT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(resident_pages(end, chunk_end), 0u);
  uintptr_t next = address_of(rdmalloc_malloc(64 * kMiB));
  EXPECT_GE(huge_bytes(next, next + 64 * kMiB), 62 * kMiB);
}

// It was taken with all that it may have to pass over: that was backed by huge pages, counted as
// free memory that is backed where it was none, and passed the ceiling, so that what was free was
// purged.
TEST_F(HugePages, a_block_at_a_far_multiple_has_its_own_pages_only) {
  for (size_t alignment : {4 * kMiB, 16 * kMiB, kGiB}) {
    rdmalloc_free(memset(rdmalloc_malloc(5 * kMiB), 1, 5 * kMiB));
    uint64_t dirty = rdmalloc_test::counter("stats.dirty_bytes");
    uintptr_t block = address_of(rdmalloc_aligned_alloc(alignment, 64 * kKiB));
    ASSERT_EQ(block % alignment, 0u);
    EXPECT_LE(rdmalloc_test::counter("stats.dirty_bytes"), dirty) << alignment;
    EXPECT_EQ(huge_bytes(block - 2 * kMiB, block + 4 * kMiB), 0u) << alignment;
  }
  // The last of its huge pages is not its own to the end.
  constexpr size_t kBytes = 8 * kMiB + 64 * kKiB;
  for (size_t alignment : {4 * kMiB, 16 * kMiB, kGiB}) {
    auto* long_block = static_cast<char*>(rdmalloc_aligned_alloc(alignment, kBytes));
    memset(long_block, 1, kBytes);
    rdmalloc_free(long_block);
    EXPECT_GE(rdmalloc_purge(0), 0);
    EXPECT_EQ(resident_pages(address_of(long_block), address_of(long_block) + 10 * kMiB), 0u)
        << alignment;
  }
}

// They had none for good: those were asked for under new addresses, which these are no more.
TEST_F(HugePages, blocks_where_an_aligned_one_passed_by_have_them) {
  uintptr_t here = address_of(rdmalloc_malloc(kMiB));
  size_t left = kGiB - here % kGiB;
  if (left < 128 * kMiB) rdmalloc_malloc(left);
  uintptr_t far = address_of(rdmalloc_aligned_alloc(kGiB, 64 * kKiB));
  uintptr_t small = address_of(rdmalloc_malloc(3 * kMiB));
  auto* block = static_cast<char*>(rdmalloc_malloc(16 * kMiB));
  uintptr_t begin = address_of(block), end = begin + 16 * kMiB;
  ASSERT_TRUE(small < begin && begin < far) << "the test wants blocks there";
  EXPECT_GE(huge_bytes(begin, end), 16 * kMiB - kHugePage);
  EXPECT_EQ(huge_bytes(small, begin), 0u);
  EXPECT_EQ(huge_bytes(end, far), 0u) << "not under what follows";
  ASSERT_EQ(rdmalloc_realloc(block, 24 * kMiB), block) << "the test wants it to grow there";
  EXPECT_GE(huge_bytes(end, end + 8 * kMiB), 8 * kMiB - kHugePage);
  // Not under what was used and given back, as elsewhere.
  void* plain = rdmalloc_aligned_alloc(kHugePage, 6 * kMiB);
  memset(plain, 1, 6 * kMiB);
  rdmalloc_free(plain);
  rdmalloc_purge(0);
  void* later = rdmalloc_aligned_alloc(kHugePage, 16 * kMiB);
  ASSERT_EQ(later, plain) << "the test wants the same place";
  EXPECT_EQ(huge_bytes(address_of(later), address_of(later) + 16 * kMiB), 10 * kMiB);
}

// Seen to hang where only new long blocks tell of it.
TEST_F(HugePages, I7_what_lies_behind_all_slabs_goes_where_nothing_is_freed) {
  rdmalloc_test::set("purge.decay_ms", 100);
  wait_until_it_idles();
  uintptr_t end = fill(kDense), chunk_end = 0;
  for (int i = 0; i < 300; i++) {
    end = std::max(end, fill(64 * kKiB));
    chunk_end = chunk_below(end) + kHugePage;
    if (chunk_end - end >= kMiB && huge_bytes(chunk_end - kMiB, chunk_end) == kMiB) break;
  }
  ASSERT_EQ(huge_bytes(chunk_end - kMiB, chunk_end), kMiB) << "the test wants a rest";
  rdmalloc_test::wait_until([&] { return resident_pages(chunk_end - kMiB, chunk_end) == 0; });
}

// The rest of a huge page in the middle, which was given back with all of it before: of a new
// block, and of one that grows where it lies. Seen to hang, each, where what lies behind all spans
// alone wakes the purge thread.
TEST_F(HugePages, I7_the_rest_of_a_clean_huge_page_goes_where_nothing_is_freed) {
  rdmalloc_test::set("purge.decay_ms", 100);
  void* clean = rdmalloc_aligned_alloc(kHugePage, 64 * kMiB);
  ASSERT_EQ(huge_bytes(address_of(clean), address_of(clean) + 64 * kMiB), 64 * kMiB);
  rdmalloc_free(clean);
  ASSERT_GE(rdmalloc_purge(0), 0);
  auto expect_rest_to_go = [](auto take) {
    wait_until_it_idles();
    uint64_t before = rdmalloc_test::counter("stats.purged_bytes");
    take();
    rdmalloc_test::wait_until(
        [&] { return rdmalloc_test::counter("stats.purged_bytes") >= before + kMiB; });
  };
  void *block = nullptr, *grown = nullptr;
  expect_rest_to_go([&] { block = rdmalloc_aligned_alloc(kHugePage, 9 * kMiB); });
  EXPECT_EQ(block, clean);
  expect_rest_to_go([&] { grown = rdmalloc_realloc(block, 17 * kMiB); });
  EXPECT_EQ(grown, block);
  rdmalloc_free(grown);
}

// A filter may refuse to tell; so may a kernel.
TEST_F(HugePages, only_long_blocks_have_them_where_nothing_can_be_seen) {
  if (!rdmalloc_test::filter_calls(std::vector<long>{SYS_mincore}, SECCOMP_RET_ERRNO | EPERM,
                                   SECCOMP_RET_ALLOW))
    GTEST_SKIP() << "SKIP: this kernel sets no filter";
  uintptr_t begin = address_of(rdmalloc_malloc(64));
  uintptr_t end = fill(64 * kMiB, kMiB);
  EXPECT_EQ(huge_bytes(chunk_below(begin), end), 0u);
  EXPECT_GE(huge_bytes(end, address_of(rdmalloc_malloc(16 * kMiB)) + 16 * kMiB), 14 * kMiB);
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
  in_another_shard([&] { end = fill(100 * kMiB); });
  EXPECT_GE(huge_bytes(end - 64 * kMiB, end), 40 * kMiB);
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
  uintptr_t end = fill(60 * kMiB);
  EXPECT_EQ(huge_bytes(std::min(large, end - 60 * kMiB), std::max(large + 80 * kMiB, end)), 0u);
}

}  // namespace
