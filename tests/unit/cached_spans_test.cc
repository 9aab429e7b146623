// SPDX-License-Identifier: BSD-3-Clause
//
// Spans of 64 to 256 KiB that threads cache: blocks of slabs of one block (size_class.h).
//
// Seen to fail: a_freed_span with kSpanThreads of 0; threads_after_the_first with spans counted as
// small blocks are, with kOneSpanThreads of 64, and with a share for each thread; calloc
// with a cached span that is not cleared; more_than_threads with empty slabs of spans that stay;
// an_address_inside without the look at arena.first; a_buffer with places of spans that count as
// dirty; one_that_grows without kGrowingBytes; one_freed_twice without the look at the span's word
// in free_locked(); only_those_freed_last with others taken ahead, and with the one freed last
// first; those_of_one_thread with a depot that keeps them, and with one that never does;
// longer_blocks without give_up_spans(); arrays_that without it in large_allocate_growing();
// dozens_of_spans with bins of two magazines, with 4 MiB for the first thread, and with a share
// that stays; eight_spans with no loans of spans, and with loans that stay lent in a child;
// threads_come_to_equal_parts with loans beyond a part to the last; lengths with any that there is
// room for; the_fast_path_knows_them with steps that are never entered, and with steps that stay.
#include "alloc/slabs/cached_spans.h"

#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#include "alloc/cache/bin_table.h"
#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/shares.h"
#include "alloc/cache/take_back.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/shard.h"
#include "alloc/pages/dirty.h"
#include "tests/support/counters.h"
#include "tests/support/first_test.h"
#include "tests/support/process.h"
#include "tests/support/worker.h"

