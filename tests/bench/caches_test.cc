// What bench_cores' plugin takes for a line that moves.
//
// Seen to fail: with do_others_hold() saying always, or never; with a load that leaves a line
// modified; with the second word of holders left out.
#include "bench/cores/caches.h"

#include <gtest/gtest.h>

namespace rdmalloc::bench {
namespace {

using Moved = Caches::Moved;
constexpr std::uint64_t kLine = 0x7f00'1234'5678;

TEST(Caches, memory_that_no_core_has_is_free) {
  Caches caches(4);
  EXPECT_EQ(caches.load(0, kLine), Moved::nothing);
  EXPECT_EQ(caches.load(1, kLine), Moved::nothing);
  EXPECT_EQ(caches.store(2, kLine + 1), Moved::nothing);
}

TEST(Caches, a_core_that_has_a_line_uses_it_for_nothing) {
  Caches caches(4);
  caches.store(0, kLine);
  EXPECT_EQ(caches.store(0, kLine), Moved::nothing);
  EXPECT_EQ(caches.load(0, kLine), Moved::nothing);
}

TEST(Caches, a_load_moves_what_another_core_has_modified_once) {
  Caches caches(4);
  caches.store(0, kLine);
  EXPECT_EQ(caches.load(1, kLine), Moved::by_load);
  EXPECT_EQ(caches.load(1, kLine), Moved::nothing);
  EXPECT_EQ(caches.load(2, kLine), Moved::nothing) << "it is clean by now";
}

TEST(Caches, a_store_moves_what_any_other_core_has) {
  Caches caches(4);
  caches.load(0, kLine);
  EXPECT_EQ(caches.store(1, kLine), Moved::by_store);
  EXPECT_EQ(caches.store(0, kLine), Moved::by_store);
  EXPECT_EQ(caches.store(0, kLine), Moved::nothing);
  caches.load(1, kLine);
  EXPECT_EQ(caches.store(0, kLine), Moved::by_store) << "shared since the load";
}

TEST(Caches, cores_beyond_64_are_cores_of_their_own) {
  Caches caches(200);
  caches.load(3, kLine);
  EXPECT_EQ(caches.store(67, kLine), Moved::by_store);
  EXPECT_EQ(caches.load(131, kLine), Moved::by_load);
  EXPECT_EQ(caches.store(131, kLine), Moved::by_store);
  EXPECT_EQ(caches.store(131, kLine), Moved::nothing);
}

TEST(Caches, lines_that_find_no_place_are_counted) {
  Caches caches(1);
  for (std::uint64_t line = 1; caches.lost_lines() == 0 && line < 20'000'000; ++line)
    caches.store(0, line);
  EXPECT_GT(caches.lost_lines(), 0u);
}

}  // namespace
}  // namespace rdmalloc::bench
