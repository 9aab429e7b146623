// SPDX-License-Identifier: BSD-3-Clause
//
// Which size classes serve beside other threads (alloc/cache/coarse_classes.h).
#include "alloc/cache/coarse_classes.h"

#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>

#include <cerrno>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "alloc/cache/bins.h"
#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/take_back.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/size_class.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/slab.h"
#include "tests/support/first_test.h"
#include "tests/support/worker.h"

namespace {

using rdmalloc_test::allocate;
using rdmalloc_test::release;
using rdmalloc_test::Worker;

size_t usable_of(size_t bytes) {
  void* block = rdmalloc_malloc(bytes);
  const size_t usable = rdmalloc_malloc_usable_size(block);
  rdmalloc_free(block);
  return usable;
}
void begin_on(Worker& worker) {
  worker.run([] { rdmalloc_free(rdmalloc_malloc(100)); });
}

// Beside so many 2 MiB are little.
constexpr size_t kManyThreads = 13;

// Blocks at a limit, with no other memory.
class CoarseClassesLimit : public testing::Test {
 protected:
  static constexpr size_t kBytes = 1100, kRoom = size_t{2} << 20;
  // None of them is to find free blocks that another left.
  CoarseClassesLimit() {
    rdmalloc::cache_flush_this_thread();
    rdmalloc::depot_empty();
    for (unsigned c = 1; c < rdmalloc::kFirstSpanClass; c++) rdmalloc::slab_trim(c);
  }
  ~CoarseClassesLimit() override {
    release(live_);
    rdmalloc::page_heap_set_limit(UINT64_MAX);
  }
  void fill_to_limit_and_free_half() {
    rdmalloc::page_heap_set_limit(rdmalloc::page_heap_used_slices() * rdmalloc::kSliceBytes +
                                  kRoom);
    while (void* block = rdmalloc_malloc(kBytes)) live_.push_back(block);
    ASSERT_GT(live_.size(), kRoom / 1280 / 2);
    free_half();
  }
  // No slab is full then, and none is empty.
  void free_half() {
    const size_t usable = rdmalloc_malloc_usable_size(live_[0]);
    for (size_t i = 0; i < live_.size(); i += 2) {
      // The last ones were of longer classes.
      free_ += rdmalloc_malloc_usable_size(live_[i]) == usable;
      rdmalloc_free(std::exchange(live_[i], nullptr));
    }
  }
  // But for one block that each of `threads` may hold; and no cache is emptied for them.
  void take_half_again(size_t threads) {
    errno = 0;
    const uint32_t before = rdmalloc::take_backs();
    for (size_t taken = 0; taken + threads < free_; taken++) {
      live_.push_back(rdmalloc_malloc(kBytes));
      ASSERT_NE(live_.back(), nullptr) << taken << " of " << free_;
    }
    EXPECT_EQ(rdmalloc::take_backs(), before);
    EXPECT_EQ(errno, 0);
  }
  std::vector<void*> live_;
  size_t free_ = 0;
};

// Free blocks of classes that serve no size now are memory too, and all that there is here. Seen to
// fail with nothing but the classes that serve, and where all caches were emptied for each of them
// (1,125 times).
TEST_F(CoarseClassesLimit, free_blocks_that_serve_no_size_now_are_taken_at_a_limit) {
  if (rdmalloc_test::is_run_apart()) return;
  begin_on(*std::make_unique<Worker>());
  rdmalloc::coarse_end_refused();
  ASSERT_EQ(usable_of(kBytes), 1152u);
  fill_to_limit_and_free_half();
  std::deque<Worker> workers(kManyThreads);
  for (Worker& worker : workers) begin_on(worker);
  ASSERT_TRUE(rdmalloc::detail::are_coarse.load());
  take_half_again(workers.size());
  // Each block serves the sizes that it was made for, also beside threads that begin.
  EXPECT_FALSE(rdmalloc::detail::are_coarse.load());
  begin_on(workers.emplace_back());
  EXPECT_FALSE(rdmalloc::detail::are_coarse.load());
}

// Seen to fail where they were looked at after all caches had been emptied.
TEST_F(CoarseClassesLimit, free_blocks_of_coarser_classes_serve_once_classes_are_fine) {
  std::deque<Worker> workers(rdmalloc::kFineThreads + 1);
  for (Worker& worker : workers) begin_on(worker);
  ASSERT_EQ(usable_of(kBytes), 1280u);
  fill_to_limit_and_free_half();
  rdmalloc::detail::coarse_end_refused();
  ASSERT_FALSE(rdmalloc::detail::are_coarse.load());
  take_half_again(workers.size());
}

// Where it was widened first, 22 MiB of blocks of which half was free came to 200 slices more for
// 40. Seen to fail so.
TEST_F(CoarseClassesLimit, free_blocks_are_taken_before_a_small_cgroups_room_is_widened) {
  begin_on(*std::make_unique<Worker>());
  rdmalloc::coarse_end_refused();
  live_ = allocate(kRoom / kBytes, kBytes);
  ASSERT_EQ(rdmalloc_malloc_usable_size(live_.front()), 1152u);
  free_half();
  std::deque<Worker> workers(kManyThreads);
  for (Worker& worker : workers) begin_on(worker);
  ASSERT_TRUE(rdmalloc::detail::are_coarse.load());
  rdmalloc::page_heap_set_room(rdmalloc::page_heap_used_slices() * rdmalloc::kSliceBytes);
  take_half_again(workers.size());
  // There is memory, so what begins there is better served by fewer classes.
  EXPECT_TRUE(rdmalloc::detail::are_coarse.load());
  rdmalloc::page_heap_set_room(UINT64_MAX);
}

// Seen to fail where full slabs alone count.
TEST(CoarseClassesBegin, slabs_with_free_blocks_count_as_what_is_live) {
  constexpr size_t kBytes = 1100, kLiveBytes = size_t{16} << 20;
  begin_on(*std::make_unique<Worker>());
  rdmalloc::coarse_end_refused();
  ASSERT_EQ(usable_of(kBytes), 1152u);
  std::vector<void*> live = allocate(kLiveBytes / kBytes, kBytes);
  for (size_t i = 0; i < live.size(); i += 8) rdmalloc_free(std::exchange(live[i], nullptr));
  rdmalloc::cache_flush_this_thread();
  rdmalloc::depot_empty();
  // No slab is full but the last, which may have blocks of other tests.
  std::set<rdmalloc::SliceIndex> full;
  for (void* block : live) {
    if (block == nullptr) continue;
    const rdmalloc::SliceIndex slab =
        rdmalloc::arena.first[rdmalloc::arena.slice_of(reinterpret_cast<uintptr_t>(block))];
    if (rdmalloc::arena.span(slab).free_blocks == 0) full.insert(slab);
  }
  EXPECT_LE(full.size(), 1u);
  std::deque<Worker> workers(rdmalloc::kFineThreads + 1);
  for (Worker& worker : workers) begin_on(worker);
  EXPECT_EQ(usable_of(kBytes), 1152u);
  release(live);
}

// Of 192 shards all were counted each time: 314,000 instructions and 15,552 lines for a thirteenth
// thread that comes and goes, 28,000 instructions now. Seen to fail so.
TEST(CoarseClassesBegin, shards_where_nothing_changed_are_not_counted_again) {
  constexpr uint32_t kMark = 7;
  std::deque<Worker> workers;
  const auto begin_anew = [&] {
    rdmalloc::coarse_end_refused();  // no thread looks while classes are coarse
    workers.clear();
    for (size_t i = 0; i < rdmalloc::kFineThreads + 1; i++) begin_on(workers.emplace_back());
  };
  for (int round = 0; round < 3; round++) begin_anew();  // what they need is there then
  const unsigned count = rdmalloc::shard_count();
  std::vector<uint32_t> used(count), held(count);
  for (unsigned s = 0; s < count; s++) {
    used[s] = rdmalloc::shards[s].used_at_look;
    held[s] = rdmalloc::shards[s].held_at_look.exchange(kMark);
  }
  begin_anew();
  unsigned unchanged = 0;
  for (unsigned s = 0; s < count; s++) {
    if (rdmalloc::shards[s].used_at_look != used[s]) continue;
    unchanged++;
    EXPECT_EQ(rdmalloc::shards[s].held_at_look.exchange(held[s]), kMark) << s;
  }
  EXPECT_GT(unchanged, 0u);
}

// 20 threads after 100 of 6 MiB each, beside 64 or 192 shards that most of these had left, stayed
// fine for ever. Seen to fail where no thread looks at other shards than its own.
TEST(CoarseClassesBegin, shards_that_all_threads_have_left_are_looked_at) {
  constexpr uint32_t kMark = 1 << 20;
  std::deque<Worker> workers(rdmalloc::kFineThreads + 1);
  for (Worker& worker : workers) begin_on(worker);
  rdmalloc::coarse_end_refused();  // no thread looks while classes are coarse
  const unsigned count = rdmalloc::shard_count();
  for (unsigned s = 0; s < count; s++) rdmalloc::shards[s].used_at_look = kMark;
  // Each may be on a shard of its own, of which there is then one more.
  for (unsigned s = 0; s < rdmalloc::shard_count(); s += 8) begin_on(workers.emplace_back());
  for (unsigned s = 0; s < count; s++) EXPECT_NE(rdmalloc::shards[s].used_at_look, kMark) << s;
}

// Seen to fail where classes are fine again with 4 MiB for each thread: eight threads that passed
// that and went on replacing took 22 % more memory, four with blocks of one size 88 %; and where
// they are once there is one thread.
TEST(CoarseClassesBegin, what_became_coarse_stays_so_with_much_live_and_one_thread) {
  if (rdmalloc_test::is_run_apart()) return;
  constexpr size_t kBytes = 1100, kEachBytes = size_t{12} << 20;
  std::deque<Worker> workers(rdmalloc::kFineThreads + 1);
  for (Worker& worker : workers) begin_on(worker);
  ASSERT_EQ(usable_of(kBytes), 1280u);
  std::vector<std::vector<void*>> live(workers.size());
  for (size_t i = 0; i < workers.size(); i++)
    workers[i].run([&, i] { live[i] = allocate(kEachBytes / kBytes, kBytes); });
  EXPECT_EQ(usable_of(kBytes), 1280u);
  workers.clear();
  for (std::vector<void*>& blocks : live) release(blocks);
  EXPECT_EQ(usable_of(kBytes), 1280u);
}

// More threads than have classes of their own for all sizes. Seen to fail
// where classes are fine beside up to twelve.
class CoarseClasses : public testing::Test {
 protected:
  CoarseClasses() {
    for (Worker& worker : workers_) begin_on(worker);
  }
  std::deque<Worker> workers_{2};
};

struct Served {
  size_t bytes, alone, beside_many;
};
constexpr Served kServed[] = {{24, 32, 32},          {100, 112, 112},       {128, 128, 128},
                              {130, 144, 160},       {240, 240, 256},       {257, 288, 320},
                              {600, 640, 640},       {1100, 1152, 1280},    {4096, 4096, 4096},
                              {4097, 4608, 5120},    {6145, 6656, 7168},    {9000, 9216, 10240},
                              {20000, 20480, 20480}, {30000, 30720, 32768}, {40000, 65536, 65536}};

// Seen to fail with classes that never become coarse.
TEST_F(CoarseClasses, fewer_serve_beside_many_threads) {
  if (rdmalloc_test::is_run_apart()) return;
  for (const Served& served : kServed)
    EXPECT_EQ(usable_of(served.bytes), served.beside_many) << served.bytes;
}

// Also on the slow path, which every first block of a class takes. Seen to fail with a slow path
// that goes by the size alone.
TEST_F(CoarseClasses, the_slow_path_asks_for_the_same_classes) {
  if (rdmalloc_test::is_run_apart()) return;
  workers_.front().run([] {
    for (const Served& served : kServed) {
      rdmalloc::cache_flush_this_thread();
      EXPECT_EQ(usable_of(served.bytes), served.beside_many) << served.bytes;
      void* aligned = nullptr;
      rdmalloc::cache_flush_this_thread();
      if (served.bytes > rdmalloc::kSmallMax) continue;
      ASSERT_EQ(rdmalloc_posix_memalign(&aligned, 32, served.bytes), 0);
      EXPECT_GE(rdmalloc_malloc_usable_size(aligned), served.beside_many) << served.bytes;
      rdmalloc_free(aligned);
    }
  });
}

TEST_F(CoarseClasses, each_alignment_holds_in_all_of_them) {
  for (size_t alignment = 16; alignment <= rdmalloc::kSmallMax; alignment *= 2)
    for (size_t bytes = 1; bytes <= rdmalloc::kSmallMax; bytes += bytes / 3 + 1)
      for (int round = 0; round < 2; round++) {  // by the slow path, then by the fast one
        void* block = nullptr;
        ASSERT_EQ(rdmalloc_posix_memalign(&block, alignment, bytes), 0);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % alignment, 0u) << alignment << " " << bytes;
        rdmalloc_free(block);
      }
}

