// SPDX-License-Identifier: BSD-3-Clause
//
// I4: the allocator keeps nothing in memory that a device may reach. The bytes of a free block are
// neither read nor written; malloc itself writes none; garbage written into every free block, as a
// late transfer or a peer with a whole registration can, corrupts nothing. RDMALLOC_PURGE=off, so
// that the kernel does not change the bytes.
//
// Seen to fail: over libc's malloc, whose free() links blocks through their first words, and over a
// free() that fills what it is given.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <string.h>

#include <thread>
#include <vector>

#include "tests/support/process.h"
#include "tests/support/words.h"

namespace {

using rdmalloc_test::Random;
using rdmalloc_test::test_seed;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

struct Region {
  unsigned char* start;
  size_t bytes;
};

// By address.
auto pattern(const Region& region) {
  return [start = reinterpret_cast<uintptr_t>(region.start)](size_t at) {
    return rdmalloc_test::mixed_word(start + at, 0);
  };
}
void fill(const Region& region) {
  rdmalloc_test::fill_words(region.start, 0, region.bytes, pattern(region));
}
// Address of the first byte that is not as filled, or nullptr.
unsigned char* first_change(const std::vector<Region>& regions) {
  for (const Region& region : regions) {
    size_t at = rdmalloc_test::first_unlike(region.start, region.bytes, pattern(region));
    if (at != region.bytes) return region.start + at;
  }
  return nullptr;
}

// Blocks of every class and some large ones, all of their bytes filled, then all freed.
std::vector<Region> filled_and_freed() {
  std::vector<Region> regions;
  for (size_t bytes = 1; bytes <= 8 * kMiB; bytes = bytes * 9 / 8 + 1) {
    size_t count = bytes < 4 * kKiB ? 200 : bytes < 64 * kKiB ? 10 : 1;
    for (size_t i = 0; i < count; i++) {
      auto* block = static_cast<unsigned char*>(rdmalloc_malloc(bytes));
      if (block == nullptr) continue;
      regions.push_back({block, rdmalloc_malloc_usable_size(block)});
      fill(regions.back());
    }
  }
  for (const Region& region : regions) rdmalloc_free(region.start);
  return regions;
}

// The whole family but what may write (calloc, realloc that moves), blocks never touched.
void operate(uint64_t seed, int steps) {
  Random random(seed);
  void* blocks[500] = {};
  for (int step = 0; step < steps; step++) {
    void*& block = blocks[random.below(500)];
    if (block != nullptr) {
      rdmalloc_free(block);
      block = nullptr;
    } else if (random.below(4) == 0) {
      block = rdmalloc_memalign(size_t{16} << random.below(10), random.size_between(1, 200 * kKiB));
    } else {
      block = rdmalloc_malloc(random.size_between(1, random.below(20) == 0 ? 4 * kMiB : 8 * kKiB));
    }
  }
  for (void* block : blocks) rdmalloc_free(block);
}

TEST(FreeBlocks, I4_no_byte_changes_from_free_to_the_programs_next_write) {
  uint64_t seed = test_seed(1);
  SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
  std::vector<Region> regions = filled_and_freed();
  ASSERT_EQ(first_change(regions), nullptr) << "changed by free itself";
  // Not even blocks that are handed out again change: malloc writes nothing, and neither do we.
  operate(seed, 200000);
  EXPECT_EQ(first_change(regions), nullptr) << "changed by malloc and free of other blocks";
}

TEST(FreeBlocks, I4_no_byte_changes_when_other_threads_work_and_end) {
  std::vector<Region> regions = filled_and_freed();
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 8; i++) threads.emplace_back([i] { operate(i + 10, 30000); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first_change(regions), nullptr);
}

TEST(FreeBlocks, I4_calloc_and_realloc_write_only_the_block_they_return) {
  std::vector<Region> regions = filled_and_freed();
  Random random(test_seed(2));
  std::vector<Region> given;
  for (int i = 0; i < 2000; i++) {
    size_t bytes = random.size_between(1, i % 20 == 0 ? 2 * kMiB : 8 * kKiB);
    auto* block = static_cast<unsigned char*>(rdmalloc_calloc(1, bytes));
    ASSERT_NE(block, nullptr);
    if (i % 3 == 0) {
      bytes = bytes * 2 + 100;
      block = static_cast<unsigned char*>(rdmalloc_realloc(block, bytes));
      ASSERT_NE(block, nullptr);
    }
    given.push_back({block, rdmalloc_malloc_usable_size(block)});
  }
  // What was given may hold zeroes now; restore it, and no other byte may differ. A block that a
  // realloc gave up was written by its calloc: zeroes are right there, nothing else is.
  for (const Region& region : given) fill(region);
  size_t wrong = 0;
  for (const Region& region : regions) {
    if (first_change({region}) == nullptr) continue;
    for (size_t i = 0; i < region.bytes; i++)
      wrong += region.start[i] != 0 &&
               region.start[i] != rdmalloc_test::byte_of_word(pattern(region)(i & ~size_t{7}), i);
  }
  EXPECT_EQ(wrong, 0u);
  for (const Region& region : given) rdmalloc_free(region.start);
}

TEST(FreeBlocks, I4_garbage_in_every_free_block_corrupts_nothing) {
  uint64_t seed = test_seed(3);
  SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
  Random random(seed);
#if defined(__SANITIZE_THREAD__)
  constexpr int kRounds = 2;  // of one thread, and ten times as long
#else
  constexpr int kRounds = 5;
#endif
  for (int round = 0; round < kRounds; round++) {
    std::vector<Region> regions = filled_and_freed();
    for (const Region& region : regions)
      for (size_t i = 0; i + 8 <= region.bytes; i += 8) {
        uint64_t garbage = round == 0 ? ~uint64_t{0} : random.next();
        *reinterpret_cast<rdmalloc_test::Word*>(region.start + i) = garbage;
      }
    // Then everything works: no block twice, and blocks keep their bytes.
    std::vector<Region> live;
    for (int i = 0; i < 20000; i++) {
      size_t bytes = random.size_between(1, i % 100 == 0 ? kMiB : 4 * kKiB);
      auto* block = static_cast<unsigned char*>(rdmalloc_malloc(bytes));
      ASSERT_NE(block, nullptr);
      live.push_back({block, bytes});
      fill(live.back());
    }
    ASSERT_EQ(first_change(live), nullptr) << "two live blocks share bytes";
    for (const Region& region : live) rdmalloc_free(region.start);
  }
}

TEST(FreeBlocks, I4_garbage_written_beside_running_threads_corrupts_nothing) {
  // A device that goes on writing into buffers long freed, while the program works on.
  std::vector<Region> regions;
  for (int i = 0; i < 2000; i++) {
    size_t bytes = 64 + static_cast<size_t>(i % 50) * 40;
    auto* block = static_cast<unsigned char*>(rdmalloc_malloc(bytes));
    regions.push_back({block, rdmalloc_malloc_usable_size(block)});
  }
  for (const Region& region : regions) rdmalloc_free(region.start);
  std::atomic<bool> stop{false};
  std::thread device([&] {
    for (uint64_t garbage = 1; !stop.load(); garbage = garbage * 31 + 7)
      for (const Region& region : regions)
        for (size_t i = 0; i < region.bytes; i += 16)
          __atomic_store_n(reinterpret_cast<uint64_t*>(region.start + i), garbage,
                           __ATOMIC_RELAXED);
  });
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; i++) threads.emplace_back([i] { operate(i + 30, 100000); });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  device.join();
}

