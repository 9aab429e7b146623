#include "alloc/cache/slow_events.h"

#include "alloc/cache/bins.h"
#include "alloc/cache/coarse_classes.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/long_block.h"
#include "alloc/cache/shards.h"
#include "alloc/cache/shares.h"
#include "alloc/core/options.h"
#include "alloc/core/purge_signal.h"
#include "alloc/pages/dirty.h"

namespace rdmalloc {
namespace {

// Every so many trips to the slow path a thread looks at one class that it may not use any more.
// With a look at eight classes in each 32nd trip, one call gave up hundreds of blocks.
constexpr std::uint32_t kEventsPerAge = 4;
// A class that came to the slow path less often since the last look at it, of 324 trips of all.
constexpr std::uint8_t kFewMisses = 4;
// Every so many trips it looks whether others miss what it has borrowed. With a look at each trip,
// 64 threads of 1 to 32 KiB moved 0.072 lines for each operation at their start, with this 0.047.
constexpr std::uint32_t kEventsPerReturn = 8;

unsigned next_to_age(ThreadCache& cache) {
  unsigned c = cache.age_cursor + 1;
  cache.age_cursor = c % (kClasses - 1);
  return c;
}

// All classes together, in turn, until the cache holds what it may.
void shrink_classes(ThreadCache& cache) {
  std::uint64_t share = share_bytes(cache);
  for (unsigned looked = 0; charged(cache) > share && looked < 4 * kClasses; ++looked)
    shrink_class(cache, next_to_age(cache));
}

// Of a thread that was refused a loan: what came to the slow path less often than others gives them
// a part.
[[gnu::cold]] void age_refused(ThreadCache& cache, unsigned size_class) {
  ColdBin& cold = cold_bin_of(cache, size_class);
  if (cold.misses < kFewMisses) shrink_class(cache, size_class);
  cold.misses = 0;
  cold.slot_at_age = slot_of(cache.bins[size_class].top);
}

void age_class(ThreadCache& cache, unsigned size_class, bool is_over_share) {
  ColdBin& cold = cold_bin_of(cache, size_class);
  std::uint32_t slot = slot_of(cache.bins[size_class].top);
  if (is_over_share || slot == cold.slot_at_age)
    drop_class(cache, size_class);
  else
    cold.slot_at_age = slot;
  if (cache.loan.was_refused) [[unlikely]]
    age_refused(cache, size_class);
}

// Runs on the slow path of the thread itself: a class that did not move since the last look gives
// its blocks up. With many threads a share shrinks; then each class looked at goes.
void age(ThreadCache& cache) {
  coarse_look(cache);
  bool is_over_share = !may_hold(cache, 0, 0);
  unsigned c = next_to_age(cache);
  // Else nothing is written: no page of long bins is backed for that.
  if (c < classes_end(cache)) age_class(cache, c, is_over_share);
  if (cache.span_loan.bytes != 0 && return_span_excess(cache)) fit_span_share(cache);
  if (cache.age_cursor == 0) return_unused(cache);
}

}  // namespace

[[gnu::cold, gnu::noinline]] void give_up(ThreadCache& cache) {
  cache.take_backs_seen = take_backs();
  drop_all(cache);
  // A cgroup may have become small since.
  std::uint64_t backed = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  cache.span_share = span_share_within(cache.span_share, backed);
  cache.most_long_slices =
      static_cast<std::uint8_t>(long_slices_within(cache.most_long_slices, backed));
}

// Of a real machine in one that it has to itself: what it left there it finds again, and threads
// that are no more than the processors come to rest in a shard each.
bool may_stay(const ThreadCache& cache) {
  const Shard& shard = shards[cache.shard];
  return options().topology.mode != os::TopologyMode::kMadeUp &&
         shard.threads.load(std::memory_order_relaxed) == 1 &&
         shard.node.load(std::memory_order_relaxed) == os::this_node();
}

void enter_shard(ThreadCache& cache) {
  unsigned shard = shard_here();
  if (shard == cache.shard) return;
  drop_long_block(cache);  // of the shard that it leaves
  shards[cache.shard].threads.fetch_sub(1, std::memory_order_relaxed);
  shards[shard].threads.fetch_add(1, std::memory_order_relaxed);
  if (!shards[shard].was_used.load(std::memory_order_relaxed))
    shards[shard].was_used.store(true, std::memory_order_relaxed);
  cache.shard = static_cast<std::uint8_t>(shard);
}

void make_share(ThreadCache& cache, std::uint64_t bytes, unsigned keep) {
  if (may_hold(cache, bytes, keep)) return;
  std::uint64_t share = share_bytes(cache);
  for (unsigned looked = 0; charged(cache) + bytes > share && looked < kClasses; ++looked) {
    if (unsigned c = next_to_age(cache); c != keep) drop_class(cache, c);
  }
}

void fit_span_share(ThreadCache& cache) {
  std::uint64_t share = span_share_bytes(cache);
  for (unsigned c = kClasses - 1; c >= kFirstSpanClass && cache.span_bytes > share; --c)
    drop_class(cache, c);
}

void note_slow_event(ThreadCache& cache) {
  if (cache.take_backs_seen != take_backs()) [[unlikely]]
    give_up(cache);
  std::uint32_t events = cache.slow_events.load(std::memory_order_relaxed) + 1;
  cache.slow_events.store(events, std::memory_order_relaxed);
  purge_note_caches_change();
  if (events % kEventsPerLook == 0 && !may_stay(cache)) enter_shard(cache);
  // One that has most of what is lent comes here seldom.
  if (events % kEventsPerReturn == 0 && has_excess(cache) && return_excess(cache)) [[unlikely]]
    shrink_classes(cache);
  if (events % kEventsPerAge == 0) age(cache);
}

}  // namespace rdmalloc