// What the calling thread has in its magazines.
size_t cached_bytes() {
  const rdmalloc::ThreadCache& cache = *rdmalloc::detail::this_cache;
  size_t bytes = 0;
  for (unsigned c = 1; c < rdmalloc::classes_end(cache); c++)
    bytes += size_t{rdmalloc::count_of(cache.bins[c], rdmalloc::cold_bin_of(cache, c))} *
             rdmalloc::block_bytes_of(c);
  return bytes;
}

// What they are for: 64 threads that replace 8 blocks of 1 to 8 KiB each. Of all classes they cache
// 332,712 bytes each.
TEST_F(CoarseClasses, threads_of_few_live_blocks_cache_less) {
  constexpr size_t kThreads = 64, kLive = 8, kOperations = 3000, kMostBytes = 300'000;
  std::deque<Worker> threads(kThreads);
  std::vector<std::vector<void*>> live(kThreads);
  size_t cached = 0;
  for (size_t i = 0; i < kThreads; i++)
    threads[i].run([&, i] {
      std::mt19937 random(static_cast<uint32_t>(i));
      live[i].resize(kLive);
      for (size_t done = 0; done < kOperations; done++) {
        void*& block = live[i][random() % kLive];
        rdmalloc_free(block);
        block = rdmalloc_malloc(1024 + random() % 7168);
      }
      cached += cached_bytes();
    });
  EXPECT_LE(cached / kThreads, kMostBytes);
  for (size_t i = 0; i < kThreads; i++) threads[i].run([&, i] { release(live[i]); });
}

}  // namespace