TEST(FreeBlocks, I4_no_metadata_lies_between_blocks) {
  // Every byte of the spans in use, but for the live blocks themselves, may be overwritten: what a
  // registration of a whole span or chunk shows to a peer.
  std::vector<Region> live;
  Random random(test_seed(5));
  for (int i = 0; i < 3000; i++) {
    size_t bytes = random.size_between(1, i % 50 == 0 ? 300 * kKiB : 4 * kKiB);
    auto* block = static_cast<unsigned char*>(rdmalloc_malloc(bytes));
    live.push_back({block, rdmalloc_malloc_usable_size(block)});
  }
  for (size_t i = 0; i < live.size(); i += 3) {
    rdmalloc_free(live[i].start);
    live[i].start = nullptr;
  }
  std::erase_if(live, [](const Region& region) { return region.start == nullptr; });
  auto overwrite = [](const rdmalloc_range* range, void*) {
    memset(range->base, 0xFF, range->length);
    return 0;
  };
  ASSERT_EQ(rdmalloc_range_foreach(overwrite, nullptr), 0);
  for (const Region& region : live) {
    EXPECT_EQ(rdmalloc_malloc_usable_size(region.start), region.bytes);
    fill(region);
  }
  EXPECT_EQ(first_change(live), nullptr);
  operate(7, 50000);
  EXPECT_EQ(first_change(live), nullptr);
  for (const Region& region : live) rdmalloc_free(region.start);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=off"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
