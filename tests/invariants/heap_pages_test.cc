// SPDX-License-Identifier: BSD-3-Clause
//
// The pages of heaps of the user, and registrations over them: destroying a heap leaves dirty spans
// like any others, which observers and the registration cache are asked about (I3).
// RDMALLOC_PURGE=manual, so that every purge is ours. Seen to fail: with spans of heaps that are
// said to be clean when they are freed.
#include <gtest/gtest.h>
#include <rdmalloc/regcache.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/invariants/page_model.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"
#include "tests/unit/heaps/fixture.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::Heap;
using rdmalloc_test::kKiB;
using rdmalloc_test::kMiB;
using rdmalloc_test::PageModel;
using rdmalloc_test::Random;
using rdmalloc_test::range_of;

constexpr unsigned char kMark = 0x5C;

TEST(HeapPages, I3_events_of_a_heaps_ranges_come_in_order_and_once) {
  PageModel model;
  ASSERT_EQ(model.added(), 0);
  Random random(5);
  for (int round = 0; round < 60; round++) {
    Heap first, second;
    void* blocks[200] = {};
    for (int step = 0; step < 600; step++) {
      void*& block = blocks[random.below(200)];
      if (block != nullptr && random.below(3) == 0) {
        block = rdmalloc_realloc(block, random.size_between(1, kMiB));
      } else if (block != nullptr) {
        rdmalloc_free(block);
        block = nullptr;
      } else {
        size_t bytes = random.size_between(1, 2 * kMiB);
        block = (step % 2 == 0 ? first : second).malloc(bytes);
        memset(block, 1, std::min<size_t>(bytes, 4096));
      }
      if (step % 100 == 0) {
        ASSERT_GE(rdmalloc_purge(0), 0);
      }
    }
    ASSERT_TRUE(model.violations.empty()) << model.all_violations();
    // Half of the blocks are live when their heaps go.
  }
  rdmalloc_purge(0);
  EXPECT_TRUE(model.violations.empty()) << model.all_violations();
  EXPECT_GT(model.purged_good, 50u);
  EXPECT_GT(model.reuses, 50u);
  EXPECT_EQ(counter("stats.dirty_bytes"), 0u);
}

// A fabric that keeps books of what is registered, and looks, when a registration ends, whether the
// pages under it are still those that were registered.
class Fabric {
 public:
  Fabric() {
    ops_.size = sizeof ops_;
    ops_.name = "books";
    ops_.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
                 RDMALLOC_REGISTRAR_EXACT_ACCESS;
    ops_.register_ = [](void* me, void* addr, size_t length, uint32_t, rdmalloc_key* key) {
      auto* fabric = static_cast<Fabric*>(me);
      key->lkey = ++fabric->last_key_;
      fabric->live_[key->lkey] = {static_cast<unsigned char*>(addr), length};
      return 0;
    };
    ops_.deregister = [](void* me, void*, size_t, const rdmalloc_key* key) {
      auto* fabric = static_cast<Fabric*>(me);
      auto at = fabric->live_.find(key->lkey);
      if (at == fabric->live_.end()) return -EINVAL;
      auto [base, length] = at->second;
      for (const unsigned char* at_mark : fabric->watched)
        if (at_mark >= base && at_mark < base + length && *at_mark != kMark)
          fabric->gone_too_early++;
      fabric->live_.erase(at);
      return 0;
    };
    rdmalloc_domain_attr attr = {};
    attr.size = sizeof attr;
    EXPECT_EQ(rdmalloc_domain_open(&ops_, this, &attr, &domain_), 0);
  }
  ~Fabric() { EXPECT_EQ(rdmalloc_domain_close(domain_), 0); }

  rdmalloc_domain* domain() const { return domain_; }
  size_t live() const { return live_.size(); }
  rdmalloc_reg* get(const void* block, size_t bytes) const {
    rdmalloc_reg* reg = nullptr;
    EXPECT_EQ(rdmalloc_reg_get(domain_, block, bytes, RDMALLOC_ACCESS_LOCAL, &reg), 0);
    return reg;
  }
  // A counted registration that is held no more; its key's generation.
  uint64_t touch(const void* block, size_t bytes) const {
    rdmalloc_reg* reg = get(block, bytes);
    rdmalloc_key key = {};
    rdmalloc_reg_key_of(reg, &key);
    rdmalloc_reg_put(reg);
    return key.generation;
  }
  std::vector<const unsigned char*> watched;  // hold kMark while their pages are there
  int gone_too_early = 0;

