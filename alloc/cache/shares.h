// How much the cache of a thread may hold, by how many threads there are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc {

// What a thread's cache may hold, magazines included. A program of a few threads, a main thread and
// its workers, gets so much that batches of thousands of blocks of sixty classes stay in magazines
// (the program sh6 takes half the instructions it takes with the next step); the first threads of a
// process, as many as can run at once and some, a generous share; the n-th after them a share of
// kLaterBytes / n. Threads that fill their share when they come and are idle ever after then hold,
// all together, at most
//     kFewThreads * kFewShareBytes + (kFirstThreads - kFewThreads) * kFirstShareBytes +
//     sum of max(kLaterBytes / n, kSmallestShareBytes)
// which is below 50 MB for 1,000 of them.
inline constexpr std::uint64_t kFewThreads = 3;
inline constexpr std::uint64_t kFewShareBytes = 3200 << 10;
inline constexpr std::uint64_t kFirstThreads = 8;
inline constexpr std::uint64_t kFirstShareBytes = 1280 << 10;
inline constexpr std::uint64_t kLaterBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kSmallestShareBytes = 20 << 10;

constexpr std::uint64_t share_of(std::uint64_t threads) {
  if (threads <= kFewThreads) return kFewShareBytes;
  if (threads <= kFirstThreads) return kFirstShareBytes;
  std::uint64_t share = kLaterBytes / threads;
  return share < kSmallestShareBytes ? kSmallestShareBytes : share;
}
static_assert([] {
  std::uint64_t all = 0;
  for (std::uint64_t n = 1; n <= 1000; ++n) all += share_of(n);
  return all;
}() <= 50'000'000);

// Blocks of each class that the n-th thread may have beside its share, with their magazine. A share
// of many threads is less than what one of them cycles through in forty classes of up to 32 KiB:
// without these each trip to the slow path gave up a class to open another. All classes of a thread
// together come to 390 KB for one block of each; a thread that uses few has few.
constexpr std::uint32_t own_blocks_of(std::uint64_t threads) {
  return threads <= 32 ? 4 : threads <= 128 ? 2 : threads <= 256 ? 1 : 0;
}

// Address space for magazines and caches, in proportion to what there is: 1 GiB of magazines is 2
// million of them.
constexpr std::size_t reserved_for_magazines(std::size_t room) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  return room / 64 < kMost ? room / 64 : kMost;
}
constexpr std::size_t reserved_for_caches(std::size_t room) {
  constexpr std::size_t kMost = std::size_t{1} << 28;
  return room / 256 < kMost ? room / 256 : kMost;
}

}  // namespace rdmalloc
