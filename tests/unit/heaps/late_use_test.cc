// SPDX-License-Identifier: BSD-3-Clause
//
// Heaps of the user, used too late or while another thread changes them. A handle has a generation,
// so a call by the handle of a destroyed heap is refused in every build. free() has the address
// alone: while its slices are free, or to a heap where no live block begins there, every
// build reports it; once they are ordinary slabs again, checked builds do, and release builds see
// it when the block goes back to its slab, if ever. What cannot be seen is a block that lives again
// at the same address.
//
// Seen to fail: with handles without a generation, with a destroy that does not look who was first,
// with a free that does not look at the live bit.
#include <errno.h>
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <string.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/counters.h"
#include "tests/support/process.h"
#include "tests/unit/heaps/fixture.h"

namespace {

using rdmalloc_test::counter;
using rdmalloc_test::Heap;
using rdmalloc_test::kKiB;
using rdmalloc_test::kMiB;
using rdmalloc_test::Random;
using rdmalloc_test::range_of;

const size_t kSizes[] = {64, 100, 1000, 5000, 32 * kKiB, 100 * kKiB, 3 * kMiB};

int count_block(void*, size_t, void* arg) {
  ++*static_cast<size_t*>(arg);
  return 0;
}

void expect_refused(rdmalloc_heap* gone, void* live_block) {
  errno = 0;
  EXPECT_EQ(rdmalloc_heap_malloc(gone, 100), nullptr);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(rdmalloc_heap_malloc(gone, kMiB), nullptr);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(rdmalloc_heap_calloc(gone, 10, 10), nullptr);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(rdmalloc_heap_aligned(gone, 4096, 10), nullptr);
  EXPECT_EQ(errno, EINVAL);
  errno = 0;
  EXPECT_EQ(rdmalloc_heap_realloc(gone, live_block, 10), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(rdmalloc_heap_free(gone, live_block), -EINVAL);
  EXPECT_EQ(rdmalloc_heap_free(gone, nullptr), -EINVAL);
  EXPECT_EQ(rdmalloc_heap_destroy(gone), -EINVAL);
  size_t met = 0;
  EXPECT_EQ(rdmalloc_heap_walk(gone, count_block, &met), -EINVAL);
  EXPECT_EQ(met, 0u);
  rdmalloc_heap_counters counters = {};
  counters.size = sizeof counters;
  EXPECT_EQ(rdmalloc_heap_stats(gone, &counters), -EINVAL);
}

TEST(HeapsLate, every_call_by_the_handle_of_a_destroyed_heap_is_refused) {
  Heap doomed;
  for (size_t bytes : kSizes) ASSERT_NE(doomed.malloc(bytes), nullptr);
  rdmalloc_heap* gone = doomed.release();
  ASSERT_EQ(rdmalloc_heap_destroy(gone), 0);
  Heap other;
  void* block = other.malloc(100);
  expect_refused(gone, block);
  // Also when its slot, and its spans, belong to others.
  std::vector<Heap> more(50);
  for (Heap& heap : more)
    for (size_t bytes : kSizes) ASSERT_NE(heap.malloc(bytes), nullptr);
  expect_refused(gone, block);
  for (Heap& heap : more) EXPECT_EQ(heap.counters().live_blocks, std::size(kSizes));
  EXPECT_EQ(other.counters().live_blocks, 1u);
}

TEST(HeapsLate, addresses_of_a_destroyed_heap_have_no_owner) {
  Heap heap;
  std::vector<void*> blocks;
  for (int i = 0; i < 50; i++)
    for (size_t bytes : kSizes) blocks.push_back(heap.malloc(bytes));
  for (void* block : blocks) {
    // Any byte of a block tells.
    size_t usable = rdmalloc_malloc_usable_size(block);
    EXPECT_EQ(range_of(static_cast<char*>(block) + usable - 1).heap, heap.get());
    EXPECT_EQ(range_of(static_cast<char*>(block) + usable / 2).base, range_of(block).base);
  }
  ASSERT_EQ(rdmalloc_heap_destroy(heap.release()), 0);
  for (void* block : blocks) {
    rdmalloc_range range = {};
    range.size = sizeof range;
    EXPECT_EQ(rdmalloc_range_of(block, &range), -EFAULT);
    EXPECT_TRUE(rdmalloc_range_is_idle(block, 1));
    EXPECT_EQ(rdmalloc_malloc_usable_size(block), 0u);
    EXPECT_TRUE(rdmalloc_owns(block));
  }
}

TEST(HeapsLateDeathTest, free_and_realloc_after_destroy_are_reported_with_the_address) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (size_t bytes : {size_t{64}, size_t{5000}, kMiB}) {
    auto destroyed = [bytes] {
      Heap heap;
      void* block = heap.malloc(bytes);
      rdmalloc_heap_destroy(heap.release());
      return block;
    };
    EXPECT_DEATH(rdmalloc_free(destroyed()), "rdmalloc: .*0x[0-9a-f]+");
    EXPECT_DEATH(rdmalloc_free_sized(destroyed(), bytes), "rdmalloc: .*0x[0-9a-f]+");
    EXPECT_DEATH((void)rdmalloc_realloc(destroyed(), 2 * bytes), "rdmalloc: .*0x[0-9a-f]+");
  }
}

// Its slices are another heap's by now, where no block lives at the address.
TEST(HeapsLateDeathTest, a_late_free_into_the_spans_of_another_heap_is_reported) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        rdmalloc_heap* first = nullptr;
        rdmalloc_heap_create(nullptr, &first);
        void* late = nullptr;
        for (int i = 0; i < 700; i++) late = rdmalloc_heap_malloc(first, 64);
        rdmalloc_heap_destroy(first);
        Heap second;
        // The same slab, of which only the lowest blocks live.
        void* block = second.malloc(64);
        if (range_of(block).base == range_of(late).base) rdmalloc_free(late);
      },
      "double free.* 0x");
}

