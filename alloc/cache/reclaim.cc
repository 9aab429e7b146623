#include "alloc/cache/reclaim.h"

#include <atomic>

#include "alloc/cache/depot.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/long_block.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/options.h"
#include "alloc/core/order_for_fork.h"
#include "alloc/os/os.h"
#include "alloc/os/sanitizers.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Less than this in a cache is not worth the barriers, unless others may want what it borrowed.
constexpr std::uint64_t kWorthBytes = 16 << 10;
// On the way to their slabs at once: more only where one block is longer.
constexpr std::uint64_t kMostLostBytes = 32 << 10;

// A bin that is cut off.
struct Mark {
  ThreadCache* cache;
  unsigned size_class;
  bool is_ours;     // what was seen after the second barrier
  bool is_pair;     // of `taken`
  void** slot;      // where the NULL is
  void* block;      // what lay there
  Magazine* taken;  // what the blocks are copied to
};

struct Reclaim {
  // Whether a thread takes, from its first look to the last block: the purge thread and allocations
  // that find no memory, of which none waits for another. Acquire and release: `marks` are one's.
  std::atomic<bool> is_busy{false};
  // Held from the first question to the last answer; owners wait for it at their slow paths' heads.
  Lock lock;
  // Whether `marks` say what a child of fork is to undo. Written in this order for it: a mark, its
  // count, the NULL; and before a block goes to its slab, `is_marking` is false.
  bool is_marking = false;
  std::uint32_t count = 0;
  bool is_taking = false;  // until the last taken block is in its slab
  // With the purge turn too: the last look at all caches, and its answer.
  std::int64_t looked_ms = INT64_MIN / 2;
  bool may_be_more = false;
  bool looks_again = false;  // after the next look at the idle ones too
  std::atomic<std::uint64_t> bytes{0};
};
constinit Reclaim reclaim;
// With the lock. Touched where threads idle.
constexpr std::uint32_t kMostCaches = 28;
constexpr std::uint32_t kMostMarks = kMostCaches * (kClasses - 1);
constinit Mark marks[kMostMarks] = {};

// Bins of other threads are read and, in one slot, written while their owners work on them.
void** top_of(Bin& bin) {
  return std::atomic_ref<void**>(bin.top).load(kRelaxed);
}
void* load(void** slot) {
  return std::atomic_ref<void*>(*slot).load(kRelaxed);
}
bool replace(void** slot, void* from, void* to) {
  return std::atomic_ref<void*>(*slot).compare_exchange_strong(from, to, std::memory_order_seq_cst,
                                                               kRelaxed);
}

// Blocks in the class's bin, those below a gap included, as far as can be seen: a moment's guess
// while the owner may be in its slow path.
std::uint32_t count_of(ThreadCache& cache, unsigned size_class) {
  Magazine* loaded =
      std::atomic_ref<Magazine*>(cold_bin_of(cache, size_class).loaded).load(kRelaxed);
  if (loaded == nullptr) return 0;
  std::ptrdiff_t count = top_of(cache.bins[size_class]) - loaded->slots;
  return count < 0 || count > kPairSlots ? 0 : static_cast<std::uint32_t>(count);
}

// The same without those.
std::uint32_t count_above_gap(ThreadCache& cache, unsigned size_class) {
  std::uint32_t all = count_of(cache, size_class), count = 0;
  void** top = top_of(cache.bins[size_class]);
  while (count < all && load(top - 1 - count) != nullptr) ++count;
  return count;
}

struct Look {
  bool is_idle;
  std::uint64_t bytes;  // that could be taken
};
Look look_at(ThreadCache& cache) {
  std::uint64_t sum = cache.slow_events.load(kRelaxed), bytes = 0;
  sum = sum * 31 + cache.longs_kept.load(kRelaxed);
  bool has_gaps = (cache.reclaim_state.load(kRelaxed) & kHasGaps) != 0;
  for (unsigned c = 1, end = classes_end(cache); c < end; ++c) {
    std::uint32_t count = has_gaps ? count_above_gap(cache, c) : count_of(cache, c);
    sum = sum * 31 + reinterpret_cast<std::uintptr_t>(top_of(cache.bins[c]));
    bytes += std::uint64_t{count > 1 ? count - 1 : 0} * class_info(c).block_bytes;
  }
  bool is_idle = sum == cache.sum_at_look;
  cache.sum_at_look = sum;
  return {is_idle, bytes};
}

// A moment's guess.
bool has_loan(Loan& loan) {
  return std::atomic_ref<std::uint64_t>(loan.bytes).load(kRelaxed) != 0;
}

// Whether the thread has kept none since the last look. That it works with other blocks is no
// reason to leave it one of up to 4 MiB.
bool long_is_idle(ThreadCache& cache) {
  std::uint16_t before = cache.longs_at_look;
  return before == (cache.longs_at_look = cache.longs_kept.load(kRelaxed));
}

