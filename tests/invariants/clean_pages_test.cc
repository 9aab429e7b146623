// SPDX-License-Identifier: BSD-3-Clause
//
// I7: a page that is backed is of a block or counted as dirty. The kernel is asked (mincore(2)) for
// the pages of clean spans and of what lies behind all spans: none may be there, but for the rest
// of the huge page that the arena ends within, which a purge of all gives back.
//
// RDMALLOC_PURGE=manual, so that nothing is given back between a step and the look.
//
// Seen to fail: …_begins_in_the_last_clean_span_… and a_block_that_grows_… with extend_frontier()
// for extend_last_clean(), …_before_the_rest_… and …_passed_over_… with rests that begin at the
// frontier, a_buffer_… without the take_rest_and_clean() before new pages are taken.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "alloc/pages/arena.h"
#include "alloc/pages/huge_pages.h"
#include "alloc/pages/page_heap.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using rdmalloc::arena;
using rdmalloc::kSlicesPerChunk;
using rdmalloc::SliceIndex;
using rdmalloc::SpanKind;
using rdmalloc::SpanWord;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kPage = 4 * kKiB, kSlice = 64 * kKiB;

size_t resident_pages(SliceIndex begin, SliceIndex end) {
  if (begin >= end) return 0;
  size_t bytes = size_t{end - begin} * kSlice;
  std::vector<unsigned char> pages(bytes / kPage);
  auto* base = reinterpret_cast<void*>(arena.address_of(begin));
  if (mincore(base, bytes, pages.data()) != 0) return SIZE_MAX;
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(),
                                           [](unsigned char page) { return (page & 1) != 0; }));
}

std::string at(const char* what, SliceIndex begin, SliceIndex end, size_t pages) {
  return std::string(what) + " [" + std::to_string(begin) + ", " + std::to_string(end) +
         "): " + std::to_string(pages) + " pages";
}

// What is backed and neither in use nor counted; empty: nothing.
std::string what_nobody_holds() {
  SliceIndex frontier = rdmalloc::page_heap_frontier();
  SliceIndex chunk = frontier & ~(kSlicesPerChunk - 1), chunk_end = chunk + kSlicesPerChunk;
  bool has_rest = frontier != chunk && rdmalloc::huge_is_chunk(chunk);
  for (SliceIndex s = 1; s < frontier; s = rdmalloc::page_heap_next(s, frontier)) {
    SpanWord word = arena.span(s).load();
    if (word.kind != SpanKind::kFreeClean) continue;
    SliceIndex end = s + word.slices;
    SliceIndex look_end = has_rest && end == frontier ? std::max(s, chunk) : end;
    if (size_t pages = resident_pages(s, look_end)) return at("clean", s, look_end, pages);
  }
  SliceIndex begin = has_rest ? chunk_end : frontier;
  if (size_t pages = resident_pages(begin, arena.committed))
    return at("behind all", begin, arena.committed, pages);
  return "";
}

constexpr size_t kStep = 17;  // slices: of blocks whose ends are anywhere in a huge page in turn

// The arena ends within a huge page.
class Ends : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sysconf(_SC_PAGESIZE) != kPage) GTEST_SKIP() << "SKIP: pages are not of 4 KiB";
    ASSERT_EQ(rdmalloc_init(), 0);
  }
  // Takes blocks until the frontier lies so many slices behind the begin of a chunk that has huge
  // pages. The last block is not written.
  void end_within(SliceIndex least, SliceIndex most) {
    for (int i = 0; i < 400; i++) {
      blocks_.push_back(static_cast<char*>(rdmalloc_malloc(kStep * kSlice)));
      frontier_ = rdmalloc::page_heap_frontier();
      chunk_ = frontier_ & ~(kSlicesPerChunk - 1);
      bool is_last = end_of(blocks_.back(), kStep) == frontier_;
      bool is_huge = rdmalloc::huge_is_chunk(chunk_);
      if (i >= 50 && is_last && is_huge && frontier_ >= chunk_ + least &&
          frontier_ <= chunk_ + most)
        return;
      memset(blocks_.back(), 1, kStep * kSlice);
    }
    FAIL() << "the test wants huge pages there";
  }
  static SliceIndex slice_of(const char* block) {
    return arena.slice_of(reinterpret_cast<uintptr_t>(block));
  }
  static SliceIndex end_of(const char* block, size_t slices) {
    return slice_of(block) + static_cast<SliceIndex>(slices);
  }
  void write_last() { memset(blocks_.back(), 1, kStep * kSlice); }
  void free_last() {
    rdmalloc_free(blocks_.back());
    blocks_.pop_back();
  }
  // What is free goes back, and the rest of the huge page at the frontier stays.
  static void purge_all_but_rest() {
    rdmalloc_purge(1);
    ASSERT_EQ(rdmalloc_test::counter("stats.dirty_bytes"), 0u);
  }
  static char* taken(size_t slices) {
    return static_cast<char*>(memset(rdmalloc_malloc(slices * kSlice), 1, slices * kSlice));
  }
  static std::string left_after_purge() {
    rdmalloc_purge(0);
    return what_nobody_holds();
  }

  std::vector<char*> blocks_;
  SliceIndex frontier_ = 0, chunk_ = 0;
};

