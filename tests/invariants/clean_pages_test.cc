// SPDX-License-Identifier: BSD-3-Clause
//
// I7: a page that is backed is of a block or counted as dirty. The kernel is asked (mincore(2)) for
// the pages of clean spans and of what lies behind all spans: none may be there, but for the rest
// of the huge page that the arena ends within, which a purge of all gives back.
//
// RDMALLOC_PURGE=manual, so that nothing is given back between a step and the look.
//
// Seen to fail: …_begins_in_the_last_clean_span_… and a_block_that_grows_… with extend_frontier()
// for extend_last_clean(), …_before_the_rest_… and …_before_a_passed_rest_… with rests that begin
// at the frontier, a_buffer_… without the take_rest_and_clean() before new pages are taken,
// what_went_… and the random history without huge_split().
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
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
using rdmalloc_test::Random;

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

// Calls found(what, begin, end, pages) for what is backed and neither in use nor counted.
template <class Found>
void for_all_unheld(Found found) {
  SliceIndex frontier = rdmalloc::page_heap_frontier();
  SliceIndex chunk = frontier & ~(kSlicesPerChunk - 1), chunk_end = chunk + kSlicesPerChunk;
  bool has_rest = frontier != chunk && rdmalloc::huge_is_chunk(chunk);
  auto look = [&](const char* what, SliceIndex begin, SliceIndex end) {
    if (size_t pages = resident_pages(begin, end)) found(what, begin, end, pages);
  };
  for (SliceIndex s = 1; s < frontier; s = rdmalloc::page_heap_next(s, frontier)) {
    SpanWord word = arena.span(s).load();
    if (word.kind != SpanKind::kFreeClean) continue;
    SliceIndex end = s + word.slices;
    look("clean", s, has_rest && end == frontier ? std::max(s, chunk) : end);
  }
  look("behind all", has_rest ? chunk_end : frontier, arena.committed);
}

