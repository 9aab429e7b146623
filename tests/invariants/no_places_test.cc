// SPDX-License-Identifier: BSD-3-Clause
//
// Where buffers above 4 MiB come to lie in a program that has nothing which registers memory, until
// it has: where they fit best, and longer ones on from what is free (alloc/pages/places.h).
// RDMALLOC_PURGE=manual, so that nothing is given back meanwhile. No test calls rdmalloc_init().
//
// Seen to fail: mixed_buffers_… and slabs_… with buffers leaving retained spans (kind_of_place),
// mixed_buffers_… and a_longer_… without take_backed_and_more() (1.33), …_short_… without
// TakenFor::kSlabAnywhere, arrays_grow_… without the second look in take_with_room(), y_… without
// page_heap_keep_places() in rdmalloc_observer_add(), z_… without __libc_single_threaded in
// page_heap_keeps_places(). The last three run alone, as ctest has them:
// they want free memory that is as it was at the start.
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

uint64_t mapped() {
  return rdmalloc_test::counter("stats.mapped_bytes");
}
char* buffer(size_t bytes) {
  auto* block = static_cast<char*>(rdmalloc_malloc(bytes));
  *block = 1;
  return block;
}

// 12 of 5 to 25 MiB, replaced at random: 1.25 of what was live at most, with places 1.50.
TEST(NoPlaces, mixed_buffers_take_little_more_than_they_are) {
  uint64_t state = 4;  // the same in each run
  auto between = [&state](uint64_t low, uint64_t high) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return low + state % (high - low + 1);
  };
  struct Buffer {
    char* block = nullptr;
    size_t bytes = 0;
  };
  std::array<Buffer, 12> buffers = {};
  uint64_t before = mapped(), live = 0, most = 0;
  for (int i = 0; i < 400; i++) {
    Buffer& one = buffers[between(0, buffers.size() - 1)];
    rdmalloc_free(one.block);
    live -= one.bytes;
    one.bytes = between(5 * kMiB, 25 * kMiB);
    one.block = buffer(one.bytes);
    live += one.bytes;
    if (live > most) most = live;
  }
  EXPECT_LE(mapped() - before, most * 128 / 100);
  for (const Buffer& one : buffers) rdmalloc_free(one.block);
}

void expect_slabs_where_a_buffer_lay(size_t bytes) {
  rdmalloc_free(buffer(bytes));
  uint64_t before = mapped();
  std::vector<char*> blocks;
  for (size_t used = 0; used < bytes * 7 / 8; used += 64) blocks.push_back(buffer(64));
  EXPECT_EQ(mapped(), before);
  for (char* block : blocks) rdmalloc_free(block);
}
TEST(NoPlaces, slabs_take_what_buffers_left) {
  expect_slabs_where_a_buffer_lay(16 * kMiB);
}
// Whose places are kept for buffers.
TEST(NoPlaces, slabs_take_what_short_buffers_left) {
  expect_slabs_where_a_buffer_lay(2 * kMiB);
}

TEST(NoPlaces, a_longer_buffer_begins_where_the_last_free_span_does) {
  std::vector<char*> between;  // what is free elsewhere
  for (uint64_t before = mapped(); mapped() == before;) between.push_back(buffer(5 * kMiB));
  char* last = between.back();
  between.pop_back();
  rdmalloc_free(last);
  char* longer = buffer(7 * kMiB);
  EXPECT_EQ(longer, last);
  rdmalloc_free(longer);
  for (char* block : between) rdmalloc_free(block);
}

// Rather than new pages with it.
TEST(NoPlaces, arrays_grow_into_a_free_span_without_room) {
  constexpr size_t kSlice = 64 * kKiB;
  char* free_span = buffer(12 * kSlice);
  char* array = buffer(10 * kSlice);
  char* behind = buffer(3 * kSlice);
  rdmalloc_free(free_span);
  auto* grown = static_cast<char*>(rdmalloc_realloc(array, 12 * kSlice));
  EXPECT_EQ(grown, free_span);
  EXPECT_EQ(rdmalloc_malloc_usable_size(grown), 12 * kSlice);
  rdmalloc_free(grown);
  rdmalloc_free(behind);
}

void expect_a_place_that_is_kept() {
  char* place = buffer(9 * kMiB);
  rdmalloc_free(place);
  std::vector<char*> blocks;
  for (int i = 0; i < 64; i++) blocks.push_back(buffer(60 * kKiB));
  for (int i = 0; i < 20'000; i++) blocks.push_back(buffer(500));
  char* again = buffer(9 * kMiB);
  EXPECT_EQ(again, place);
  rdmalloc_free(again);
  for (char* block : blocks) rdmalloc_free(block);
}

TEST(NoPlaces, y_buffers_keep_their_places_once_there_is_an_observer) {
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  rdmalloc_observer* observer = nullptr;
  ASSERT_EQ(rdmalloc_observer_add(&ops, nullptr, &observer), 0);
  expect_a_place_that_is_kept();
  EXPECT_EQ(rdmalloc_observer_remove(observer), 0);
}

// Also of a thread that never allocates, and of one that has ended.
TEST(NoPlaces, z_buffers_keep_their_places_once_there_was_a_thread) {
  std::thread([] {}).join();
  expect_a_place_that_is_kept();
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual", "RDMALLOC_TOPOLOGY=one"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
