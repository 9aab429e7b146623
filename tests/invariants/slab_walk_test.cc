// SPDX-License-Identifier: BSD-3-Clause
//
// How far one walk over slabs gets (alloc/purge/slab_purge.h). A program of its own, since what it
// leaves stays.
//
// Seen to fail: with kSlabsAtOnce of 256; counting (it hangs), where classes of spans have their
// locks taken too.
#include <gtest/gtest.h>

#include <vector>

#include "alloc/core/size_class.h"
#include "alloc/pages/purge_turn.h"
#include "alloc/purge/slab_purge.h"
#include "alloc/slabs/slab.h"
#include "rdmalloc/rdmalloc.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Each `every`-th of so many bytes of blocks stays.
void leave_each(size_t every, size_t bytes, size_t total) {
  std::vector<void*> blocks;
  for (size_t used = 0; used < total; used += bytes) blocks.push_back(rdmalloc_malloc(bytes));
  for (size_t i = 0; i < blocks.size(); i++)
    if (i % every != 0) rdmalloc_free(blocks[i]);
}

TEST(SlabWalk, one_walk_gets_past_slabs_that_have_no_page_to_give) {
  leave_each(16, 256, 64 * kMiB);   // 1,024 slabs, a block on each page
  leave_each(64, 1024, 16 * kMiB);  // 256, a block on a page of 16
  rdmalloc_purge(SIZE_MAX);         // what this thread and the depot hold
  static size_t offered;
  rdmalloc::SlabPurge how = {.everything = false,
                             .still_ms = 0,
                             .still_huge_ms = 0,
                             .reason = RDMALLOC_PURGE_DECAY,
                             .purge =
                                 [](uintptr_t, size_t bytes, rdmalloc_purge_reason) {
                                   offered += bytes;
                                   return rdmalloc::GiveBack::kRefused;
                                 },
                             .must_stop = [] { return false; }};
  rdmalloc::purge_turn.begin();
  rdmalloc::slab_purge_walk(how);  // remembers what it sees
  EXPECT_EQ(offered, 0u);
  rdmalloc::slab_purge_walk(how);
  rdmalloc::purge_turn.end();
  EXPECT_GE(offered, 14 * kMiB);
}

// A thread of the parent that was counting has such a lock for ever in the child of a fork, where
// slab_rebuild() frees no lock but those of slabs.
TEST(SlabWalk, I11_counting_takes_no_lock_of_a_class_without_slabs) {
  for (unsigned size_class = 0; size_class < rdmalloc::kClasses; size_class++) {
    if (!rdmalloc::is_span_class(size_class)) continue;
    rdmalloc::slab_orphan(0, size_class);
    EXPECT_EQ(rdmalloc::slab_counters(size_class).slabs, 0u);
  }
}

}  // namespace
