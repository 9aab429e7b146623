// SPDX-License-Identifier: BSD-3-Clause
//
// Shards' segments where the arena's addresses are used up: what the central heap lacks is taken
// from the rests of segments, but for regions of heaps of the user.
#include <gtest/gtest.h>
#include <rdmalloc/regcache.h>

#include <vector>

#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/page_heap_state.h"
#include "alloc/pages/segments.h"
#include "tests/invariants/blocks.h"
#include "tests/invariants/domain.h"
#include "tests/invariants/places.h"
#include "tests/support/heap_attr.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::go_to;
using rdmalloc_test::run_at;
using rdmalloc_test::touched;

constexpr size_t kMiB = 1 << 20, kSlice = 64 << 10;

bool is_in_segment_of_shard(const void* block) {
  rdmalloc::SliceIndex slice = rdmalloc::arena.slice_of(reinterpret_cast<uintptr_t>(block));
  return rdmalloc::page_heap_state::heap_index_of(slice) != 0;
}

// What becomes of a region is done under the lock of the central heap. Seen to fail with regions
// taken as other large spans are.
TEST(SegmentsArena, a_region_lies_in_no_segment_of_a_shard) {
  std::vector<char*> blocks;
  for (uint64_t place = 1; place <= rdmalloc::kFewShards + 1; place++)
    run_at(place, [&] { blocks.push_back(touched(kSlice)); });
  go_to(0);
  // Blocks longer than a segment: the central heap has one of them left.
  while (void* block = rdmalloc_malloc(8 * kMiB)) blocks.push_back(static_cast<char*>(block));
  rdmalloc_free(blocks.back());
  blocks.pop_back();
  rdmalloc_domain* domain = rdmalloc_test::open_domain();
  ASSERT_NE(domain, nullptr);
  std::vector<rdmalloc_heap*> heaps;
  rdmalloc_heap_attr attr =
      rdmalloc_test::registered_heap_attr(&domain, 2 * kMiB, RDMALLOC_ACCESS_LOCAL_WRITE);
  for (rdmalloc_heap* heap = nullptr; rdmalloc_heap_create(&attr, &heap) == 0;) {
    heaps.push_back(heap);
    EXPECT_FALSE(is_in_segment_of_shard(rdmalloc_heap_malloc(heap, kMiB))) << heaps.size();
  }
  EXPECT_GE(heaps.size(), 3u);
  // What is left in segments is there for others.
  void* block = rdmalloc_malloc(2 * kMiB);
  EXPECT_TRUE(block != nullptr && is_in_segment_of_shard(block));
  rdmalloc_free(block);
  for (rdmalloc_heap* heap : heaps) EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
  rdmalloc_test::release(blocks);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  EXPECT_TRUE(rdmalloc::page_heap_is_valid());
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(
      argv, {"RDMALLOC_TOPOLOGY=1x8", "RDMALLOC_PURGE=manual", "RDMALLOC_ARENA=448M"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
