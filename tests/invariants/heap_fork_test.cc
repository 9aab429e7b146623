// SPDX-License-Identifier: BSD-3-Clause
//
// I11 for heaps of the user: a child of a fork taken while other threads are in calls for heaps,
// also while they make and destroy heaps, has whole heaps, and can go on with each of them. Seen to
// fail: with the magazines kept, with nothing made anew, with a destroy that was under way not
// ended, with the locks of vanished threads freed before what they guard was made anew, with a
// resume (it hangs) that looks whether a heap is live under its lock only.
#include <errno.h>
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "alloc/heaps/heap.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::Random;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr int kForks = 300;

// 0 when `body` returned true in a child, in time.
int in_child(const std::function<bool()>& body) {
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(body() ? 0 : 1);
  }
  if (pid < 0) return -1;
  int status = 0;
  if (!rdmalloc_test::wait_with_limit(pid, 60000, &status)) {
    ADD_FAILURE() << "the child hangs";
    return -1;
  }
  return status;
}

struct Block {
  unsigned char* start = nullptr;
  size_t bytes = 0;
};

void fill(const Block& block, size_t mark) {
  block.start[0] = block.start[block.bytes - 1] = static_cast<unsigned char>(mark);
}
bool is_filled(const Block& block, size_t mark) {
  return block.start[0] == static_cast<unsigned char>(mark) &&
         block.start[block.bytes - 1] == static_cast<unsigned char>(mark);
}

// Mixed operations in a heap; false when a block lost its bytes or memory ran out.
bool operate(rdmalloc_heap* heap, uint64_t seed, int steps) {
  constexpr size_t kBlocks = 150;
  Block blocks[kBlocks] = {};
  Random random(seed);
  bool good = true;
  for (int step = 0; step < steps && good; step++) {
    size_t at = random.below(kBlocks);
    Block& block = blocks[at];
    if (block.start != nullptr) {
      good = is_filled(block, at);
      rdmalloc_free(block.start);
      block.start = nullptr;
      continue;
    }
    block.bytes = random.size_between(1, random.below(30) == 0 ? kMiB : 8 * kKiB);
    block.start = static_cast<unsigned char*>(rdmalloc_heap_malloc(heap, block.bytes));
    if (block.start == nullptr) return false;
    fill(block, at);
  }
  for (Block& block : blocks) rdmalloc_free(block.start);
  return good;
}

int count_blocks(rdmalloc_heap* heap) {
  int count = 0;
  rdmalloc_heap_walk(
      heap,
      [](void*, size_t, void* arg) {
        ++*static_cast<int*>(arg);
        return 0;
      },
      &count);
  return count;
}

uint64_t counter(const char* name) {
  uint64_t value = ~uint64_t{0};
  size_t size = sizeof value;
  rdmalloc_ctl(name, &value, &size, nullptr, 0);
  return value;
}

bool complain(const char* what) {
  dprintf(2, "child %d: %s\n", getpid(), what);
  return false;
}

// A span of a heap that is neither live nor gone.
int spans_without_heap() {
  int found = 0;
  rdmalloc_range_foreach(
      [](const rdmalloc_range* range, void* arg) {
        if ((range->flags & RDMALLOC_RANGE_HEAP) != 0 && range->heap == nullptr)
          ++*static_cast<int*>(arg);
        return 0;
      },
      &found);
  return found;
}

// Threads in two heaps, one that makes and destroys heaps, and one that purges.
class Storm {
 public:
  Storm() {
    for (rdmalloc_heap*& heap : heaps_) EXPECT_EQ(rdmalloc_heap_create(nullptr, &heap), 0);
    for (size_t i = 0; i < 3; i++) {
      start([this, i](uint64_t seed) { return operate(heaps_[i % 2], seed * 10 + i, 300); });
    }
    start([](uint64_t seed) {
      rdmalloc_heap* heap = nullptr;
      if (rdmalloc_heap_create(nullptr, &heap) != 0) return false;
      Random random(seed);
      for (int i = 0; i < 30; i++) rdmalloc_heap_malloc(heap, random.size_between(1, 100 * kKiB));
      return rdmalloc_heap_destroy(heap) == 0;
    });
    start([](uint64_t) { return rdmalloc_purge(0) >= 0; });
  }
  ~Storm() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    EXPECT_FALSE(is_broken_.load()) << "in the parent";
    for (rdmalloc_heap* heap : heaps_) {
      EXPECT_EQ(count_blocks(heap), 0);
      EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
    }
    EXPECT_EQ(counter("stats.heaps"), 0u);
  }
  rdmalloc_heap* const* heaps() const { return heaps_; }

 private:
  template <typename Function>
  void start(Function function) {
    threads_.emplace_back([this, function] {
      for (uint64_t seed = 1; !stop_.load(); seed++)
        if (!function(seed)) is_broken_ = true;
    });
  }
  rdmalloc_heap* heaps_[2] = {};
  std::atomic<bool> stop_{false}, is_broken_{false};
  std::vector<std::thread> threads_;
};

