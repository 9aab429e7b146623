// Heaps of the user beside places of buffers that are a little longer. Seen to fail where a heap,
// too, took such a place whole.
#include <algorithm>
#include <vector>

#include "alloc/pages/arena.h"
#include "tests/support/counters.h"
#include "tests/unit/regcache/registered_heaps_fixture.h"

namespace {

using rdmalloc::arena;
using rdmalloc_test::counter;

// 576 KiB were the heap's, of 512.
TEST_F(RegisteredHeaps, a_longer_free_place_does_not_pass_a_budget) {
  rdmalloc_free(rdmalloc_malloc(576 * kKiB));
  rdmalloc_heap* heap = make({}, 512 * kKiB, 0);
  ASSERT_EQ(last_error, 0);
  ASSERT_NE(rdmalloc_heap_malloc(heap, 512 * kKiB), nullptr);
  EXPECT_EQ(counters(heap).span_bytes, 512 * kKiB);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// The end was not registered, and the heap's lists of what is free, which go by length, handed out
// one address again and again.
TEST_F(RegisteredHeaps, a_longer_free_place_is_cut_for_a_region) {
  StubDomain domain(fabric);
  void* place = rdmalloc_aligned_alloc(2 * kMiB, 2240 * kKiB);  // as a region is
  rdmalloc_free(place);
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(region(heap, 0).base, place);
  // Else the next malloc may not come back.
  ASSERT_EQ(arena.span(arena.slice_of(reinterpret_cast<std::uintptr_t>(place))).load().slices, 32u);
  EXPECT_EQ(region(heap, 0).length, 2 * kMiB);
  std::vector<void*> blocks;
  while (void* block = rdmalloc_heap_malloc(heap, 64 * kKiB)) {
    blocks.push_back(block);
    ASSERT_LE(blocks.size(), 32u);
  }
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(std::unique(blocks.begin(), blocks.end()) - blocks.begin(), 32);
  expect_only(heap);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when the end of a registered heap leaves its place in the record, or each heap counts as
// one; and when what an ordinary one keeps free counts as in use.
TEST_F(RegisteredHeaps, an_ordinary_heap_in_the_record_of_one_counts_as_none) {
  StubDomain domain(fabric);
  std::uint64_t large_spans = rdmalloc::page_heap_counters().large_spans;
  rdmalloc_heap* heap = make({domain.handle}, 2 * kMiB);
  ASSERT_EQ(last_error, 0);
  EXPECT_EQ(counter("stats.registered_heaps"), 1u);
  EXPECT_EQ(rdmalloc::page_heap_counters().large_spans, large_spans);
  rdmalloc_free(rdmalloc_heap_malloc(heap, kMiB));
  EXPECT_EQ(counters(heap).most_span_bytes, kMiB);
  EXPECT_EQ(rdmalloc::page_heap_counters().large_spans, large_spans);
  ASSERT_EQ(rdmalloc_heap_destroy(heap), 0);
  rdmalloc_heap* ordinary = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(nullptr, &ordinary), 0);
  EXPECT_EQ(counter("stats.registered_heaps"), 0u);
  EXPECT_EQ(counters(ordinary).most_span_bytes, 0u);
  std::uint64_t live_bytes = counter("stats.live_bytes");
  ASSERT_NE(rdmalloc_heap_malloc(ordinary, 16), nullptr);
  EXPECT_LT(counter("stats.live_bytes") - live_bytes, 64 * kKiB);
  EXPECT_EQ(rdmalloc_heap_destroy(ordinary), 0);
}

// Fails when what a block grows by is not entered as its own.
TEST_F(RegisteredHeaps, an_address_in_what_a_block_grew_by_is_the_blocks) {
  StubDomain domain(fabric);
  rdmalloc_heap* heap = make({domain.handle}, 4 * kMiB);
  ASSERT_EQ(last_error, 0);
  auto* block = static_cast<char*>(rdmalloc_heap_malloc(heap, 128 * kKiB));
  ASSERT_EQ(rdmalloc_heap_realloc(heap, block, kMiB), block) << "in place";
  for (std::size_t at = 0; at < kMiB; at += 64 * kKiB) {
    rdmalloc_range range = {};
    range.size = sizeof range;
    ASSERT_EQ(rdmalloc_range_of(block + at, &range), 0) << at;
    EXPECT_EQ(range.base, block) << at;
    EXPECT_EQ(range.length, kMiB) << at;
    EXPECT_FALSE(rdmalloc_range_is_idle(block + at, 1)) << at;
  }
  ASSERT_EQ(rdmalloc_heap_realloc(heap, block, 128 * kKiB), block);
  EXPECT_TRUE(rdmalloc_range_is_idle(block + 128 * kKiB, kMiB - 128 * kKiB));
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// Fails when a block grows in place beyond its region, into what is free of the heap's next one.
TEST_F(RegisteredHeaps, I13_no_block_grows_from_one_registration_into_the_next) {
  rdmalloc_domain_attr attr = {};
  attr.largest = 2 * kMiB;
  StubDomain domain(fabric, attr);
  rdmalloc_heap* heap = make({domain.handle}, 16 * kMiB);
  ASSERT_EQ(last_error, 0);
  std::vector<char*> blocks(8);
  for (char*& block : blocks) block = static_cast<char*>(rdmalloc_heap_malloc(heap, 2 * kMiB));
  std::sort(blocks.begin(), blocks.end());
  auto low = std::adjacent_find(blocks.begin(), blocks.end(),
                                [](char* one, char* next) { return one + 2 * kMiB == next; });
  ASSERT_NE(low, blocks.end());
  rdmalloc_free(low[1]);
  EXPECT_EQ(rdmalloc_heap_realloc(heap, *low, 2 * kMiB + 64 * kKiB), nullptr);
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

}  // namespace