namespace {

using rdmalloc_test::counter;

constexpr size_t kKiB = 1024;

uintptr_t number(const void* block) {
  return reinterpret_cast<uintptr_t>(block);
}

void* filled(size_t bytes) {
  void* block = rdmalloc_malloc(bytes);
  memset(block, 0xa5, bytes);
  return block;
}

bool is_cached(const void* block) {
  return rdmalloc::is_span_class(rdmalloc::arena.class_at(rdmalloc::arena.slice_of(number(block))));
}

// With a cache of its own, and without what tests before it left there.
template <class Body>
void on_a_thread(Body body) {
  std::thread([&] { body(); }).join();
}

// In a process of its own: threads of the others are seen at several processors.
TEST(CachedSpans, those_of_one_thread_are_free_for_all_and_not_in_the_depot) {
  if (rdmalloc_test::is_run_apart()) return;
  constexpr unsigned kClass = rdmalloc::span_class_of(128 * kKiB);
  ASSERT_EQ(rdmalloc::shard_count(), 1u);
  auto blocks_in_depot = [] {
    std::vector<void*> blocks;
    for (int i = 0; i < 100; i++) blocks.push_back(filled(128 * kKiB));
    for (void* block : blocks) rdmalloc_free(block);
    return rdmalloc::depot_blocks(kClass);
  };
  EXPECT_EQ(blocks_in_depot(), 0u);
  std::atomic<bool> is_here{false}, may_end{false};
  std::thread other([&] {
    rdmalloc_free(filled(100));
    is_here = true;
    while (!may_end) std::this_thread::yield();
  });
  while (!is_here) std::this_thread::yield();
  EXPECT_GT(blocks_in_depot(), 0u) << "another thread may want them";
  may_end = true;
  other.join();
}

TEST(CachedSpans, a_freed_span_is_the_threads_next_one_of_its_length) {
  on_a_thread([] {
    for (size_t bytes :
         {33 * kKiB, 64 * kKiB, 65 * kKiB, 128 * kKiB, 129 * kKiB, 192 * kKiB, 256 * kKiB}) {
      void* block = filled(bytes);
      EXPECT_TRUE(is_cached(block)) << bytes;
      rdmalloc_free(filled(bytes / 40));
      rdmalloc_free(block);
      EXPECT_EQ(rdmalloc_malloc(bytes), block) << bytes;
      rdmalloc_free(block);
    }
  });
}

// The table's pages for spans are backed where spans are used again, and where all are of one node.
TEST(CachedSpans, the_fast_path_knows_them_from_the_second_on) {
  on_a_thread([] {
    for (size_t bytes : {64 * kKiB, 128 * kKiB, 192 * kKiB, 256 * kKiB}) {
      size_t least = bytes - 64 * kKiB + 1,
             bin = rdmalloc::class_of(bytes) * sizeof(rdmalloc::Bin) / 8;
      if (bytes == 64 * kKiB) least = 32 * kKiB + 1;
      rdmalloc::bin_table_note_nodes();
      rdmalloc_free(filled(bytes));
      EXPECT_EQ(rdmalloc::bin_offset_of(bytes), 0u) << "it is the first";
      rdmalloc_free(filled(bytes));
      EXPECT_EQ(rdmalloc::bin_offset_of(bytes), bin);
      EXPECT_EQ(rdmalloc::bin_offset_of(least), bin);
      EXPECT_NE(rdmalloc::bin_offset_of(least - 1), bin);
      if (bytes < 256 * kKiB) {
        EXPECT_EQ(rdmalloc::bin_offset_of(bytes + 1), 0u);
      }
      rdmalloc::bin_table_note_nodes();
      EXPECT_EQ(rdmalloc::bin_offset_of(bytes), 0u) << "there may be others' blocks in the cache";
    }
  });
}

// What one thread frees in one go and allocates again stays with it, while there are few.
TEST(CachedSpans, dozens_of_spans_stay_with_one_of_few_threads) {
  auto rounds = [] {
    std::vector<void*> blocks(40);
    for (int round = 0; round < 20; round++) {
      for (size_t i = 0; i < blocks.size(); i++)
        blocks[i] = rdmalloc_malloc((i % 2 == 0 ? 64 : 128) * kKiB);
      for (void* block : blocks) rdmalloc_free(block);
    }
  };
  on_a_thread([&] {
    rounds();
    const rdmalloc::ThreadCache& mine = *rdmalloc::detail::this_cache;
    uint32_t before = mine.slow_events;
    rounds();
    EXPECT_LT(mine.slow_events - before, 20u);
    EXPECT_LE(mine.span_bytes, rdmalloc::span_share_bytes(mine));
    // Others come, and it may have no more than they.
    std::atomic<int> are_here{0};
    std::atomic<bool> may_end{false};
    std::vector<std::thread> others;
    for (int i = 0; i < 2; i++)
      others.emplace_back([&] {
        rdmalloc_free(filled(100));
        ++are_here;
        while (!may_end) std::this_thread::yield();
      });
    while (are_here != 2) std::this_thread::yield();
    before = mine.slow_events;
    std::vector<void*> more;
    while (mine.slow_events - before < 8) more.push_back(rdmalloc_malloc(1000));
    for (void* block : more) rdmalloc_free(block);
    for (int i = 0; i < 3; i++) rounds();
    EXPECT_LE(mine.span_bytes, rdmalloc::kMostSpanShareBytes);
    may_end = true;
    for (std::thread& other : others) other.join();
  });
}

// So many at once.
void use_spans(size_t bytes, size_t count) {
  std::vector<void*> blocks(count);
  for (int round = 0; round < 20; round++) {
    for (void*& block : blocks) block = rdmalloc_malloc(bytes);
    for (void* block : blocks) rdmalloc_free(block);
  }
}

// What forty threads need beside what is their own.
TEST(CachedSpans, eight_spans_stay_with_each_of_many_threads) {
  std::deque<rdmalloc_test::Worker> workers(40);
  for (int round = 0; round < 4; round++)
    for (auto& worker : workers) worker.run([] { use_spans(64 * kKiB, 8); });
  uint64_t bytes = 0;
  for (auto& worker : workers)
    worker.run([&] {
      const rdmalloc::ThreadCache& mine = *rdmalloc::detail::this_cache;
      uint32_t before = mine.slow_events;
      use_spans(64 * kKiB, 8);
      EXPECT_LT(mine.slow_events - before, 20u);
      EXPECT_LE(mine.span_bytes, rdmalloc::span_share_bytes(mine));
      bytes += mine.span_bytes;
    });
  EXPECT_GE(bytes, 40u * 8 * 64 * kKiB);
  // A child has this thread only. Another was about to note what it had borrowed.
  uint64_t own = rdmalloc::detail::this_cache->span_loan.bytes;
  ASSERT_GT(rdmalloc::loans.lent_span_bytes.load(), own);
  rdmalloc::loans.lent_span_bytes += rdmalloc::kLoanBytes;
  pid_t child = fork();
  if (child == 0) {
    rdmalloc_free(rdmalloc_malloc(3000));  // the slow path looks
    _exit(rdmalloc::loans.lent_span_bytes.load() == own ? 0 : 1);
  }
  rdmalloc::loans.lent_span_bytes -= rdmalloc::kLoanBytes;
  int status = -1;
  ASSERT_TRUE(rdmalloc_test::wait_with_limit(child, 30000, &status));
  EXPECT_EQ(status, 0);
  workers.clear();
  EXPECT_EQ(rdmalloc::loans.lent_span_bytes.load(), own);
}

// Where all want more than there is.
TEST(CachedSpans, threads_come_to_equal_parts_of_the_spans_that_all_may_have) {
  std::deque<rdmalloc_test::Worker> workers(60);
  for (int round = 0; round < 12; round++)
    for (auto& worker : workers) worker.run([] { use_spans(128 * kKiB, 60); });
  uint64_t bytes = 0;
  constexpr uint64_t kPart = rdmalloc::kLentSpanBytes / 61;
  for (auto& worker : workers)
    worker.run([&] {
      const rdmalloc::ThreadCache& mine = *rdmalloc::detail::this_cache;
      bytes += mine.span_bytes;
      EXPECT_GE(mine.span_bytes, kPart / 2);
    });
  EXPECT_LE(bytes, rdmalloc::kSpansOfAllBytes);
  EXPECT_GE(bytes, rdmalloc::kLentSpanBytes);
  EXPECT_LE(rdmalloc::loans.lent_span_bytes.load(), rdmalloc::kLentSpanBytes);
  EXPECT_GE(rdmalloc::loans.lent_span_bytes.load(), rdmalloc::kLentSpanBytes * 3 / 4);
}

// In a cgroup that became small a thread may have more of its own than any may hold, and a loan
// that is less than the difference. Seen to fail where it gives back the difference: its loan came
// to be near 2^64.
TEST(CachedSpans, a_loan_that_goes_back_is_no_more_than_was_lent) {
  on_a_thread([] {
    for (int round = 0; round < 5; round++) {
      std::vector<void*> some = rdmalloc_test::allocate(40, 128 * kKiB);
      rdmalloc_test::release(some);
    }
    rdmalloc::ThreadCache& cache = *rdmalloc::detail::this_cache;
    ASSERT_GT(cache.span_loan.bytes, 0u);
    std::atomic<uint64_t>& backed = rdmalloc::dirty_limits.backed_bytes;
    const uint64_t was = backed, own = cache.span_share;
    backed = 1024 * kKiB;
    cache.span_share += cache.span_loan.bytes;
    EXPECT_TRUE(rdmalloc::return_span_excess(cache));
    EXPECT_EQ(cache.span_loan.bytes, 0u);
    EXPECT_EQ(rdmalloc::loans.lent_span_bytes, 0u);
    backed = was;
    cache.span_share = own;
  });
}

// It keeps one of each when it is idle, and its loan is gone.
TEST(CachedSpans, lengths_are_opened_within_what_is_a_threads_own) {
  std::deque<rdmalloc_test::Worker> workers(rdmalloc::kAllSpansThreads + 1);
  for (auto& worker : workers) worker.run([] { rdmalloc_free(rdmalloc_malloc(1)); });
  workers.back().run([] {
    use_spans(64 * kKiB, 10);
    EXPECT_GT(rdmalloc::detail::this_cache->span_loan.bytes, 0u);
    void* second = rdmalloc_malloc(192 * kKiB);
    EXPECT_TRUE(is_cached(second)) << "64 and 192 of 258 KiB";
    void* third = rdmalloc_malloc(128 * kKiB);
    EXPECT_FALSE(is_cached(third));
    rdmalloc_free(second);
    rdmalloc_free(third);
  });
}

TEST(CachedSpans, a_span_is_aligned_and_as_long_as_its_class) {
  std::vector<void*> blocks;
  for (int i = 0; i < 50; i++) {
    for (size_t bytes : {40 * kKiB, 100 * kKiB, 150 * kKiB, 256 * kKiB}) {
      blocks.push_back(filled(bytes));
      size_t length = (bytes + 64 * kKiB - 1) / (64 * kKiB) * (64 * kKiB);
      EXPECT_EQ(rdmalloc_malloc_usable_size(blocks.back()), length);
      EXPECT_EQ(number(blocks.back()) % (64 * kKiB), 0u) << bytes;
    }
    // Holes of one length where the other one's may lie.
    if (i % 2 == 0) rdmalloc_free(blocks[blocks.size() - 2]), blocks.erase(blocks.end() - 2);
  }
  void* aligned = rdmalloc_aligned_alloc(64 * kKiB, 40 * kKiB);
  EXPECT_EQ(number(aligned) % (64 * kKiB), 0u);
  rdmalloc_free(aligned);
  for (void* block : blocks) rdmalloc_free(block);
}

TEST(CachedSpans, calloc_clears_a_cached_one_and_touches_no_new_one) {
  rdmalloc_purge(0);
  on_a_thread([] {
    for (size_t bytes : {50 * kKiB, 100 * kKiB, 200 * kKiB}) {
      void* block = filled(bytes);
      rdmalloc_free(block);
      auto* cleared = static_cast<char*>(rdmalloc_calloc(1, bytes));
      EXPECT_EQ(cleared, block);
      for (size_t i = 0; i < bytes; i++) ASSERT_EQ(cleared[i], 0) << i;
      auto* another = static_cast<char*>(rdmalloc_calloc(1, bytes));
      EXPECT_FALSE(is_cached(another)) << "the page heap knows what reads as zero";
      for (size_t i = 0; i < bytes; i++) ASSERT_EQ(another[i], 0) << i;
      rdmalloc_free(cleared);
      rdmalloc_free(another);
    }
  });
}

// A program that goes on to longer blocks: an MPI rank held 5 MiB of spans beside 25 of new pages.
TEST(CachedSpans, longer_blocks_take_their_pages_before_new_ones) {
  ASSERT_GE(rdmalloc_purge(0), 0);
  on_a_thread([] {
    constexpr size_t kSpans = 8, kLong = 8;  // a magazine full
    void* spans[kSpans];
    void* longer[kLong];
    for (void*& span : spans) span = filled(256 * kKiB);
    EXPECT_TRUE(is_cached(spans[kSpans - 1]));
    for (void* span : spans) rdmalloc_free(span);
    EXPECT_GE(rdmalloc::detail::this_cache->span_bytes, 2048 * kKiB);
    size_t reused = 0;
    for (void*& block : longer) {
      block = filled(1024 * kKiB);
      for (void* span : spans)
        if (number(span) - number(block) < 1024 * kKiB) reused += 256 * kKiB;
    }
    EXPECT_GE(reused, 1024 * kKiB);
    for (void* block : longer) rdmalloc_free(block);
  });
}

TEST(CachedSpans, arrays_that_take_new_pages_give_them_up) {
  ASSERT_GE(rdmalloc_purge(0), 0);
  on_a_thread([] {
    constexpr size_t kSpans = 8;
    void* spans[kSpans];
    void* array = filled(150 * kKiB);
    for (void*& span : spans) span = filled(256 * kKiB);
    for (void* span : spans) rdmalloc_free(span);
    array = rdmalloc_realloc(array, 3 * 1024 * kKiB);
    void* longer = filled(1024 * kKiB);  // where the spans were
    size_t reused = 0;
    for (void* span : spans)
      if (number(span) - number(longer) < 1024 * kKiB) reused += 256 * kKiB;
    EXPECT_EQ(reused, 1024 * kKiB);
    rdmalloc_free(longer);
    rdmalloc_free(array);
  });
}

// Not as slabs that are kept for the next blocks.
TEST(CachedSpans, more_than_threads_and_depot_keep_is_free_for_all) {
  uint64_t used = counter("stats.used_bytes");
  on_a_thread([] {
    std::vector<void*> blocks;
    for (int i = 0; i < 400; i++) blocks.push_back(filled((i % 4 + 1) * 64 * kKiB));
    for (void* block : blocks) rdmalloc_free(block);
  });
  EXPECT_LT(counter("stats.used_bytes"), used + 10240 * kKiB) << "of 65 MB";
}

TEST(CachedSpans, what_a_thread_caches_is_within_a_share_of_its_own) {
  on_a_thread([] {
    std::vector<void*> blocks;
    for (int i = 0; i < 500; i++) blocks.push_back(filled((i % 4 + 1) * 64 * kKiB));
    for (void* block : blocks) rdmalloc_free(block);
    const rdmalloc::ThreadCache& cache = *rdmalloc::detail::this_cache;
    EXPECT_GT(rdmalloc::held(cache), 64u * kKiB);
    EXPECT_GT(cache.span_bytes, 64u * kKiB);
    EXPECT_LE(cache.span_bytes, rdmalloc::span_share_bytes(cache));
    EXPECT_LE(rdmalloc::charged(cache), 64u * kKiB) << "they left less for small blocks";
  });
}

// Idle ones would keep one of each length each. Those after them have one of the shortest.
TEST(CachedSpans, threads_after_the_first_have_none) {
  std::vector<std::thread> threads;
  std::atomic<uint32_t> here{0}, have_spans{0}, have_long_ones{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> may_end{false};
  constexpr uint32_t kThreads = rdmalloc::kOneSpanThreads + 20;
  for (uint32_t i = 0; i < kThreads; i++)
    threads.emplace_back([&] {
      bool has_any = false;
      for (size_t length : {128 * kKiB, 64 * kKiB}) {
        void* block = filled(length);
        if (is_cached(block)) has_any = true;
        if (is_cached(block) && length != 64 * kKiB) have_long_ones++;
        rdmalloc_free(block);
      }
      if (has_any) have_spans++;
      bytes += rdmalloc::detail::this_cache->span_bytes;
      here++;
      while (!may_end) std::this_thread::yield();
    });
  while (here != kThreads) std::this_thread::yield();
  may_end = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(have_spans, rdmalloc::kOneSpanThreads);
  EXPECT_GT(have_spans, 4 * rdmalloc::kSpanThreads - 20);
  EXPECT_LE(have_long_ones, rdmalloc::kSpanThreads);
  EXPECT_GT(have_long_ones, 0u);
  EXPECT_LE(bytes, rdmalloc::kSpansOfAllBytes);
}

// However many there are by then: memory that was short once takes what threads hold, not what they
// may hold. Seen to fail with the share of the thread that would come next.
TEST(CachedSpans, a_take_back_leaves_threads_their_shares) {
  std::deque<rdmalloc_test::Worker> workers(rdmalloc::kOneSpanThreads + 10);
  auto look = [&](int count, auto look_at) {
    for (auto& worker : workers)
      worker.run([&] {
        std::vector<void*> blocks;  // more than it has
        for (int i = 0; i < count; i++) blocks.push_back(rdmalloc_malloc(300));
        for (void* block : blocks) rdmalloc_free(block);
        look_at(*rdmalloc::detail::this_cache);
      });
  };
  std::vector<uint64_t> shares, longs;
  look(10, [&](const rdmalloc::ThreadCache& mine) {
    shares.push_back(mine.span_share);
    longs.push_back(mine.most_long_slices);
  });
  EXPECT_GE(shares.front(), 640 * kKiB);
  EXPECT_EQ(shares.back(), 0u);
  rdmalloc::take_backs_ask();
  size_t i = 0;
  look(100, [&](const rdmalloc::ThreadCache& mine) {
    EXPECT_EQ(mine.take_backs_seen, rdmalloc::take_backs());
    EXPECT_EQ(mine.span_share, shares[i]) << i;
    EXPECT_EQ(mine.most_long_slices, longs[i]) << i;
    i++;
  });
}

// What no thread caches any more is at its place for the next buffer of its length, whatever was
// allocated in between.
TEST(CachedSpans, a_buffer_that_no_thread_caches_comes_back_at_its_address) {
  on_a_thread([] {
    rdmalloc_purge(0);
    void* block = filled(200 * kKiB);
    ASSERT_TRUE(is_cached(block));
    rdmalloc_free(block);
    rdmalloc_caches_flush();
    std::vector<void*> others;
    for (size_t i = 0; i < 8; i++) others.push_back(filled(60 * kKiB));
    void* again = rdmalloc_malloc(250 * kKiB);
    EXPECT_EQ(again, block);
    rdmalloc_free(again);
    for (void* other : others) rdmalloc_free(other);
  });
}

// A magazine is filled at once where the page heap keeps runs of that length, from the last one on.
TEST(CachedSpans, only_those_freed_last_are_taken_ahead) {
  rdmalloc_caches_flush();
  ASSERT_GE(rdmalloc_purge(0), 0);
  constexpr unsigned kClass = rdmalloc::kFirstSpanClass + 3;
  void* blocks[8];
  void* three[3];
  for (void*& block : three) {
    ASSERT_EQ(rdmalloc::cached_spans_take(0, kClass, blocks, 8), 1u) << "of clean pages";
    block = blocks[0];
  }
  rdmalloc::cached_spans_give_back(kClass, three, 3);
  ASSERT_EQ(rdmalloc::cached_spans_take(0, kClass, blocks, 8), 3u);
  for (int i = 0; i < 3; i++) EXPECT_EQ(blocks[i], three[i]) << "the last one is used first";
  rdmalloc::cached_spans_give_back(kClass, blocks, 3);
}

TEST(CachedSpans, one_that_grows_has_room_behind_it) {
  on_a_thread([] {
    void* block = rdmalloc_realloc(filled(150 * kKiB), 200 * kKiB);
    EXPECT_FALSE(is_cached(block));
    EXPECT_EQ(static_cast<unsigned char*>(block)[150 * kKiB - 1], 0xa5);
    EXPECT_EQ(rdmalloc_realloc(block, 220 * kKiB), block);
    rdmalloc_free(block);
  });
}

TEST(CachedSpansDeathTest, an_address_inside_one_is_reported_when_it_goes_back) {
  EXPECT_DEATH(
      {
        auto* block = static_cast<char*>(filled(200 * kKiB));
        if (is_cached(block)) {
          rdmalloc_free(block + 64 * kKiB);
          rdmalloc_caches_flush();
        }
      },
      "free\\(\\) of an address inside a block");
}

// With another one between, so that it is not the magazine that finds it. Seen to fail with the
// page heap's answer ignored.
TEST(CachedSpansDeathTest, one_freed_twice_is_reported_when_it_goes_back) {
  for (size_t bytes : {60 * kKiB, 200 * kKiB})
    EXPECT_DEATH(
        {
          void* block = filled(bytes);
          void* other = filled(bytes);
          if (is_cached(block)) {
            rdmalloc_free(block);
            rdmalloc_free(other);
            rdmalloc_free(block);
            rdmalloc_caches_flush();
          }
        },
        "double free\\(\\) of");
}

}  // namespace
