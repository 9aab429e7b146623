// How much the cache of a thread may hold, by how many threads there are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alloc/core/size_class.h"

namespace rdmalloc {

// What a thread's cache may hold in any case, magazines included: each of the first kFirstThreads
// threads a generous share, the n-th thread after them kLaterBytes / n.
inline constexpr std::uint64_t kFirstThreads = 8;
inline constexpr std::uint64_t kFirstShareBytes = 384 << 10;
inline constexpr std::uint64_t kLaterBytes = std::uint64_t{5} << 19;
inline constexpr std::uint64_t kSmallestShareBytes = 8 << 10;

constexpr std::uint64_t share_of(std::uint64_t threads) {
  if (threads <= kFirstThreads) return kFirstShareBytes;
  std::uint64_t share = kLaterBytes / threads;
  return share < kSmallestShareBytes ? kSmallestShareBytes : share;
}

// Beside it threads borrow, in parts of kLoanBytes, while they use it: together lent_bytes_of() at
// most, one until its share and its loan are kMostShareBytes. With that batches of
// thousands of blocks of sixty classes stay in magazines (the program sh6 takes half the
// instructions it takes with 1280 KiB; 200 live blocks of 16 B to 32 KiB take 9 ns, with 3200 KiB
// 12). A loan goes back as its thread gives up the classes it was for, as it ends, or is idle
// (reclaim.h). decisions/0011-loans-and-idle-threads.md
inline constexpr std::uint64_t kLoanBytes = std::uint64_t{16} << 10;
// Each thread may always borrow its part, lent_bytes_of() / threads. It may borrow more while one
// in kLeftForParts of all is left. Where less is left, a thread that has more than its part gives
// some back at its trips to the slow path, kMostReturnedBytes at once. Without that, of 64 threads
// at work the first ten had 1.1 MiB each and left the fast path at 0.01 % of their operations, the
// others had nothing, and left it at 37 %. decisions/0018-equal-parts.md
inline constexpr std::uint64_t kLeftForParts = 16;
inline constexpr std::uint64_t kMostReturnedBytes = std::uint64_t{128} << 10;
// Ahead of what a thread needs, at most so much at once.
inline constexpr std::uint64_t kMostAheadBytes = std::uint64_t{512} << 10;
// Trips to its slow path for which a thread that was refused does not ask again.
inline constexpr std::uint32_t kEventsRefused = 64;
inline constexpr std::uint64_t kMostShareBytes = 4800 << 10;
// With 14 MiB, 64 and 256 threads of 16 B to 4 KiB took a fifth longer, with 18 not less than now.
inline constexpr std::uint64_t kLentBytes = std::uint64_t{16} << 20;
// Of up to so many threads: 16 that replace 64 blocks of 4 to 16 KiB take 5.9 ns for 9.5, with 5 %
// more memory. What threads borrowed before there were more stays lent until they give it back.
inline constexpr std::uint64_t kLenders = 32, kLentOfFewBytes = std::uint64_t{18} << 20;
constexpr std::uint64_t lent_bytes_of(std::uint64_t threads) {
  return threads <= kLenders ? kLentOfFewBytes : kLentBytes;
}

// What 1,000 threads hold that fill all that as they come, beside their own blocks (see below):
static_assert([] {
  std::uint64_t all = kLentOfFewBytes;
  for (std::uint64_t n = 1; n <= 1000; ++n) all += share_of(n);
  return all;
}() <= 38'000'000);

// What a thread may hold while it takes a class that it only frees: those blocks are wanted
// elsewhere. A main thread that frees what its workers left keeps 0.8 MB of it instead of 4.8 (the
// program leaks). With half of that the programs leaks and sh8 would take 1 % more instructions.
constexpr std::uint64_t free_only_share_of(std::uint64_t threads) {
  if (threads <= 3) return kMostShareBytes / 6;
  return threads <= kFirstThreads ? 320 << 10 : share_of(threads) / 4;
}

// Blocks of each class that the n-th thread may have beside its share, with their magazine: so many
// of classes above kLongestOfTwo, and of shorter ones two, or none. A share of many threads is less
// than what one of them cycles through in forty classes of up to 32 KiB: without these each trip to
// the slow path gave up a class to open another. All together come to 940 KB beside few, 530 KB
// beside many; a thread that uses few classes has few. With two of the long ones beside many, 64 to
// 256 threads that replace 32 blocks of 1 to 32 KiB have 8 % more memory; with one beside few, one
// that is refused a loan leaves the fast path half as often again.
inline constexpr std::uint32_t kLongestOfTwo = 4096;
constexpr std::uint32_t own_blocks_of(std::uint64_t threads) {
  return threads <= kFirstThreads ? 2 : threads <= 256 ? 1 : 0;
}

// Blocks of a class that a thread beside others may hold at most: so many that their cube times the
// bytes of one is no more than this. Between full and empty what comes and goes by chance stays for
// the square of their number in operations; so many of each class make all trips to the slow path
// fewest that a given memory can, where classes are used alike. Few and many threads: up to
// kFirstThreads, and more. Without any, a hundred threads that hand on blocks of 32 to 256 B had
// two full magazines of each class, 11 MiB, and two that hand on 64 of 512 B to 8 KiB 5 MiB, with
// 0.5 live. Half and twice as many bytes, time and memory of 34 rows beside many: 1.04 and 0.99,
// 0.96 and 1.03; of 27 beside few: 1.05 and 0.99, 1.01 and 1.01.
// decisions/0011-loans-and-idle-threads.md
inline constexpr std::uint64_t kCubeOfManyBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kCubeOfFewBytes = std::uint64_t{64} << 20;
constexpr std::uint32_t cube_root_of(std::uint64_t cube_bytes, std::uint32_t block_bytes) {
  std::uint64_t most = 1;
  while ((most + 1) * (most + 1) * (most + 1) * block_bytes <= cube_bytes) ++most;
  return static_cast<std::uint32_t>(most);
}
constexpr std::uint32_t most_of_many(std::uint32_t block_bytes) {
  return cube_root_of(kCubeOfManyBytes, block_bytes);
}
constexpr std::uint32_t most_of_few(std::uint32_t block_bytes) {
  return cube_root_of(kCubeOfFewBytes, block_bytes);
}
static_assert(most_of_many(64) == 40 && most_of_many(1024) == 16 && most_of_many(32768) == 5);
static_assert(most_of_few(64) == 101 && most_of_few(1024) == 40 && most_of_few(32768) == 12);

// But beside few or many a class may hold what its thread takes and frees in one go: only such a
// class comes to the slow path so often with no other between. Beside many, 200 blocks of 32 or 256
// bytes take half the time, with 1 % more memory.
inline constexpr std::uint8_t kTripsOfBatch = 4;

// What the n-th thread may hold of spans (kSpanClasses) in any case, beside all that: one of each
// length, of later threads one of 256 KiB, and beyond kSpanThreads one of 64: 256 threads of 64 B
// to 64 KiB took half as long again without. Counted with the rest they would leave no room for
// small blocks. It is what idle threads keep (reclaim.h), 39 MB in all, and beside it, where they
// had many, the one that each freed last, 29 MB (0021). More of them a thread borrows like blocks,
// 61 MB in all, one thread up to kMostSpanShareBytes, and the first more while there are at most
// kFewThreads (what it frees in one go and allocates again, 64 blocks of 32 to 128 KiB, took three
// times as long with 4 MiB; with 16 phases of bench_memory has 5 % more, with 8 2 %). Where
// RDMALLOC_LIMIT or a small cgroup leaves `backed_bytes`, all those threads together an eighth of
// it at most: what idle ones keep can't be taken from them. decisions/0018-equal-parts.md
inline constexpr std::uint64_t kAllSpansThreads = 24, kSpanThreads = 64, kOneSpanThreads = 256;
inline constexpr std::uint64_t kFewThreads = 2;
inline constexpr std::uint64_t kSpansOfAllBytes = 61'000'000;
inline constexpr std::uint64_t kMostSpanShareBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kLentSpanBytes = std::uint64_t{20} << 20;

constexpr std::uint64_t span_part_of(std::uint64_t backed_bytes) {
  return backed_bytes / 8 / kSpanThreads;
}
// With their magazines.
inline constexpr std::uint64_t kAllLengthsBytes = 642 << 10, kLongestSpanBytes = 258 << 10,
                               kShortestSpanBytes = 65 << 10;
// What a limit leaves of that, whichever thread has it.
constexpr std::uint64_t span_share_within(std::uint64_t share, std::uint64_t backed_bytes) {
  if (share <= kShortestSpanBytes && backed_bytes / 8 < kSpansOfAllBytes) return 0;
  std::uint64_t most = span_part_of(backed_bytes);
  return share < most ? share : most;
}
constexpr std::uint64_t span_share_of(std::uint64_t threads, std::uint64_t backed_bytes) {
  std::uint64_t share = threads <= kAllSpansThreads  ? kAllLengthsBytes
                        : threads <= kSpanThreads    ? kLongestSpanBytes
                        : threads <= kOneSpanThreads ? kShortestSpanBytes
                                                     : 0;
  return span_share_within(share, backed_bytes);
}
static_assert([] {
  std::uint64_t all = kLentSpanBytes;
  for (std::uint64_t n = 1; n <= kOneSpanThreads; ++n) all += span_share_of(n, UINT64_MAX);
  return all;
}() <= kSpansOfAllBytes);
// What one of so many may have with its loan.
constexpr std::uint64_t most_span_share_of(std::uint64_t threads, std::uint64_t backed_bytes) {
  std::uint64_t most = span_part_of(backed_bytes);
  std::uint64_t share = threads <= kFewThreads ? kMostSpanShareBytes * 3 / 2 : kMostSpanShareBytes;
  return share < most ? share : most;
}
// And all of them.
constexpr std::uint64_t lent_span_bytes_of(std::uint64_t backed_bytes) {
  std::uint64_t left = backed_bytes / 8 - kSpanThreads * span_share_of(1, backed_bytes);
  return left < kLentSpanBytes ? left : kLentSpanBytes;
}

// Slices of the longest block that the n-th thread may keep (long_block.h): 144 MiB in all, of
// threads that each free such blocks and allocate them again all the time. Of a limit as above.
constexpr std::uint32_t long_slices_within(std::uint32_t slices, std::uint64_t backed_bytes) {
  std::uint64_t most = span_part_of(backed_bytes) / kSliceBytes;
  return slices < most ? slices : static_cast<std::uint32_t>(most);
}
constexpr std::uint32_t long_slices_of(std::uint64_t threads, std::uint64_t backed_bytes) {
  std::uint32_t slices = threads <= kFirstThreads       ? 64
                         : threads <= 2 * kFirstThreads ? 32
                         : threads <= kSpanThreads      ? 16
                         : threads <= kOneSpanThreads   ? 4
                                                        : 0;
  return long_slices_within(slices, backed_bytes);
}

static_assert([] {
  std::uint64_t slices = 0;
  for (std::uint64_t n = 1; n <= 1000; ++n) slices += long_slices_of(n, UINT64_MAX);
  return slices * kSliceBytes;
}() == std::uint64_t{144} << 20);

// Threads that have caches at all, where RDMALLOC_LIMIT or a small cgroup leaves `backed_bytes`:
// one for each 256 KiB. One block of each class stays with an idle thread (reclaim.h) and keeps its
// slab in use, so the slabs of a thousand would be all of 32 MiB. The others work on the slabs.
constexpr std::uint64_t most_caches(std::uint64_t backed_bytes) {
  return backed_bytes / (std::uint64_t{256} << 10);
}

// Address space for magazines and caches, in proportion to what there is: 1 GiB of magazines is 2
// million of them.
constexpr std::size_t reserved_for_magazines(std::size_t room) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  return room / 64 < kMost ? room / 64 : kMost;
}
// Of this a third is for their long bins.
constexpr std::size_t reserved_for_caches(std::size_t room) {
  constexpr std::size_t kMost = std::size_t{1} << 28, kLeast = std::size_t{128} << 10;
  std::size_t bytes = room / 256 < kMost ? room / 256 : kMost;
  return bytes < kLeast ? kLeast : bytes;
}

}  // namespace rdmalloc
