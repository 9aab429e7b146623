// SPDX-License-Identifier: BSD-3-Clause
//
// The shadow model: random calls of the whole family, and beside the allocator a map of what is
// live. No two live blocks may share a byte, counted to the end of malloc_usable_size; every block
// keeps its own bytes from the call that made it to the call that ends it; what is asked to be
// zero or aligned is. The seed is printed; TEST_SEED repeats a run.
//
// Seen to fail: with a libc malloc made to hand out one live block a second time after 10,000 calls
// (step and both blocks printed). A usable size 16 bytes too long ended in libc's own check first.
#include <gtest/gtest.h>
#include <pthread.h>
#include <string.h>

#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/alloc_under_test.h"
#include "tests/support/process.h"
#include "tests/support/words.h"

namespace {

using rdmalloc_test::fill_words;
using rdmalloc_test::first_unlike;
using rdmalloc_test::Random;
using rdmalloc_test::test_seed;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
// A block above this has only its ends and a byte a page written: the model must not spend its
// time on page faults.
constexpr size_t kFilledWhole = 64 * kKiB;

// All live blocks of the process: end address by start address. One lock; this is no speed test.
class Shadow {
 public:
  // Says whether [start, start+bytes) was free of live blocks, and enters it.
  ::testing::AssertionResult enter(const void* block, size_t bytes) {
    auto start = reinterpret_cast<uintptr_t>(block);
    uintptr_t end = start + (bytes == 0 ? 1 : bytes);
    std::lock_guard<std::mutex> guard(mutex_);
    auto above = live_.lower_bound(start);
    if (above != live_.end() && above->first < end) return overlap(start, end, *above);
    if (above != live_.begin() && std::prev(above)->second > start)
      return overlap(start, end, *std::prev(above));
    live_.emplace(start, end);
    return ::testing::AssertionSuccess();
  }
  ::testing::AssertionResult leave(const void* block) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (live_.erase(reinterpret_cast<uintptr_t>(block)) == 1) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << block << " was not live: the test itself is wrong";
  }
  size_t count() const { return live_.size(); }

 private:
  static ::testing::AssertionResult overlap(uintptr_t start, uintptr_t end,
                                            const std::pair<const uintptr_t, uintptr_t>& other) {
    return ::testing::AssertionFailure()
           << "new block [" << reinterpret_cast<void*>(start) << ", "
           << reinterpret_cast<void*>(end) << ") overlaps live block ["
           << reinterpret_cast<void*>(other.first) << ", " << reinterpret_cast<void*>(other.second)
           << ")";
  }
  std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> live_;
};

struct Block {
  unsigned char* start = nullptr;
  size_t bytes = 0;  // usable: the whole of it is ours to write
  uint64_t tag = 0;
};

auto words_of(const Block& block) {
  return [tag = block.tag](size_t at) { return rdmalloc_test::mixed_word(at, tag); };
}
unsigned char byte_of(const Block& block, size_t at) {
  return rdmalloc_test::byte_of_word(words_of(block)(at & ~size_t{7}), at);
}
// Calls visit(offset) for the bytes the model writes and checks in a block that is not filled
// whole.
template <typename Visit>
bool each_checked_byte(size_t bytes, Visit visit) {
  for (size_t at = 0; at < 256; at++)
    if (!visit(at) || !visit(bytes - 1 - at)) return false;
  for (size_t at = 4096; at<bytes; at += bytes> kMiB ? 64 * kKiB : 4096)
    if (!visit(at)) return false;
  return true;
}
void write_pattern(const Block& block) {
  if (block.bytes <= kFilledWhole) return fill_words(block.start, 0, block.bytes, words_of(block));
  each_checked_byte(block.bytes, [&](size_t at) {
    block.start[at] = byte_of(block, at);
    return true;
  });
}
::testing::AssertionResult has_pattern(const Block& block, size_t bytes) {
  size_t bad = 0;
  bool whole = false;
  if (block.bytes <= kFilledWhole) {
    size_t end = bytes < block.bytes ? bytes : block.bytes;
    bad = first_unlike(block.start, end, words_of(block));
    whole = bad == end;
  } else {
    whole = each_checked_byte(block.bytes, [&](size_t at) {
      bad = at;
      return at >= bytes || block.start[at] == byte_of(block, at);
    });
  }
  if (whole) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "block " << static_cast<void*>(block.start) << " of " << block.bytes << " bytes: byte "
         << bad << " is " << int{block.start[bad]} << ", was written as "
         << int{byte_of(block, bad)};
}

