// SPDX-License-Identifier: BSD-3-Clause
//
// The pages of heaps of the user, and registrations over them: destroying a heap leaves dirty spans
// like any others, which observers and the registration cache are asked about (I3).
// RDMALLOC_PURGE=manual, so that every purge is ours. Seen to fail: with spans of heaps that are
// said to be clean when they are freed; with pages of slabs in use that go unasked.
#include <gtest/gtest.h>
#include <rdmalloc/regcache.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "alloc/pages/page_heap.h"
#include "tests/invariants/page_model.h"
#include "tests/support/counters.h"
#include "tests/support/heap_attr.h"
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

// One block in the slab's middle stays; the others, on other pages, are free.
unsigned char* leave_one(const Heap& heap, size_t bytes) {
  std::vector<unsigned char*> blocks;
  for (int i = 0; i < 60; i++) blocks.push_back(marked(heap, bytes));
  for (size_t i = 0; i < blocks.size(); i++)
    if (i != 30) rdmalloc_free(blocks[i]);
  return blocks[30];
}

TEST(HeapPages, I3_registrations_end_before_free_pages_beside_a_block) {
  Fabric fabric;
  Heap heap;
  unsigned char* kept = leave_one(heap, 1000);
  unsigned char* beside = kept - 10 * kKiB;
  fabric.watched = {kept, beside};
  uint64_t generation = fabric.touch(kept, 1000);
  ASSERT_GT(rdmalloc_purge(0), 0);
  EXPECT_EQ(fabric.live(), 0u);
  EXPECT_EQ(fabric.gone_too_early, 0);
  EXPECT_EQ(*beside, 0) << "the page was not given back";
  EXPECT_EQ(kept[0], kMark);
  EXPECT_NE(fabric.touch(kept, 1000), generation);
  // Held, it holds its pages; so does an uncounted key until its block is freed.
  for (bool is_counted : {true, false}) {
    Heap other;
    unsigned char* block = leave_one(other, 1000);
    rdmalloc_reg* reg = is_counted ? fabric.get(block, 1000) : nullptr;
    rdmalloc_key key = {};
    if (!is_counted) {
      ASSERT_EQ(rdmalloc_reg_key(fabric.domain(), block, 1000, RDMALLOC_ACCESS_LOCAL, &key), 0);
    }
    fabric.watched = {block, block - 10 * kKiB};
    ASSERT_GE(rdmalloc_purge(0), 0);
    EXPECT_EQ(block[-10 * static_cast<ptrdiff_t>(kKiB)], kMark) << is_counted;
    if (is_counted) rdmalloc_reg_put(reg);
    rdmalloc_free(block);
    ASSERT_GT(rdmalloc_purge(0), 0);
    EXPECT_EQ(*block, 0) << is_counted;
    EXPECT_EQ(fabric.gone_too_early, 0);
  }
}

// ---- a heap that is destroyed while pages of its slab are in flight ----
//
// Seen to fail: with a slab in purge that a destroy frees at once, or that it leaves to
// heap_pages_end() as it is, the heap's slot in its word.

// A heap, and the page events of a slab of it until the first that `answer` got.
struct Doomed {
  Heap heap;
  unsigned char* kept = leave_one(heap, 820);
  rdmalloc_range slab = range_of(kept);

  bool holds(void* base) const {
    return base >= slab.base && base < static_cast<char*>(slab.base) + slab.length;
  }
  void destroy() { ASSERT_EQ(rdmalloc_heap_destroy(heap.release()), 0); }
};

// A whole free span is left of the slab.
bool is_whole_again() {
  return rdmalloc_purge(0) >= 0 && counter("stats.dirty_bytes") == 0 &&
         rdmalloc::page_heap_counters().purging_slices == 0 && rdmalloc::page_heap_is_valid();
}

TEST(HeapPages, I3_a_destroy_in_a_page_event_leaves_a_free_span) {
  ASSERT_GE(rdmalloc_purge(0), 0);
  static Doomed* doomed;
  Doomed one;
  doomed = &one;
  PageModel model([](void* base, size_t) {
    if (doomed != nullptr && doomed->holds(base)) std::exchange(doomed, nullptr)->destroy();
    return 0;
  });
  ASSERT_GT(rdmalloc_purge(0), 0);
  EXPECT_EQ(doomed, nullptr) << "no page of it was offered";
  EXPECT_TRUE(is_whole_again());
  EXPECT_EQ(one.kept[0], 0);
  EXPECT_EQ(model.state_of(one.kept), PageModel::kPurged);
}

TEST(HeapPages, I11_a_destroy_beside_a_page_purge_is_whole_in_a_child) {
  ASSERT_GE(rdmalloc_purge(0), 0);
  static std::atomic<bool> is_in_purge, may_end;
  static std::atomic<Doomed*> doomed;
  for (bool forks_in_purge : {false, true}) {
    is_in_purge = may_end = false;
    Doomed one;
    doomed = &one;
    PageModel model([](void* base, size_t) {
      if (doomed == nullptr || !doomed.load()->holds(base)) return 0;
      doomed = nullptr;
      is_in_purge = true;
      while (!may_end.load()) usleep(100);
      return 0;
    });
    std::thread purger([] { rdmalloc_purge(0); });
    rdmalloc_test::wait_until([] { return is_in_purge.load(); });
    one.destroy();
    // Its slot goes to another heap, which has slabs of its own.
    Heap next;
    for (int i = 0; i < 1000; i++) EXPECT_NE(next.malloc(820), nullptr);
    if (!forks_in_purge) may_end = true;
    if (!forks_in_purge) purger.join();
    pid_t child = fork();
    if (child == 0) _exit(is_whole_again() ? 0 : 1);
    int status = -1;
    EXPECT_TRUE(rdmalloc_test::wait_with_limit(child, 30000, &status));
    EXPECT_EQ(status, 0) << forks_in_purge;
    may_end = true;
    if (forks_in_purge) purger.join();
    EXPECT_TRUE(is_whole_again());
  }
}

// Its pages are registered, and backed, until its end. Seen to fail: with heap_gives_pages() true
// for every heap.
TEST(HeapPages, I13_a_registered_heap_keeps_free_pages_and_keys) {
  Fabric fabric;
  rdmalloc_domain* domain = fabric.domain();
  rdmalloc_heap_attr attr =
      rdmalloc_test::registered_heap_attr(&domain, 4 * kMiB, RDMALLOC_ACCESS_LOCAL);
  rdmalloc_heap* made = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(&attr, &made), 0);
  Heap heap(made);
  uint64_t bytes = counter("stats.slab_purged_bytes"), refusals = counter("stats.purge_refusals");
  unsigned char* kept = leave_one(heap, 1000);
  ASSERT_GE(rdmalloc_purge(0), 0);
  EXPECT_EQ(kept[-10 * static_cast<ptrdiff_t>(kKiB)], kMark);
  EXPECT_EQ(counter("stats.slab_purged_bytes"), bytes);
  EXPECT_EQ(counter("stats.purge_refusals"), refusals) << "nothing is offered";
  EXPECT_EQ(fabric.live(), 1u);
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_PURGE=manual"});
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