// That as text; empty: nothing.
std::string what_is_unheld() {
  std::string all;
  for_all_unheld([&](const char* what, SliceIndex begin, SliceIndex end, size_t pages) {
    all += std::string(what) + " [" + std::to_string(begin) + ", " + std::to_string(end) +
           "): " + std::to_string(pages) + " pages\n";
  });
  return all;
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
  // A block in a clean span that was not written before, and what is left of both at the frontier.
  void begin_last_clean() {
    end_within(4, kStep);
    free_last();
    purge_all_but_rest();
    char* block = taken(kStep - 2);
    ASSERT_EQ(end_of(block, kStep - 2), frontier_ - 2) << "the test wants it in the clean span";
  }
  static std::string left_after_purge() {
    rdmalloc_purge(0);
    return what_is_unheld();
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
  begin_last_clean();
  EXPECT_EQ(left_after_purge(), "");
}
TEST_F(Ends, I7_what_is_clean_before_a_passed_rest_goes_with_it) {
  begin_last_clean();
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

TEST_F(Ends, I7_what_went_stays_away_as_its_neighbour_is_written) {
  for (size_t slices : {9 * 16 + 1, 9 * 16 + 31}) {
    void* all = rdmalloc_aligned_alloc(2 * kMiB, 32 * kMiB);
    rdmalloc_free(memset(all, 1, 32 * kMiB));
    rdmalloc_purge(0);
    auto* block = static_cast<char*>(rdmalloc_aligned_alloc(2 * kMiB, slices * kSlice));
    ASSERT_EQ(block, all) << "the test wants it there";
    rdmalloc_purge(0);
    memset(block, 1, slices * kSlice);
    EXPECT_EQ(what_is_unheld(), "") << slices;
    rdmalloc_free(block);
    rdmalloc_purge(0);
  }
}

struct Block {
  char* bytes;
  size_t length;
};

class History {
 public:
  History(uint64_t seed, size_t most_bytes) : random_(seed), most_bytes_(most_bytes) {}
  ~History() {
    for (const Block& block : blocks_) rdmalloc_free(block.bytes);
  }

  // What it did, for the message.
  std::string step() {
    size_t what = random_.below(100);
    if (what < 34) return take();
    if (what < 44) return aligned();
    if (what < 54) return resize();
    if (what < 64) return touch();
    if (what < 86) return free_one();
    if (what < 89) return free_all();
    return purge();
  }

 private:
  size_t some_bytes() {
    switch (random_.below(4)) {
      case 0:
        return random_.size_between(16 * kKiB, kMiB);
      case 1:
        return kMiB + random_.below(7 * 16) * kSlice;
      default:
        return 8 * kMiB + random_.below(10 * 16) * kSlice;
    }
  }
  void write(const Block& block) {
    if (block.bytes == nullptr) return;
    // All of it, its first or last page, or nothing yet.
    switch (random_.below(5)) {
      case 0:
        block.bytes[0] = 1;
        break;
      case 1:
        block.bytes[block.length - 1] = 1;
        break;
      case 2:
        break;
      default:
        memset(block.bytes, 1, block.length);
    }
  }
  std::string keep(const char* how, char* bytes, size_t length) {
    if (bytes == nullptr) return std::string(how) + " refused";
    blocks_.push_back({bytes, length});
    live_bytes_ += length;
    write(blocks_.back());
    return std::string(how) + " " + std::to_string(length) + " at slice " +
           std::to_string(arena.slice_of(reinterpret_cast<uintptr_t>(bytes)));
  }
  std::string take() {
    size_t length = some_bytes();
    if (live_bytes_ + length > most_bytes_) return free_one();
    bool zeroes = random_.below(4) == 0;
    void* block = zeroes ? rdmalloc_calloc(1, length) : rdmalloc_malloc(length);
    return keep(zeroes ? "calloc" : "malloc", static_cast<char*>(block), length);
  }
  std::string aligned() {
    size_t length = some_bytes(), alignment = kSlice << random_.below(9);
    if (live_bytes_ + length > most_bytes_) return free_one();
    std::string how = "aligned_alloc of " + std::to_string(alignment / kKiB) + " KiB";
    return keep(how.c_str(), static_cast<char*>(rdmalloc_aligned_alloc(alignment, length)), length);
  }
  std::string resize() {
    if (blocks_.empty()) return "";
    Block& block = blocks_[random_.below(blocks_.size())];
    size_t length = random_.below(2) == 0 ? some_bytes() : block.length + random_.below(4 * kMiB);
    if (live_bytes_ + length > most_bytes_) return "";
    auto* bytes = static_cast<char*>(rdmalloc_realloc(block.bytes, length));
    if (bytes == nullptr) return "realloc refused";
    std::string done = "realloc " + std::to_string(block.length) + " to " + std::to_string(length);
    live_bytes_ += length - block.length;
    block = {bytes, length};
    write(block);
    return done;
  }
  std::string touch() {
    if (blocks_.empty()) return "";
    const Block& block = blocks_[random_.below(blocks_.size())];
    write(block);
    return "write to " + std::to_string(block.length) + " at slice " +
           std::to_string(arena.slice_of(reinterpret_cast<uintptr_t>(block.bytes)));
  }
  std::string free_one() {
    if (blocks_.empty()) return "";
    std::swap(blocks_[random_.below(blocks_.size())], blocks_.back());
    Block block = blocks_.back();
    blocks_.pop_back();
    live_bytes_ -= block.length;
    rdmalloc_free(block.bytes);
    return "free " + std::to_string(block.length) + " at slice " +
           std::to_string(arena.slice_of(reinterpret_cast<uintptr_t>(block.bytes)));
  }
  std::string free_all() {
    while (!blocks_.empty()) free_one();
    return "free all";
  }
  std::string purge() {
    constexpr size_t kFew = 4;
    size_t keep = 0;
    switch (random_.below(kFew)) {
      case 0:
        break;
      case 1:
        keep = 1;
        break;
      default:
        keep = random_.below(rdmalloc_test::counter("stats.dirty_bytes") + 1);
    }
    rdmalloc_purge(keep);
    if (keep == 0 && rdmalloc_test::counter("stats.dirty_bytes") != 0) return "purge(0) in part";
    return "purge(" + std::to_string(keep) + ")";
  }

  Random random_;
  size_t most_bytes_, live_bytes_ = 0;
  std::vector<Block> blocks_;
};

// How many huge pages the kernel's own thread (khugepaged) has allocated, each before it puts it in
// the place of pages of which a part was there.
uint64_t collapses() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  for (uint64_t count = 0; file >> name >> count;)
    if (name == "thp_collapse_alloc") return count;
  return 0;
}

// `excused`: of those, as many as any finding was put down to.
void play(uint64_t seed, uint64_t& excused) {
  constexpr int kSteps = 250;
  constexpr size_t kMostBytes = 200 * kMiB, kTold = 40;
  History history(seed, kMostBytes);
  std::vector<std::string> did;
  for (int step = 0; step < kSteps; step++) {
    did.push_back(history.step());
    ASSERT_TRUE(rdmalloc::page_heap_is_valid());
    std::string found = what_is_unheld();
    if (found.empty()) continue;
    if (uint64_t begun = collapses(); begun > excused) {
      excused = std::max(excused + 1, begun - 1);  // the last may be under way still
      for_all_unheld([](const char*, SliceIndex begin, SliceIndex end, size_t) {
        madvise(reinterpret_cast<void*>(arena.address_of(begin)), size_t{end - begin} * kSlice,
                MADV_DONTNEED);
      });
      continue;
    }
    for (size_t i = did.size() > kTold ? did.size() - kTold : 0; i < did.size(); i++)
      found += did[i] + "\n";
    FAIL() << "TEST_SEED=" << seed << ", step " << step << ": " << found;
  }
}

TEST(CleanPages, I7_none_is_backed_after_any_history) {
  if (sysconf(_SC_PAGESIZE) != kPage) GTEST_SKIP() << "SKIP: pages are not of 4 KiB";
  uint64_t excused = collapses();  // before there is memory to fill
  ASSERT_EQ(rdmalloc_init(), 0);
  uint64_t seed = rdmalloc_test::test_seed(1);
  for (uint64_t i = 0; i < 4 && !HasFailure(); i++) play(seed + i, excused);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
