// SPDX-License-Identifier: BSD-3-Clause
//
// malloc_usable_size: all of it may be written, and none of it is a neighbour's.
#include <gtest/gtest.h>
#include <string.h>

#include <vector>

#include "tests/support/alloc_under_test.h"
#include "tests/support/words.h"

namespace {

TEST(MallocUsableSize, the_last_byte_can_be_written_without_touching_a_neighbour) {
  for (size_t bytes = 1; bytes <= (size_t{4} << 20u); bytes = bytes * 9 / 8 + 1) {
    const size_t count = bytes < 10000 ? 64 : 4;
    std::vector<unsigned char*> blocks;
    for (size_t i = 0; i < count; i++) {
      auto* block = static_cast<unsigned char*>(aut::malloc(bytes));
      ASSERT_NE(block, nullptr);
      memset(block, static_cast<int>(i), aut::usable_size(block));
      blocks.push_back(block);
    }
    for (size_t i = 0; i < count; i++) {
      size_t usable = aut::usable_size(blocks[i]);
      ASSERT_GE(usable, bytes);
      auto word = [i](size_t) { return i * 0x0101010101010101u; };
      ASSERT_EQ(rdmalloc_test::first_unlike(blocks[i], usable, word), usable)
          << bytes << " bytes, block " << i;
    }
    for (unsigned char* block : blocks) aut::free(block);
  }
}

TEST(MallocUsableSize, the_size_does_not_change_while_the_block_lives) {
  std::vector<std::pair<void*, size_t>> blocks;
  for (size_t bytes = 1; bytes < 300000; bytes = bytes * 5 / 4 + 1) {
    void* block = aut::malloc(bytes);
    blocks.emplace_back(block, aut::usable_size(block));
  }
  for (int i = 0; i < 10000; i++) aut::free(aut::malloc(static_cast<size_t>(i) * 17 % 90000));
  for (auto& [block, usable] : blocks) {
    EXPECT_EQ(aut::usable_size(block), usable);
    aut::free(block);
  }
}

TEST(MallocUsableSize, a_block_of_exactly_the_usable_size_is_no_larger) {
  // The size class of n bytes is true: asking for all it gives must give no more.
  for (size_t bytes = 1; bytes <= 100000; bytes = bytes * 5 / 4 + 1) {
    void* block = aut::malloc(bytes);
    size_t usable = aut::usable_size(block);
    void* again = aut::malloc(usable);
    EXPECT_EQ(aut::usable_size(again), usable) << bytes;
    aut::free(block);
    aut::free(again);
  }
}

}  // namespace