// One thread's part of the model.
class Player {
 public:
  Player(Shadow& shadow, uint64_t seed, size_t slots, size_t largest)
      : shadow_(shadow), random_(seed), blocks_(slots), largest_(largest) {}

  void play(size_t steps) {
    for (size_t step = 0; step < steps; step++) {
      step_ = step;
      Block& block = blocks_[random_.below(blocks_.size())];
      if (block.start == nullptr)
        make(block, some_size());
      else if (random_.below(5) == 0)
        resize(block);
      else
        end(block);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  // Blocks of one size, all of them taken and then all freed, among longer ones that stay a while:
  // so a thread comes to have more than it may hold, and to hold next to nothing of a class.
  void burst(size_t rounds) {
    std::vector<Block> taken;
    for (step_ = 0; step_ < rounds && !::testing::Test::HasFatalFailure(); step_++) {
      size_t bytes = random_.below(2) == 0 ? 64 * kKiB : size_t{1} << (6 + random_.below(11));
      taken.resize(8 + random_.below(80));
      for (Block& block : taken) make(block, bytes - random_.below(bytes / 32));
      if (step_ % 4 == 0) end_all();
      for (size_t i = 0; i < 3; i++)
        make(blocks_[step_ % 4 * 3 + i], random_.below(2) == 0 ? 128 * kKiB : 250 * kKiB);
      for (Block& block : taken) end(block);
    }
  }
  void end_all() {
    for (Block& block : blocks_)
      if (block.start != nullptr) end(block);
  }
  // The blocks change hands: the other thread checks and frees them.
  std::vector<Block> give_away() {
    std::vector<Block> given(blocks_.size());
    given.swap(blocks_);
    return given;
  }
  void take_over(std::vector<Block> blocks) {
    for (Block& block : blocks)
      if (block.start != nullptr) blocks_.push_back(block);
  }

 private:
  size_t some_size() {
    switch (random_.below(16)) {
      case 0:
        return random_.below(3);  // 0, 1, 2
      case 1:
        return random_.size_between(1, largest_);  // anything
      case 2:
        return (size_t{1} << random_.below(17)) + random_.below(3) - 1;  // round powers of 2
      case 3:
        return random_.size_between(kKiB, 256 * kKiB);
      default:
        return random_.size_between(1, 4 * kKiB);
    }
  }

  void make(Block& block, size_t bytes) {
    void* got = nullptr;
    size_t alignment = 16;
    bool zeroed = false;
    switch (random_.below(8)) {
      case 0:
        got = aut::calloc(1, bytes);
        zeroed = true;
        break;
      case 1:
        alignment = size_t{8} << random_.below(14);
        ASSERT_EQ(aut::posix_memalign(&got, alignment, bytes), 0);
        break;
      case 2:
        got = aut::realloc(nullptr, bytes);
        break;
      default:
        got = aut::malloc(bytes);
        break;
    }
    ASSERT_NE(got, nullptr) << bytes << " bytes at step " << step_;
    ASSERT_TRUE(aut::is_aligned(got, alignment)) << got << " " << alignment << " step " << step_;
    block.start = static_cast<unsigned char*>(got);
    block.bytes = aut::usable_size(got);
    ASSERT_GE(block.bytes, bytes) << "step " << step_;
    ASSERT_TRUE(shadow_.enter(got, block.bytes)) << "step " << step_;
    if (zeroed) {
      bool zero = false;
      if (bytes <= kFilledWhole)
        zero = first_unlike(block.start, bytes, [](size_t) { return uint64_t{0}; }) == bytes;
      else
        zero = each_checked_byte(bytes, [&](size_t at) { return block.start[at] == 0; });
      ASSERT_TRUE(zero) << "calloc of " << bytes << " bytes at step " << step_;
    }
    block.tag = random_.next();
    write_pattern(block);
  }

  void resize(Block& block) {
    size_t bytes = some_size() + 1;
    ASSERT_TRUE(has_pattern(block, block.bytes)) << "before realloc, step " << step_;
    // Out of the model first: another thread may get the old place before we hear of the new one.
    ASSERT_TRUE(shadow_.leave(block.start));
    void* got = aut::realloc(block.start, bytes);
    ASSERT_NE(got, nullptr) << bytes << " bytes at step " << step_;
    Block moved = block;
    moved.start = static_cast<unsigned char*>(got);
    moved.bytes = aut::usable_size(got);
    ASSERT_GE(moved.bytes, bytes);
    ASSERT_TRUE(shadow_.enter(got, moved.bytes)) << "realloc, step " << step_;
    size_t common = block.bytes < bytes ? block.bytes : bytes;
    block.start = moved.start;  // the old length decides which bytes were written
    ASSERT_TRUE(has_pattern(block, common)) << "after realloc to " << bytes << ", step " << step_;
    moved.tag = random_.next();
    block = moved;
    write_pattern(block);
  }

  void end(Block& block) {
    ASSERT_TRUE(has_pattern(block, block.bytes)) << "before free, step " << step_;
    ASSERT_TRUE(shadow_.leave(block.start));
    aut::free(block.start);
    block = Block{};
  }

  Shadow& shadow_;
  Random random_;
  std::vector<Block> blocks_;
  size_t largest_;
  size_t step_ = 0;
};

// ThreadSanitizer has little to say of one thread, and races show in the first thousands of steps.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 1;
constexpr size_t kSteps = 20000, kSmallSteps = 50000, kStepsOfFour = 10000, kRounds = 3,
                 kBursts = 5;
#else
constexpr uint64_t kSeeds = 3;
constexpr size_t kSteps = 60000, kSmallSteps = 300000, kStepsOfFour = 50000, kRounds = 12,
                 kBursts = 20;
#endif

TEST(MallocOverlap, one_thread_all_sizes_to_64_mib) {
  for (uint64_t seed = 1; seed <= kSeeds; seed++) {
    uint64_t of_history = test_seed(seed);
    SCOPED_TRACE("TEST_SEED=" + std::to_string(of_history));
    Shadow shadow;
    Player player(shadow, of_history, 400, 64 * kMiB);
    player.play(kSteps);
    player.end_all();
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(shadow.count(), 0u);
  }
}

TEST(MallocOverlap, one_thread_small_sizes_with_many_live_blocks) {
  uint64_t seed = test_seed(21);
  SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
  Shadow shadow;
  Player player(shadow, seed, 30000, 8 * kKiB);
  player.play(kSmallSteps);
  player.end_all();
}

// Threads whose players have so many blocks each, of up to `largest`, and play so.
template <typename Play>
void play_on_threads(uint64_t first_seed, uint64_t count, size_t slots, size_t largest, Play play) {
  uint64_t seed = test_seed(first_seed);
  SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
  Shadow shadow;
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < count; i++) {
    threads.emplace_back([&, i] {
      Player player(shadow, seed + i, slots, largest);
      play(player);
      player.end_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(shadow.count(), 0u);
}

TEST(MallocOverlap, four_threads_with_blocks_of_their_own) {
  play_on_threads(31, 4, 1000, 16 * kMiB, [](Player& player) { player.play(kStepsOfFour); });
}

TEST(MallocOverlap, four_threads_that_free_each_others_blocks) {
  uint64_t seed = test_seed(41);
  SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
  Shadow shadow;
  constexpr size_t kThreads = 4;
  std::vector<std::vector<Block>> table(kThreads);
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, kThreads);
  std::vector<std::thread> threads;
  for (size_t me = 0; me < kThreads; me++) {
    threads.emplace_back([&, me] {
      for (size_t round = 0; round < kRounds; round++) {
        Player player(shadow, seed + me * 100 + round, 600, 2 * kMiB);
        player.play(3000);
        table[me] = player.give_away();
        pthread_barrier_wait(&barrier);
        Player heir(shadow, seed + me * 100 + round + 50, 0, 2 * kMiB);
        heir.take_over(std::move(table[(me + round + 1) % kThreads]));
        heir.end_all();
        pthread_barrier_wait(&barrier);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pthread_barrier_destroy(&barrier);
  EXPECT_EQ(shadow.count(), 0u);
}

// Beside so many a thread may hold few blocks of a class. Seen to fail, in one run of ten, with
// blocks that the depot put beyond a magazine's slots.
TEST(MallocOverlap, many_threads_with_bursts_of_one_size) {
  play_on_threads(61, 40, 12, 256 * kKiB, [](Player& player) { player.burst(kBursts); });
}

TEST(MallocOverlap, threads_that_end_leave_their_blocks_to_others) {
  uint64_t seed = test_seed(51);
  SCOPED_TRACE("TEST_SEED=" + std::to_string(seed));
  Shadow shadow;
  std::vector<Block> left;
  for (uint64_t generation = 0; generation < 60; generation++) {
    std::thread([&] {
      Player player(shadow, seed + generation, 300, kMiB);
      player.take_over(std::move(left));
      player.play(2000);
      left = player.give_away();
    }).join();
    ASSERT_FALSE(HasFailure()) << "generation " << generation;
  }
  Player last(shadow, seed, 0, kMiB);
  last.take_over(std::move(left));
  last.end_all();
  EXPECT_EQ(shadow.count(), 0u);
}

}  // namespace
