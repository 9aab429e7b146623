#include "alloc/cache/bin_limits.h"

#include "alloc/cache/bins.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/slow_events.h"
#include "alloc/os/topology.h"

namespace rdmalloc {
namespace {

// Blocks that a class starts with in a thread; doubled at each trip to the slow path. With eight,
// threads that live for a few hundred blocks of all sizes touch 5 % more memory (the programs
// thread-churn and leaks).
constexpr std::uint32_t kFirstLimit = 4;
// The same of a thread beside more than kFewThreads, until it has borrowed. What it does not use
// lies between the blocks of others: 64 threads of ten blocks each have 5.9 MiB resident with four,
// 5.0 with one, and 0.1 less than that where the third to eighth, too, begin with one: 24 KiB of
// magazines, the rest blocks. And a share of many pays for more classes: 64 threads of 16 B to 4
// KiB take half the time.
constexpr std::uint32_t kFirstLimitOfMany = 1;

struct MostBlocks {
  std::uint8_t of[kClasses] = {};
};
// Beside many in one magazine, spans in two: with one, workers that pass on blocks of 128 KiB take
// 1.8 times as long.
constexpr MostBlocks make_most(bool are_many) {
  MostBlocks table;
  for (unsigned c = 1; c < kClasses; ++c) {
    const ClassInfo& info = class_info(c);
    std::uint32_t most = are_many ? most_of_many(info.block_bytes) : most_of_few(info.block_bytes);
    std::uint32_t room = are_many ? info.magazine_max : info.bin_max;
    if (is_span_class(c))
      most = are_many ? 2 * room : room;
    else if (most > room)
      most = room;
    table.of[c] = static_cast<std::uint8_t>(most);
  }
  return table;
}
constexpr MostBlocks kMostOfMany = make_most(true), kMostOfFew = make_most(false);

std::uint32_t most_of(unsigned size_class, std::uint64_t threads) {
  return (threads <= kFirstThreads ? kMostOfFew : kMostOfMany).of[size_class];
}

// Whether the thread takes or frees many blocks of one class in one go.
bool is_batch(const ThreadCache& cache, unsigned size_class) {
  return cache.trips_in_a_row >= kTripsOfBatch && !is_span_class(size_class);
}

// Whether one of each length that the thread uses is within what is its own: idle threads keep
// those when their loans are gone.
bool may_open_span(ThreadCache& cache, unsigned size_class) {
  std::uint64_t kept = cost_of(size_class, 1, Length::kWhole);
  for (unsigned c = kFirstSpanClass; c < kClasses; ++c)
    if (cold_bin_of(cache, c).loaded != nullptr) kept += cost_of(c, 1, Length::kWhole);
  return kept <= cache.span_share;
}

// The most that the class may hold, up to `most`.
std::uint32_t most_of_now(const ThreadCache& cache, unsigned size_class, std::uint32_t most) {
  std::uint32_t threads = loans.threads.load(std::memory_order_relaxed);
  if (threads > 1 && !is_batch(cache, size_class)) {
    std::uint32_t beside_others = most_of(size_class, threads);
    if (most > beside_others) most = beside_others;
  }
  // Of several nodes blocks of the others leave a bin only when it is full: not long ones.
  std::uint32_t two = 2u * class_info(size_class).magazine_max;
  return os::node_count() != 1 && !is_span_class(size_class) && most > two ? two : most;
}

// A magazine at most at first, then another, or what is taken in one go.
std::uint32_t next_limit(const ColdBin& cold, unsigned size_class, std::uint32_t most) {
  const ClassInfo& info = class_info(size_class);
  std::uint32_t limit = std::uint32_t{cold.limit} * 2;
  if (cold.limit >= info.magazine_max && most <= info.bin_max)
    limit = cold.limit + info.magazine_max;
  else if (cold.limit < info.magazine_max && limit > info.magazine_max)
    limit = info.magazine_max;
  return limit < most ? limit : most;
}

}  // namespace

bool is_kept_short(unsigned size_class, const ColdBin& cold) {
  std::uint32_t threads = loans.threads.load(std::memory_order_relaxed);
  return threads > 1 && !is_span_class(size_class) && cold.limit <= most_of(size_class, threads);
}

bool open_class(ThreadCache& cache, unsigned size_class) {
  ColdBin& cold = cold_bin_of(cache, size_class);
  std::uint64_t share = share_bytes(cache);
  std::uint32_t threads = loans.threads.load(std::memory_order_relaxed);
  bool is_beside_others = threads > kFewThreads && share <= kFirstShareBytes;
  std::uint32_t limit = is_beside_others ? kFirstLimitOfMany : kFirstLimit;
  bool is_short = is_beside_others && begins_short(size_class);
  Length length = is_short ? Length::kShort : Length::kWhole;
  std::uint64_t sheet =
      is_short && cache.free_short == nullptr ? sizeof(Magazine) - own_part_of_sheet(cache) : 0;
  auto charge = [&] {
    return cost_of(size_class, limit, length) - own_part(cache, size_class, limit, length) + sheet;
  };
  // One class may have a quarter of the share, and a single block in any case. Beside many threads
  // it begins with that where more would take other classes' place: 32 threads of 1 to 32 KiB left
  // the fast path at each second operation.
  while (limit > 1 && charge() > share / 4) limit /= 2;
  bool are_many = threads > kFirstThreads;
  if (limit > 1 && are_many && !may_hold(cache, charge(), size_class)) limit = 1;
  // Two of 16 bytes: with one, four such threads had their blocks in one cache line.
  if (limit == 1 && size_class == 1) limit = 2;
  // Of small blocks one in any case; for a span no other class is given up.
  if (!is_span_class(size_class))
    make_share(cache, charge(), size_class);
  else if (span_room(cache) < charge() || !may_open_span(cache, size_class) ||
           !may_hold(cache, charge(), size_class))
    return false;
  Magazine* magazine = take_of_length(cache, length);
  if (magazine == nullptr) return false;
  magazine->count = 0;
  if (size_class >= classes_end(cache))
    cache.classes_end.store(static_cast<std::uint8_t>(size_class + 1), std::memory_order_relaxed);
  order_for_fork();  // a child looks at no class beyond
  cold.loaded = magazine;
  cold.length = length;
  cold.limit = static_cast<std::uint8_t>(limit);
  cold.is_taken_from = false;
  if (!cache.comes_after_others && cold.steals.left_out_next == 0)
    cold.steals = {kFirstRefillsAlone, kFirstRefillsAlone};
  add_held(cache, size_class, cost_of(size_class, cold), own_part(cache, size_class, cold));
  set_bin(cache.bins[size_class], cold, 0);
  return true;
}

// Beside others that hand over 64 blocks of 16 KiB, 4 threads would have 13 % more resident at
// their peak and 16 40 %: what each keeps for its next ones is another's meanwhile. And what is on
// its way from a cache to the slabs is lost to a child of a fork.
std::uint32_t most_of_bin(const ThreadCache& cache, unsigned size_class) {
  std::uint32_t usual = class_info(size_class).bin_max;
  bool is_alone = loans.threads.load(std::memory_order_relaxed) == 1;
  return usual < kBatchBlocks && is_alone && is_batch(cache, size_class) ? kPairSlots : usual;
}

// Above a magazine by another or not at all: by a third of one, 64 threads of 16 B to 4 KiB took
// 5 % more memory. Of a class that the thread only frees, within a part of its share.
bool grow_limit(ThreadCache& cache, unsigned size_class, std::uint32_t most) {
  ColdBin& cold = cold_bin_of(cache, size_class);
  std::uint32_t limit = next_limit(cold, size_class, most_of_now(cache, size_class, most));
  // Of spans as many as it may hold: they are long, and a share is for them alone.
  if (limit > cold.limit && is_span_class(size_class))
    limit = cold.limit + more_spans(cache, size_class, limit - cold.limit);
  if (limit <= cold.limit) return false;
  bool is_too_short = limit > slots_of(cold);
  Length length = !is_too_short            ? cold.length
                  : limit > kMagazineSlots ? Length::kPair
                                           : Length::kWhole;
  std::uint64_t more = cost_of(size_class, limit, length) - cost_of(size_class, cold);
  std::uint64_t own =
      own_part(cache, size_class, limit, length) - own_part(cache, size_class, cold);
  bool is_allowed = cold.is_taken_from || is_span_class(size_class)
                        ? may_hold(cache, more - own, size_class)
                        : may_hold_of_freed(cache, more - own);
  if (!is_allowed || (is_too_short && !move_to(cache, size_class, length))) return false;
  cold.limit = static_cast<std::uint8_t>(limit);
  add_held(cache, size_class, more, own);
  if (is_span_class(size_class) && limit > class_info(size_class).magazine_max)
    defer_buffers(cache);
  return true;
}

// So that fewer of those blocks wait in the thread's magazine, to be its next ones, when it has
// freed them all. The next refills let it grow again.
void shrink_limit(ThreadCache& cache, unsigned size_class) {
  ColdBin& cold = cold_bin_of(cache, size_class);
  std::uint32_t limit = cold.limit / 2u < kFirstLimit ? kFirstLimit : cold.limit / 2u;
  if (limit >= cold.limit || is_span_class(size_class)) return;
  subtract_held(cache, size_class, cost_of(size_class, cold), own_part(cache, size_class, cold));
  cold.limit = static_cast<std::uint8_t>(limit);
  add_held(cache, size_class, cost_of(size_class, cold), own_part(cache, size_class, cold));
}

}  // namespace rdmalloc