void mark(ThreadCache& cache, unsigned size_class) {
  std::uint32_t count = count_of(cache, size_class);
  if (count < 2) return;
  void** slot = cold_bin_of(cache, size_class).loaded->slots + count - 2;
  Mark found = {&cache, size_class, false, false, slot, load(slot), nullptr};
  // A mark of before: one block is left above it, or none. What lies below was taken.
  if (found.block == nullptr || load(found.slot + 1) == nullptr) return;
  marks[reclaim.count] = found;
  order_for_fork();
  ++reclaim.count;
  order_for_fork();
  // If the owner popped it since, and pushed another, that one stays where it is.
  if (!replace(found.slot, found.block, nullptr)) --reclaim.count;
}

void unmark(const Mark& mark) {
  replace(mark.slot, nullptr, mark.block);
}

// Whether what lies below the mark is ours. To be asked twice, with a barrier between where stores
// of others may be seen out of order.
bool has_block_above(const Mark& mark) {
  return top_of(mark.cache->bins[mark.size_class]) >= mark.slot + 2;
}

// Copies the blocks of a mark to a magazine of ours, or a pair; false when there is none to be had.
bool take(Mark& mark) {
  // Down to the bottom, or a mark of before.
  std::uint32_t count = 1;
  while (load(mark.slot - count) != nullptr) ++count;
  mark.is_pair = count > kMagazineSlots;
  mark.taken = mark.is_pair ? depot_take_pair() : magazines.allocate();
  if (mark.taken == nullptr) return false;
  void** slots = mark.taken->slots;
  slots[0] = mark.block;
  for (std::uint32_t i = 1; i < count; ++i) slots[i] = load(mark.slot - i);
  mark.taken->count = count;
  mark.cache->reclaim_state.fetch_or(kHasGaps, kRelaxed);
  return true;
}

// Whether stores of one thread are seen in their order without a barrier.
#if defined(__x86_64__)
constexpr bool kStoresAreSeenInOrder = true;
#else
constexpr bool kStoresAreSeenInOrder = false;
#endif

// Steps 2 to 4 up to the copies, of caches that were asked for.
void mark_and_take(ThreadCache* const* asked, std::uint32_t count) {
  reclaim.count = 0;
  reclaim.is_taking = true;
  order_for_fork();
  reclaim.is_marking = true;
  order_for_fork();
  for (std::uint32_t i = 0; i < count; ++i) {
    ThreadCache& cache = *asked[i];
    // Acquire: pairs with the release at the end of its owner's slow path, and of its life.
    if (cache.is_in_slow_path.load(std::memory_order_acquire) ||
        cache.thread_id.load(std::memory_order_acquire) == 0)
      continue;
    for (unsigned c = 1, end = classes_end(cache); c < end; ++c) mark(cache, c);
    if (return_loans(cache)) cache.reclaim_state.fetch_or(kHasGaps, kRelaxed);
  }
  bool is_ordered = os::barrier_of_all_threads() == 0;
  for (std::uint32_t i = 0; i < reclaim.count; ++i)
    marks[i].is_ours = is_ordered && has_block_above(marks[i]);
  if (!kStoresAreSeenInOrder) is_ordered = is_ordered && os::barrier_of_all_threads() == 0;
  // Acquire: the marks are read after the tops.
  std::atomic_thread_fence(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < reclaim.count; ++i) {
    Mark& mark = marks[i];
    bool is_there = load(mark.slot) == nullptr;
    if (!is_ordered || !mark.is_ours || !is_there || !take(mark)) {
      mark.taken = nullptr;
      unmark(mark);
    }
  }
  order_for_fork();
  reclaim.is_marking = false;
  order_for_fork();
}

// A few at once, however many there are: those that leave the magazine here a child of fork loses.
void give_back(unsigned size_class, Magazine& taken) {
  std::uint64_t bytes = class_info(size_class).block_bytes;
  std::uint32_t most = bytes < kMostLostBytes ? kMostLostBytes / bytes : 1;
  while (taken.count != 0) {
    std::uint32_t count = taken.count < most ? taken.count : most;
    taken.count -= count;
    order_for_fork();
    slab_give_back(size_class, taken.slots + taken.count, count);
    reclaim.bytes.fetch_add(count * bytes, kRelaxed);
    order_for_fork();
  }
}

void give_back() {
  for (std::uint32_t i = 0; i < reclaim.count; ++i) {
    Magazine* taken = marks[i].taken;
    if (taken == nullptr) continue;
    give_back(marks[i].size_class, *taken);
    marks[i].taken = nullptr;
    order_for_fork();
    marks[i].is_pair ? depot_put_pair(taken) : magazines.free(taken);
  }
  reclaim.is_taking = false;
}

