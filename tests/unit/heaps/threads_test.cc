// SPDX-License-Identifier: BSD-3-Clause
//
// Heaps of the user and threads: a random history of several heaps against an oracle, and what is
// left when threads end or go idle. Seen to fail: with magazines that are never full by their
// bytes, that are not emptied at destroy, by the purge thread, or for the budget; with live bits
// that are changed by a load and a store although threads have met.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "alloc/heaps/heap.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"
#include "tests/unit/heaps/fixture.h"

namespace {

using rdmalloc_test::Heap;
using rdmalloc_test::kKiB;
using rdmalloc_test::kMiB;
using rdmalloc_test::Random;
using rdmalloc_test::range_of;
using rdmalloc_test::wait_until;
using rdmalloc_test::walk;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || RDMALLOC_CHECKED
constexpr int kSteps = 8000;
#else
constexpr int kSteps = 60000;
#endif
constexpr int kThreads = 4;

// ---- the model ----

// What the oracle knows of a block. Its bytes begin and end with a number made from `seed`.
struct Block {
  size_t heap;  // index in the model
  unsigned char* start;
  size_t bytes;
  uint64_t seed;

  void fill() const {
    for (size_t i = 0; i < 8 && i < bytes; i++) start[i] = start[bytes - 1 - i] = byte(i);
    for (size_t i = 0; i < 8 && i < bytes; i++) start[i] = byte(i);
  }
  bool is_whole() const {
    bool whole = true;
    for (size_t i = 0; i < 8 && i < bytes; i++) {
      whole = whole && start[i] == byte(i);
      if (bytes >= 16) whole = whole && start[bytes - 1 - i] == byte(i);
    }
    return whole;
  }

 private:
  unsigned char byte(size_t i) const { return static_cast<unsigned char>(seed >> (8 * i)); }
};

class Model {
 public:
  static constexpr size_t kHeaps = 5;  // the last one is rdmalloc's own, of malloc
  static constexpr size_t kPlaces = 3000;

  Model() {
    for (size_t i = 0; i + 1 < kHeaps; i++) heaps_.push_back(std::make_unique<Heap>());
    heaps_.push_back(nullptr);
  }
  ~Model() {
    for (size_t i = 0; i + 1 < kHeaps; i++) check_and_destroy(i);
    for (auto& place : places_) {
      std::unique_ptr<Block> block(place.exchange(nullptr));
      if (block != nullptr) rdmalloc_free(block->start);
    }
  }

  // One operation of one thread.
  void step(Random& random) {
    if (random.below(kSteps / 8) == 0) {
      std::unique_lock world(world_);
      size_t at = random.below(kHeaps - 1);
      check_and_destroy(at);
      heaps_[at] = std::make_unique<Heap>();
      return;
    }
    std::shared_lock world(world_);
    std::atomic<Block*>& place = places_[random.below(kPlaces)];
    // Whose block it was does not matter: any thread frees and moves any block.
    std::unique_ptr<Block> block(place.exchange(nullptr));
    if (block == nullptr) {
      block = make(random);
    } else if (random.below(4) == 0) {
      move(*block, random);
    } else {
      EXPECT_TRUE(block->is_whole()) << "heap " << block->heap << ", " << block->bytes << " bytes";
      rdmalloc_free(block->start);
      return;
    }
    block.reset(place.exchange(block.release()));
    if (block == nullptr) return;
    EXPECT_TRUE(block->is_whole());
    rdmalloc_free(block->start);
  }

 private:
  static size_t size(Random& random) {
    return random.size_between(1, random.below(100) == 0 ? kMiB : 8 * kKiB);
  }

