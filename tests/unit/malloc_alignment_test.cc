// SPDX-License-Identifier: BSD-3-Clause
//
// Alignment: what every block has, what can be asked for, and wrong questions.
#include <errno.h>
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <cstddef>
#include <vector>

#include "tests/support/alloc_under_test.h"

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

void expect_good(void* block, size_t alignment, size_t bytes) {
  ASSERT_NE(block, nullptr) << "alignment " << alignment << ", " << bytes << " bytes";
  EXPECT_TRUE(aut::is_aligned(block, alignment)) << block << " alignment " << alignment;
  EXPECT_GE(aut::usable_size(block), bytes);
  if (bytes == 0) return;
  auto* first = static_cast<unsigned char*>(block);
  first[0] = 0xA1;
  first[bytes - 1] = 0xA2;
  EXPECT_EQ(first[bytes - 1], 0xA2);
}

TEST(MallocAlignment, powers_of_two_up_to_one_gib_with_sizes_around_them) {
  for (size_t alignment = 1; alignment <= kGiB; alignment *= 2) {
    for (size_t bytes : {size_t{0}, size_t{1}, alignment - 1, alignment, alignment + 1, size_t{100},
                         size_t{5000}, 70 * kKiB, 3 * kMiB}) {
      void* block = aut::memalign(alignment, bytes);
      expect_good(block, alignment, bytes);
      aut::free(block);
      if (alignment >= sizeof(void*)) {
        void* out = nullptr;
        ASSERT_EQ(aut::posix_memalign(&out, alignment, bytes), 0) << alignment << " " << bytes;
        expect_good(out, alignment, bytes);
        aut::free(out);
      }
    }
  }
}

TEST(MallocAlignment, many_aligned_blocks_live_together) {
  std::vector<unsigned char*> blocks;
  std::vector<size_t> sizes;
  for (int round = 0; round < 20; round++) {
    for (size_t alignment = 8; alignment <= 64 * kKiB; alignment *= 2) {
      size_t bytes = alignment / 2 + static_cast<size_t>(round) * 37 + 1;
      auto* block = static_cast<unsigned char*>(aut::memalign(alignment, bytes));
      expect_good(block, alignment, bytes);
      memset(block, static_cast<int>(blocks.size() % 255), bytes);
      blocks.push_back(block);
      sizes.push_back(bytes);
    }
  }
  for (size_t i = 0; i < blocks.size(); i++) {
    for (size_t at = 0; at < sizes[i]; at++)
      ASSERT_EQ(blocks[i][at], i % 255) << "block " << i << " byte " << at;
    aut::free(blocks[i]);
  }
}