// False: it is not possible here.
bool reclaim_from(ThreadCache* const* caches, std::uint32_t count) {
  {
    LockGuard guard(reclaim.lock);
    for (std::uint32_t i = 0; i < count; ++i) caches[i]->reclaim_state.fetch_or(kAsked, kRelaxed);
    bool is_ordered = os::barrier_of_all_threads() == 0;
    if (is_ordered) mark_and_take(caches, count);
    // Release: pairs with the acquire at the head of a slow path.
    for (std::uint32_t i = 0; i < count; ++i)
      caches[i]->reclaim_state.fetch_and(static_cast<std::uint8_t>(~kAsked),
                                         std::memory_order_release);
    if (!is_ordered) return false;
  }
  // The marks stay as they are: is_busy.
  give_back();
  return true;
}

}  // namespace

[[gnu::cold, gnu::noinline]] void SlowPath::wait_and_resume() {
  // Acquire, both: pairs with the release of the taker, which may be through since the first look.
  if ((cache_.reclaim_state.load(std::memory_order_acquire) & kAsked) != 0) {
    LockGuard wait(reclaim.lock);
  }
  if ((cache_.reclaim_state.load(std::memory_order_acquire) & kHasGaps) != 0) cache_resume(cache_);
}

namespace {

bool begin() {
  // ThreadSanitizer knows no membarrier, and would report what it orders.
  return !os::kThreadSanitizer && !reclaim.is_busy.exchange(true, std::memory_order_acquire);
}
void end() {
  reclaim.is_busy.store(false, std::memory_order_release);
}

// Calls wants(cache) for the caches of other threads and takes from those for which it is true.
// False: it is not possible here.
template <class Wants>
bool reclaim_where(Wants wants) {
  ThreadCache* found[kMostCaches];
  std::uint32_t count = 0;
  bool is_possible = true;
  ThreadCache* mine = detail::this_cache;
  for (std::uint32_t i = 1; i < caches_made(); ++i) {
    ThreadCache& cache = *cache_at(i);
    if (&cache == mine || cache.thread_id.load(std::memory_order_acquire) == 0) continue;
    if (!wants(cache) || !is_possible) continue;
    found[count++] = &cache;
    if (count != kMostCaches) continue;
    is_possible = reclaim_from(found, count);
    count = 0;
  }
  return is_possible && (count == 0 || reclaim_from(found, count));
}

}  // namespace

bool caches_reclaim(ReclaimFrom from, std::int64_t now_ms) {
  if (from == ReclaimFrom::kIdle) {
    if (now_ms - reclaim.looked_ms < kLookMs) return reclaim.may_be_more || reclaim.looks_again;
  }
  if (!begin()) return !os::kThreadSanitizer;
  // Of magazines, and of long blocks, which need no barrier: they are taken in a sandbox too.
  bool may_be_more = reclaim.looks_again, may_be_long = reclaim.looks_again;
  bool takes_magazines = options().watch_pressure;
  if (from == ReclaimFrom::kIdle) {
    reclaim.looked_ms = now_ms;
    reclaim.looks_again = false;
  }
  bool is_possible = reclaim_where([&](ThreadCache& cache) {
    Look look = look_at(cache);
    // However little it has: what its thread has in use by now may be there by then.
    may_be_more |= !look.is_idle;
    if (long_is_idle(cache) || from == ReclaimFrom::kAll)
      drop_long_block(cache);
    else
      may_be_long |= long_block_bytes(cache) != 0;
    bool is_wanted = look.is_idle || from == ReclaimFrom::kAll;
    return is_wanted && takes_magazines &&
           (look.bytes >= kWorthBytes || has_loan(cache.loan) || has_loan(cache.span_loan));
  });
  end();
  return reclaim.may_be_more = (may_be_more && takes_magazines && is_possible) || may_be_long;
}

void caches_look_again() {
  reclaim.looks_again = true;
}

bool caches_reclaim_for_allocation() {
  if (!begin()) return false;
  std::uint64_t before = reclaimed_bytes();
  reclaim_where([](ThreadCache& cache) {
    std::uint64_t sum = cache.sum_at_look;  // this is no look at who is idle
    Look look = look_at(cache);
    cache.sum_at_look = sum;
    return look.bytes != 0;
  });
  end();
  return reclaimed_bytes() != before;
}

std::uint64_t cache_bytes(ThreadCache& cache) {
  if ((cache.reclaim_state.load(kRelaxed) & kHasGaps) == 0) return held(cache);
  std::uint64_t bytes = 0;
  for (unsigned c = 1, end = classes_end(cache); c < end; ++c) {
    std::uint64_t blocks = count_above_gap(cache, c);
    bytes += blocks * class_info(c).block_bytes + (blocks != 0 ? sizeof(Magazine) : 0);
  }
  return bytes;
}

std::uint64_t reclaimed_bytes() {
  return reclaim.bytes.load(kRelaxed);
}

void reclaim_after_fork() {
  reclaim.lock.reset();
  reclaim.is_busy.store(false, std::memory_order_relaxed);
  if (!reclaim.is_marking) return;
  for (std::uint32_t i = 0; i < reclaim.count; ++i) unmark(marks[i]);
  reclaim.count = 0;
  reclaim.is_marking = false;
}

void reclaim_end_after_fork() {
  if (reclaim.is_taking) give_back();
}

}  // namespace rdmalloc