// In the child of a storm: each of its heaps is whole, works, and ends.
bool live_on(const Storm& storm, uint64_t seed) {
  rdmalloc_heap* fresh = nullptr;
  if (rdmalloc_heap_create(nullptr, &fresh) != 0) return complain("no heap to be had");
  if (spans_without_heap() != 0) return complain("spans of no heap");
  for (rdmalloc_heap* heap : {storm.heaps()[0], storm.heaps()[1], fresh}) {
    int before = count_blocks(heap);
    std::thread other([&] {
      if (!operate(heap, seed + 1, 300)) _exit(3);
    });
    if (!operate(heap, seed, 600)) return complain("a block lost its bytes");
    other.join();
    if (count_blocks(heap) != before) return complain("blocks were lost");
  }
  if (rdmalloc_purge(0) < 0) return complain("no purge");
  for (rdmalloc_heap* heap : {storm.heaps()[0], storm.heaps()[1], fresh})
    if (rdmalloc_heap_destroy(heap) != 0) return complain("a heap can't be destroyed");
  // One that another thread was making, or that it had, may be left: no thread of the child knows
  // it.
  if (counter("stats.heaps") > 1) return complain("heaps are left");
  return spans_without_heap() == 0 || complain("spans of no heap are left");
}

TEST(HeapFork, I11_children_of_a_storm_in_heaps_go_on_with_each_of_them) {
  Storm storm;
  for (int i = 0; i < kForks; i++)
    ASSERT_EQ(in_child([&] { return live_on(storm, static_cast<uint64_t>(i) * 7); }), 0)
        << "fork " << i;
}

TEST(HeapFork, I11_children_of_children_do_so_too) {
  Storm storm;
  for (int i = 0; i < kForks / 10; i++)
    ASSERT_EQ(in_child([&] {
                std::atomic<bool> stop{false};
                std::thread other([&] {
                  for (uint64_t seed = 0; !stop.load(); seed++)
                    operate(storm.heaps()[0], seed, 100);
                });
                int status = in_child([&] { return live_on(storm, 5); });
                stop = true;
                other.join();
                return status == 0 && live_on(storm, 6);
              }),
              0)
        << "fork " << i;
}

// The second fork comes at any moment of the recovery that the first child's other thread began.
TEST(HeapFork, I11_a_fork_amid_a_childs_recovery_is_recovered_from_too) {
  Storm storm;
  for (int i = 0; i < kForks / 3; i++)
    ASSERT_EQ(in_child([&] {
                std::atomic<bool> stop{false}, has_begun{false};
                std::thread other([&] {
                  has_begun = true;
                  for (uint64_t seed = 0; !stop.load(); seed++)
                    operate(storm.heaps()[0], seed, 100);
                });
                while (!has_begun.load()) {
                }
                for (int spin = 0; spin < i % 50 * 1500; spin++) asm volatile("");
                int status = in_child([&] { return live_on(storm, 5); });
                stop = true;
                other.join();
                return status == 0 && live_on(storm, 6);
              }),
              0)
        << "fork " << i;
}

TEST(HeapFork, I11_the_childs_frees_and_its_destroy_are_its_own) {
  rdmalloc_heap* heap = nullptr;
  ASSERT_EQ(rdmalloc_heap_create(nullptr, &heap), 0);
  std::vector<Block> blocks(3000);
  for (size_t i = 0; i < blocks.size(); i++) {
    blocks[i].bytes = i % 100 == 0 ? kMiB : 64 + i;
    blocks[i].start = static_cast<unsigned char*>(rdmalloc_heap_malloc(heap, blocks[i].bytes));
    fill(blocks[i], i);
  }
  for (bool destroys : {false, true}) {
    EXPECT_EQ(in_child([&] {
                for (size_t i = 0; i < blocks.size(); i++) {
                  if (!is_filled(blocks[i], i)) return false;
                  fill(blocks[i], i + 1);
                  if (!destroys) rdmalloc_free(blocks[i].start);
                }
                if (count_blocks(heap) != (destroys ? 3000 : 0)) return false;
                return rdmalloc_heap_destroy(heap) == 0 && rdmalloc_heap_destroy(heap) == -EINVAL;
              }),
              0);
  }
  EXPECT_EQ(count_blocks(heap), 3000);
  for (size_t i = 0; i < blocks.size(); i++) ASSERT_TRUE(is_filled(blocks[i], i));
  EXPECT_EQ(rdmalloc_heap_destroy(heap), 0);
}

// As the child has it whose fork came while another thread was making a heap: no handle yet, and
// the lock of a thread that is no more.
TEST(HeapFork, I11_a_resume_passes_by_a_heap_that_was_being_made) {
  std::uint64_t handle = 0;
  rdmalloc::HeapPlan plan = {};
  plan.budget_bytes = kMiB;
  plan.has_regions = true;
  ASSERT_EQ(rdmalloc::heap_create(plan, &handle), 0);
  rdmalloc::Heap& heap = *rdmalloc::heap_of_handle(handle);
  heap.handle.store(0);
  rdmalloc::heap_orphan(rdmalloc::slot_of(heap));
  rdmalloc::heaps_bind_again();
  heap.span_lock.reset();
  heap.handle.store(handle);
  EXPECT_EQ(rdmalloc_heap_destroy(reinterpret_cast<rdmalloc_heap*>(handle)), 0);
}

}  // namespace