TEST(MallocAlignment, plain_malloc_aligns_for_every_type_powers_of_two_naturally) {
  for (size_t bytes = 0; bytes <= 4096; bytes++) {
    void* block = aut::malloc(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_TRUE(aut::is_aligned(block, alignof(max_align_t))) << bytes;
    aut::free(block);
  }
}

#if RDMALLOC_TEST_PREFIXED
// A promise of ours (DESIGN 5), not of malloc.
TEST(MallocAlignment, a_power_of_two_up_to_a_page_is_aligned_to_itself) {
  std::vector<void*> blocks;
  for (int round = 0; round < 50; round++) {
    for (size_t bytes = 16; bytes <= 4096; bytes *= 2) {
      void* block = aut::malloc(bytes);
      ASSERT_NE(block, nullptr);
      EXPECT_TRUE(aut::is_aligned(block, bytes)) << bytes << " at " << block;
      blocks.push_back(block);
    }
  }
  for (void* block : blocks) aut::free(block);
}
#endif

TEST(MallocAlignment, posix_memalign_refuses_what_is_no_alignment) {
  for (size_t alignment : {size_t{0}, size_t{1}, size_t{2}, size_t{4}, size_t{3}, size_t{12},
                           size_t{24}, size_t{100}, size_t{4097}, SIZE_MAX, SIZE_MAX / 2}) {
    void* out = &out;
    errno = 4711;
    EXPECT_EQ(aut::posix_memalign(&out, aut::opaque(alignment), 100), EINVAL) << alignment;
    EXPECT_EQ(out, &out) << "the result was written although the call failed";
    EXPECT_EQ(errno, 4711);
  }
}

// glibc's answers. Seen to fail with EINVAL from 2^62 on.
TEST(MallocAlignment, alignments_beyond_all_memory_are_an_error_and_not_a_crash) {
  for (size_t alignment : {SIZE_MAX / 2 + 1, size_t{1} << 62u, size_t{1} << 50u}) {
    void* out = &out;
    errno = 0;
    int error = aut::posix_memalign(&out, aut::opaque(alignment), 100);
    EXPECT_EQ(error, ENOMEM);
    EXPECT_EQ(errno, ENOMEM) << "tst-malloc-thread-fail of glibc looks there";
    for (size_t bytes : {size_t{0}, size_t{100}, alignment}) {
      errno = 0;
      EXPECT_EQ(aut::memalign(aut::opaque(alignment), aut::opaque(bytes)), nullptr);
      EXPECT_EQ(errno, ENOMEM);
      errno = 0;
      EXPECT_EQ(aut::aligned_alloc(aut::opaque(alignment), aut::opaque(bytes)), nullptr);
      EXPECT_EQ(errno, ENOMEM);
    }
  }
  // None that could be rounded up to.
  errno = 0;
  EXPECT_EQ(aut::memalign(aut::opaque(SIZE_MAX / 2 + 2), 100), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

#if RDMALLOC_TEST_PREFIXED
// C17 (DR 460) lets aligned_alloc fail for an alignment it does not support; Debian's glibc 2.36
// rounds up instead. Ours refuses what is no power of two, and like everybody takes any size.
TEST(MallocAlignment, aligned_alloc_takes_any_size_and_refuses_odd_alignments) {
  for (size_t alignment : {size_t{0}, size_t{3}, size_t{24}, size_t{4097}, SIZE_MAX}) {
    errno = 0;
    EXPECT_EQ(aut::aligned_alloc(aut::opaque(alignment), 64), nullptr) << alignment;
    EXPECT_EQ(errno, EINVAL) << alignment;
  }
  for (size_t bytes : {0u, 1u, 63u, 65u, 1000u}) {
    void* block = aut::aligned_alloc(64, bytes);
    expect_good(block, 64, bytes);
    aut::free(block);
  }
}
#endif

TEST(MallocAlignment, page_functions_align_to_pages_and_pvalloc_rounds_up) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t bytes : {size_t{0}, size_t{1}, page - 1, page, page + 1, 10 * page + 3}) {
    void* block = aut::valloc(bytes);
    expect_good(block, page, bytes);
    aut::free(block);
    size_t rounded = (bytes + page - 1) / page * page;
    block = aut::pvalloc(bytes);
    expect_good(block, page, rounded);
    aut::free(block);
  }
}

TEST(MallocAlignment, realloc_of_an_aligned_block_keeps_its_contents) {
  for (size_t alignment = 16; alignment <= 4 * kMiB; alignment *= 4) {
    auto* block = static_cast<unsigned char*>(aut::memalign(alignment, 300));
    ASSERT_NE(block, nullptr);
    memset(block, 0x3C, 300);
    block = static_cast<unsigned char*>(aut::realloc(block, 100000));
    ASSERT_NE(block, nullptr);
    for (int i = 0; i < 300; i++) ASSERT_EQ(block[i], 0x3C) << alignment;
    block = static_cast<unsigned char*>(aut::realloc(block, 50));
    for (int i = 0; i < 50; i++) ASSERT_EQ(block[i], 0x3C) << alignment;
    aut::free(block);
  }
}

}  // namespace