#if RDMALLOC_CHECKED
TEST(HeapsLateDeathTest, a_late_free_into_an_ordinary_slab_is_reported_when_checked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Heap heap;
        std::vector<void*> blocks;
        for (int i = 0; i < 5000; i++) blocks.push_back(heap.malloc(64));
        rdmalloc_heap_destroy(heap.release());
        // Its slices become slabs of malloc's, a block here and there of which lives.
        for (int i = 0; i < 5000; i++) rdmalloc_free(rdmalloc_malloc(64));
        for (void* block : blocks) rdmalloc_free(block);
      },
      "rdmalloc: .*0x[0-9a-f]+");
}
#endif

TEST(HeapsLate, of_many_threads_that_destroy_a_heap_one_does) {
  constexpr int kThreads = 8;
  for (int round = 0; round < 200; round++) {
    uint64_t used = counter("stats.used_bytes");
    Heap heap;
    for (size_t bytes : kSizes) heap.malloc(bytes);
    rdmalloc_heap* handle = heap.release();
    std::atomic<int> ready{0}, done{0}, refused{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) {
      threads.emplace_back([&] {
        for (++ready; ready.load() < kThreads;) std::this_thread::yield();
        int error = rdmalloc_heap_destroy(handle);
        (error == 0 ? done : refused) += error == 0 || error == -EINVAL;
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(done.load(), 1);
    ASSERT_EQ(refused.load(), kThreads - 1);
    ASSERT_EQ(counter("stats.used_bytes"), used);
  }
}

// Threads that allocate and free in the heap until they are told to stop.
class Storm {
 public:
  explicit Storm(rdmalloc_heap* heap) {
    for (uint64_t i = 0; i < 3; i++) {
      threads_.emplace_back([this, heap, i] {
        Random random(i + 1);
        std::vector<void*> blocks(200);
        while (!stop_.load()) {
          void*& block = blocks[random.below(blocks.size())];
          if (block != nullptr && random.below(3) == 0) {
            block = rdmalloc_realloc(block, random.size_between(1, 200 * kKiB));
          } else if (block != nullptr) {
            rdmalloc_free(std::exchange(block, nullptr));
          } else {
            block = rdmalloc_heap_malloc(heap, random.size_between(1, 8 * kKiB));
          }
          steps++;
        }
        for (void* block : blocks) rdmalloc_free(block);
      });
    }
  }
  ~Storm() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  std::atomic<uint64_t> steps{0};

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST(HeapsLate, a_walk_beside_busy_threads_meets_what_stays_once_in_order) {
  Heap heap;
  std::set<void*> stays;
  for (int i = 0; i < 300; i++)
    for (size_t bytes : {size_t{64}, size_t{700}, size_t{6000}, 70 * kKiB})
      stays.insert(heap.malloc(bytes));
  {
    Storm storm(heap.get());
    while (storm.steps.load() < 1000) std::this_thread::yield();
    struct Seen {
      rdmalloc_heap* heap;
      std::map<void*, int> blocks;
      char* last;
    };
    for (int round = 0; round < 30; round++) {
      Seen seen = {heap.get(), {}, nullptr};
      ASSERT_EQ(rdmalloc_heap_walk(
                    heap.get(),
                    [](void* block, size_t, void* arg) {
                      auto* s = static_cast<Seen*>(arg);
                      EXPECT_LT(s->last, static_cast<char*>(block)) << "not by rising address";
                      s->last = static_cast<char*>(block);
                      s->blocks[block]++;
                      return 0;
                    },
                    &seen),
                0);
      for (void* block : stays) ASSERT_EQ(seen.blocks[block], 1) << block;
    }
  }
  EXPECT_EQ(heap.counters().live_blocks, stays.size());
}

TEST(HeapsLate, a_walk_ends_though_its_callback_allocates_in_the_heap) {
  Heap heap(64 * kMiB);
  std::map<void*, int> met;
  for (int i = 0; i < 500; i++)
    for (size_t bytes : {size_t{64}, size_t{700}, size_t{6000}}) met[heap.malloc(bytes)] = 0;
  struct State {
    Heap* heap;
    std::map<void*, int>* met;
    size_t calls;
  } state = {&heap, &met, 0};
  EXPECT_EQ(rdmalloc_heap_walk(
                heap.get(),
                [](void* block, size_t, void* arg) {
                  auto* s = static_cast<State*>(arg);
                  s->calls++;
                  auto at = s->met->find(block);
                  if (at != s->met->end()) at->second++;
                  // Of each kind, and one that makes the walk's own slab go.
                  s->heap->malloc(64);
                  rdmalloc_free(s->heap->malloc(700));
                  rdmalloc_free(s->heap->malloc(100 * kKiB));
                  return 0;
                },
                &state),
            0);
  for (auto [block, times] : met) EXPECT_EQ(times, 1) << block;
  EXPECT_GE(state.calls, met.size());
  EXPECT_LE(state.calls, 64 * kMiB / 64);
}

TEST(HeapsLate, range_of_beside_passing_heaps_is_never_another_range) {
  std::atomic<bool> stop{false};
  std::atomic<char*> watched{nullptr};
  std::thread maker([&] {
    while (!stop.load()) {
      Heap heap;
      for (size_t bytes : kSizes) watched = static_cast<char*>(heap.malloc(bytes));
    }
  });
  for (int told = 0; told < 3000 && !HasFailure();) {
    char* at = watched.load();
    rdmalloc_range range = {};
    range.size = sizeof range;
    if (at == nullptr || rdmalloc_range_of(at, &range) != 0) continue;
    EXPECT_LE(static_cast<char*>(range.base), at);
    EXPECT_LT(at, static_cast<char*>(range.base) + range.length);
    if (++told % 100 == 0)
      rdmalloc_range_foreach(
          [](const rdmalloc_range* each, void*) {
            EXPECT_NE(each->length, 0u);
            return 0;
          },
          nullptr);
  }
  stop = true;
  maker.join();
}

}  // namespace
