// SPDX-License-Identifier: BSD-3-Clause
//
// Where the words of slabs' bitmaps lie: no two at one place, and those of long slabs close
// together.
//
// Seen to fail: the first with the others' words one line early; the second with all words of a
// slice side by side; the third with those of blocks of 16 bytes beside the slice's others.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>

#include "alloc/pages/arena.h"

namespace {

using rdmalloc::Bitmap;
using rdmalloc::kBitmapGroup;
using rdmalloc::kBitmapWords;
using rdmalloc::SliceIndex;

constexpr std::uint32_t kSlices = 3 * kBitmapGroup;

class Bitmaps : public testing::Test {
 protected:
  std::size_t place_of(SliceIndex slice, std::uint32_t word) const {
    const std::atomic<std::uint64_t>* there = &Bitmap(words_.get(), slice)[word];
    return static_cast<std::size_t>(there - words_.get());
  }

 private:
  std::unique_ptr<std::atomic<std::uint64_t>[]> words_ {
    new std::atomic<std::uint64_t>[ std::size_t{kSlices} * kBitmapWords ]
  };
};

TEST_F(Bitmaps, each_word_has_a_place_of_its_own_within_those_of_its_group) {
  std::set<std::size_t> places;
  for (SliceIndex slice = 0; slice < kSlices; slice++)
    for (std::uint32_t word = 0; word < kBitmapWords; word++) {
      std::size_t place = place_of(slice, word);
      EXPECT_EQ(place / (kBitmapGroup * kBitmapWords), slice / kBitmapGroup);
      EXPECT_TRUE(places.insert(place).second) << slice << ' ' << word;
    }
}

// Pages of bitmaps are what small programs have many of: slabs of eight slices have eight words.
TEST_F(Bitmaps, the_words_of_eight_slabs_of_eight_slices_lie_in_4_KiB) {
  std::size_t first = place_of(0, 0), last = 0;
  for (SliceIndex slice = 0; slice < kBitmapGroup; slice += 8)
    for (std::uint32_t word = 0; word < 8; word++) last = std::max(last, place_of(slice, word));
  EXPECT_LT((last - first) * sizeof(std::uint64_t), 4096u);
}

// What blocks of 16 bytes need beyond 32 words is no part of the pages that all other slabs need.
TEST_F(Bitmaps, the_words_of_blocks_of_32_bytes_lie_as_close_as_they_can) {
  constexpr std::uint32_t kWords = 65536 / 32 / 64;
  std::size_t first = place_of(0, 0), last = 0;
  for (SliceIndex slice = 0; slice < kBitmapGroup; slice++)
    for (std::uint32_t word = 0; word < kWords; word++)
      last = std::max(last, place_of(slice, word));
  EXPECT_EQ(last - first + 1, std::size_t{kBitmapGroup} * kWords);
}

}  // namespace