  std::unique_ptr<Block> make(Random& random) {
    auto block =
        std::make_unique<Block>(Block{random.below(kHeaps), nullptr, size(random), random.next()});
    Heap* heap = heaps_[block->heap].get();
    size_t alignment = size_t{1} << random.below(13);
    bool is_aligned = random.below(8) == 0, is_zeroed = random.below(4) == 0;
    void* start = nullptr;
    if (heap == nullptr) {
      start = rdmalloc_malloc(block->bytes);
    } else if (is_aligned) {
      start = heap->aligned(alignment, block->bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(start) % alignment, 0u);
    } else if (is_zeroed) {
      start = rdmalloc_heap_calloc(heap->get(), 1, block->bytes);
    } else {
      start = heap->malloc(block->bytes);
    }
    block->start = static_cast<unsigned char*>(start);
    if (heap != nullptr && is_zeroed && !is_aligned) {
      EXPECT_TRUE(block->start[0] == 0 && block->start[block->bytes - 1] == 0);
    }
    EXPECT_GE(rdmalloc_malloc_usable_size(start), block->bytes);
    EXPECT_EQ(range_of(start).heap, heap == nullptr ? nullptr : heap->get());
    block->fill();
    return block;
  }

  void move(Block& block, Random& random) {
    EXPECT_TRUE(block.is_whole());
    size_t bytes = size(random);
    Block smaller = block;
    smaller.bytes = std::min(bytes, block.bytes);
    smaller.fill();
    block.start = smaller.start = static_cast<unsigned char*>(rdmalloc_realloc(block.start, bytes));
    EXPECT_TRUE(smaller.is_whole());
    Heap* heap = heaps_[block.heap].get();
    EXPECT_EQ(range_of(block.start).heap, heap == nullptr ? nullptr : heap->get());
    block.bytes = bytes;
    block.fill();
  }

  // With the world stopped: the heap's blocks are exactly those the oracle knows.
  void check_and_destroy(size_t at) {
    std::map<void*, size_t> expected;
    size_t live_bytes = 0;
    for (auto& place : places_) {
      Block* block = place.load();
      if (block == nullptr || block->heap != at) continue;
      EXPECT_TRUE(block->is_whole());
      size_t usable = rdmalloc_malloc_usable_size(block->start);
      expected.emplace(block->start, usable);
      live_bytes += usable;
      place.store(nullptr);
      delete block;
    }
    std::map<void*, size_t> walked = walk(heaps_[at]->get());
    EXPECT_EQ(walked.size(), expected.size());
    EXPECT_TRUE(walked == expected);
    const unsigned char* end = nullptr;
    for (auto [block, bytes] : walked) {
      EXPECT_GE(static_cast<unsigned char*>(block), end) << "blocks overlap";
      end = static_cast<unsigned char*>(block) + bytes;
    }
    rdmalloc_heap_counters counters = heaps_[at]->counters();
    EXPECT_EQ(counters.live_blocks, expected.size());
    EXPECT_EQ(counters.live_bytes, live_bytes);
    EXPECT_GE(counters.span_bytes, live_bytes);
    heaps_[at] = nullptr;
  }

  std::shared_mutex world_;  // held by one alone to destroy a heap
  std::vector<std::unique_ptr<Heap>> heaps_;
  std::atomic<Block*> places_[kPlaces] = {};
};

TEST(HeapsModel, a_random_history_of_threads_keeps_to_the_oracle) {
  uint64_t seed = rdmalloc_test::test_seed(1);
  SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
  for (int round = 0; round < 3; round++) {
    Model model;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) {
      threads.emplace_back([&, i] {
        Random random(seed + static_cast<uint64_t>(round * 100 + i));
        for (int step = 0; step < kSteps && !::testing::Test::HasFailure(); step++)
          model.step(random);
      });
    }
    // Meanwhile what comes from outside: the purge thread's look, and statistics.
    for (int i = 0; i < 20; i++) {
      rdmalloc_purge(0);
      rdmalloc_test::counter("stats.heap_live_bytes");
    }
    for (std::thread& thread : threads) thread.join();
    if (HasFailure()) return;
  }
}

// ---- what threads leave behind ----