 private:
  rdmalloc_registrar_ops ops_ = {};
  rdmalloc_domain* domain_ = nullptr;
  uint64_t last_key_ = 0;
  std::map<uint64_t, std::pair<unsigned char*, size_t>> live_;
};

unsigned char* marked(const Heap& heap, size_t bytes) {
  auto* block = static_cast<unsigned char*>(heap.malloc(bytes));
  memset(block, kMark, bytes);
  return block;
}

TEST(HeapPages, I3_a_destroyed_heaps_registrations_end_before_its_pages) {
  Fabric fabric;
  for (size_t bytes : {size_t{100}, size_t{5000}, kMiB, 5 * kMiB}) {
    Heap heap;
    unsigned char* block = marked(heap, bytes);
    fabric.watched = {block, block + bytes - 1};
    uint64_t generation = fabric.touch(block, bytes);
    ASSERT_EQ(rdmalloc_heap_destroy(heap.release()), 0);
    EXPECT_GE(fabric.live(), 1u) << "a registration is kept while its pages are";
    EXPECT_EQ(block[0], kMark);
    ASSERT_GT(rdmalloc_purge(0), 0);
    EXPECT_EQ(fabric.live(), 0u);
    EXPECT_EQ(fabric.gone_too_early, 0);
    EXPECT_EQ(block[0], 0) << "the pages were not given back";
    // The same pages, in another heap: another registration.
    Heap next;
    fabric.watched.clear();
    void* again = next.malloc(bytes);
    EXPECT_NE(fabric.touch(again, bytes), generation);
  }
}

TEST(HeapPages, I3_a_registration_in_use_holds_the_pages_of_a_destroyed_heap) {
  Fabric fabric;
  Heap heap;
  unsigned char* block = marked(heap, kMiB);
  rdmalloc_reg* reg = fabric.get(block, kMiB);
  ASSERT_EQ(rdmalloc_heap_destroy(heap.release()), 0);
  rdmalloc_purge(0);
  EXPECT_EQ(block[0], kMark);
  EXPECT_EQ(block[kMiB - 1], kMark);
  rdmalloc_reg_put(reg);
  rdmalloc_purge(0);
  EXPECT_EQ(block[0], 0);
  EXPECT_EQ(fabric.live(), 0u);
}

TEST(HeapPages, I5_an_uncounted_key_lives_as_its_block_and_heap_do) {
  Fabric fabric;
  Heap heap;
  unsigned char* block = marked(heap, 3000);
  rdmalloc_key key = {};
  ASSERT_EQ(rdmalloc_reg_key(fabric.domain(), block, 3000, RDMALLOC_ACCESS_LOCAL, &key), 0);
  rdmalloc_purge(0);
  EXPECT_EQ(block[0], kMark);
  rdmalloc_key again = {};
  ASSERT_EQ(rdmalloc_reg_key(fabric.domain(), block, 3000, RDMALLOC_ACCESS_LOCAL, &again), 0);
  EXPECT_EQ(again.generation, key.generation);
  ASSERT_EQ(rdmalloc_heap_destroy(heap.release()), 0);
  rdmalloc_purge(0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(block[0], 0);
}

TEST(HeapPages, I5_a_heaps_buffer_reused_unpurged_keeps_its_registration) {
  Fabric fabric;
  uint64_t generation = 0;
  const void* place = nullptr;
  for (int round = 0; round < 5; round++) {
    Heap heap;
    void* block = heap.malloc(2 * kMiB);
    uint64_t now = fabric.touch(block, 2 * kMiB);
    if (round != 0) {
      EXPECT_EQ(block, place);
      EXPECT_EQ(now, generation);
    }
    place = block;
    generation = now;
  }
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