TEST_F(Ends, I7_a_block_begins_in_the_last_clean_span_and_ends_there) {
  end_within(18, 30);
  write_last();
  free_last();
  purge_all_but_rest();
  char* block = taken(kStep + 1);
  EXPECT_EQ(end_of(block, kStep + 1), frontier_ + 1) << "the test wants it in the clean span";
  EXPECT_EQ(rdmalloc::page_heap_frontier(), frontier_ + 1);
  EXPECT_EQ(left_after_purge(), "");
}

// The same of one that grows, which takes a sixth more.
TEST_F(Ends, I7_a_block_that_grows_begins_in_the_last_clean_span_too) {
  void* small = rdmalloc_malloc(2 * kSlice);
  end_within(18, 30);
  write_last();
  free_last();
  purge_all_but_rest();
  size_t asked = (kStep - 1) * kSlice;
  auto* block = static_cast<char*>(rdmalloc_realloc(small, asked));
  ASSERT_EQ(rdmalloc_malloc_usable_size(block), (kStep + 1) * kSlice) << "the test wants this";
  memset(block, 1, asked);
  EXPECT_EQ(end_of(block, kStep + 1), frontier_ + 1) << "the test wants it in the clean span";
  EXPECT_EQ(rdmalloc::page_heap_frontier(), frontier_ + 1);
  EXPECT_EQ(left_after_purge(), "");
}

// The last block was not written, so the next one's first touch backs all of the huge page.
TEST_F(Ends, I7_what_is_clean_before_the_rest_goes_with_it) {
  end_within(4, kStep);
  free_last();
  purge_all_but_rest();
  char* block = taken(kStep - 2);
  ASSERT_EQ(end_of(block, kStep - 2), frontier_ - 2) << "the test wants it in the clean span";
  EXPECT_EQ(left_after_purge(), "");
}
TEST_F(Ends, I7_what_is_clean_before_a_rest_that_is_passed_over_goes_with_it) {
  end_within(4, kStep);
  free_last();
  purge_all_but_rest();
  char* block = taken(kStep - 2);
  ASSERT_EQ(end_of(block, kStep - 2), frontier_ - 2) << "the test wants it in the clean span";
  rdmalloc_aligned_alloc(2 * kMiB, 40 * kSlice);
  EXPECT_EQ(left_after_purge(), "");
}

// A buffer begins in the dirty rest of the huge page before the last clean span, which is longer
// than what it needs of that, and shorter than all of the buffer.
TEST_F(Ends, I7_a_buffer_that_begins_in_a_rest_takes_what_it_lacks_only) {
  constexpr SliceIndex kRest = 16;
  end_within(1, 8);
  write_last();
  for (int i = 0; i < 6; i++) free_last();
  purge_all_but_rest();
  SliceIndex clean = end_of(blocks_.back(), kStep), begin = chunk_ - kSlicesPerChunk;
  ASSERT_LE(clean, begin - kSlicesPerChunk);
  char* before = taken(begin - kRest - clean);
  ASSERT_EQ(slice_of(before), clean) << "the test wants it there";
  SliceIndex slices = frontier_ - begin + 1;
  char* block = taken(slices);
  ASSERT_EQ(slice_of(block), begin - kRest) << "the test wants it in the rest";
  EXPECT_EQ(rdmalloc::page_heap_frontier(), frontier_);
  EXPECT_EQ(left_after_purge(), "");
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