TEST(HeapsThreads, what_magazines_hold_does_not_grow_with_the_threads) {
  Heap heap;
  auto run = [&](int count) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; i++) {
      threads.emplace_back([&] {
        std::vector<void*> blocks;
        for (int round = 0; round < 3; round++) {
          for (size_t bytes : {64, 100, 1000, 4000, 30000})
            for (int k = 0; k < 40; k++) blocks.push_back(heap.malloc(bytes));
          for (void* block : blocks) rdmalloc_free(block);
          blocks.clear();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  for (int round = 0; round < 10; round++) run(20);
  EXPECT_EQ(heap.counters().live_blocks, 0u);
  // Sixteen shards of 256 KiB, whose blocks may pin slabs of 512 KiB: one for each magazine of the
  // five sizes at the most.
  EXPECT_LE(heap.counters().span_bytes, 16u * 5 * 512 * kKiB);
  rdmalloc_purge(0);
  EXPECT_EQ(heap.counters().span_bytes, 0u);
}

TEST(HeapsThreads, what_a_shard_holds_is_bounded_and_counted) {
  Heap heap;
  const rdmalloc::Heap& inside = *rdmalloc::heap_of_handle(reinterpret_cast<uintptr_t>(heap.get()));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&] {
      // More than a magazine of each class.
      std::vector<void*> blocks;
      for (size_t bytes = 64; bytes <= 32 * kKiB; bytes += bytes / 8)
        for (int k = 0; k < 70; k++) blocks.push_back(heap.malloc(bytes));
      for (void* block : blocks) rdmalloc_free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t most = 0;
  for (const rdmalloc::HeapShard& shard : inside.shards) {
    uint64_t held = 0;
    for (unsigned c = 1; c < rdmalloc::kClasses; c++)
      if (shard.magazines[c] != nullptr)
        held += uint64_t{shard.magazines[c]->count} * rdmalloc::block_bytes_of(c);
    EXPECT_EQ(held, shard.held());
    EXPECT_LE(held, rdmalloc::kShardBytes);
    most = std::max(most, held);
  }
  EXPECT_GT(most, rdmalloc::kShardBytes / 2);
}

TEST(HeapsThreads, a_producer_and_a_consumer_stay_bounded) {
  Heap heap;
  constexpr size_t kRing = 256;
  static std::atomic<void*> ring[kRing];
  constexpr size_t kBlocks = kSteps * 2;
  std::thread consumer([] {
    for (size_t i = 0; i < kBlocks; i++) {
      void* block = nullptr;
      while ((block = ring[i % kRing].exchange(nullptr)) == nullptr) std::this_thread::yield();
      rdmalloc_free(block);
    }
  });
  for (size_t i = 0; i < kBlocks; i++) {
    void* block = heap.malloc(2000);
    memset(block, 1, 2000);
    while (ring[i % kRing].load() != nullptr) std::this_thread::yield();
    ring[i % kRing] = block;
  }
  consumer.join();
  EXPECT_EQ(heap.counters().live_blocks, 0u);
  EXPECT_LE(heap.counters().most_span_bytes, 8 * kMiB);
}

TEST(HeapsThreads, the_budget_is_all_there_for_one_thread_after_others_used_it) {
  Heap heap(8 * kMiB);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; i++) {
    threads.emplace_back([&] {
      std::vector<void*> blocks;
      for (int k = 0; k < 300; k++)
        if (void* block = heap.malloc(3000)) blocks.push_back(block);
      for (void* block : blocks) rdmalloc_free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(heap.malloc(8 * kMiB), nullptr);
}

TEST(HeapsThreads, free_memory_of_an_idle_heap_comes_back_by_itself) {
  rdmalloc_test::set("purge.decay_ms", 20);
  ASSERT_EQ(rdmalloc_init(), 0);
  Heap heap;
  std::vector<void*> blocks;
  for (int i = 0; i < 30000; i++) blocks.push_back(heap.malloc(2000));
  for (void* block : blocks) memset(block, 1, 2000);
  for (void* block : blocks) rdmalloc_free(block);
  // With no further call for the heap.
  wait_until([&] { return heap.counters().span_bytes == 0; });
  EXPECT_EQ(rdmalloc_fini(), 0);
  rdmalloc_test::set("purge.decay_ms", 5000);
}

}  // namespace
