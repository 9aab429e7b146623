// A thread's magazines and the two fast paths over them.
//
// The cache lies in a pool of ours, behind one initial-exec TLS pointer: the TLS block stays 8
// bytes (a late dlopen finds room for it), a fork child can reclaim what the caches of vanished
// threads hold, and the purge thread may count. A thread without a cache points at a shared one
// whose bins are all empty and all full, so the fast paths have no initialised-test.
//
// Bins and cold bins are written by the owning thread only, or by the one thread of a fork child
// once the owner is gone; but reclaim.h takes blocks out of the bins of other threads. Any thread
// may read held_bytes and the bins, for statistics.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/cache/bin_table.h"
#include "alloc/cache/magazine.h"
#include "alloc/cache/take_back.h"
#include "alloc/core/lock.h"
#include "alloc/core/size_class.h"
#include "alloc/core/vain_looks.h"
#include "alloc/pages/arena.h"
#include "alloc/slabs/in_use.h"

namespace rdmalloc {

// The cold half of a bin.
struct ColdBin {
  Magazine* loaded;  // the magazine the bin works on; nullptr until the class is first used
  std::uint32_t slot_at_age;  // where the bin stood when ageing last looked: slot_of(top)
  std::uint8_t limit;      // blocks the bin may hold now: few at first, doubled by use (slow start)
  bool is_taken_from : 1;  // whether the bin was ever refilled: else the thread only frees here
  Length length : 2;       // of `loaded`
  // Of a thread that was refused a loan: trips to the slow path since ageing last looked, up to 15.
  std::uint8_t misses : 4;
  // At other shards' depots, where they had nothing whole: each look at a stack takes a line from
  // the threads that use it, and gives it back. Kept while the class has no magazine.
  VainLooks steals;
};
static_assert(sizeof(ColdBin) == 16);
static_assert(kPairSlots <= UINT8_MAX);
// Looks that a class of a new cache leaves out at first: the first threads fill their own shards.
inline constexpr std::uint8_t kFirstRefillsAlone = 3;
// A slot's number, of 32 GiB of magazines: enough to tell two tops apart.
inline std::uint32_t slot_of(void* const* top) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(top) / sizeof(void*));
}

// Cold bins of blocks of more than 1 KiB lie apart from their cache, on pages that are backed once
// a thread uses such a class: 64 threads of small blocks have 132 KiB of caches, 184 with all cold
// bins in them.
inline constexpr unsigned kFirstLongClass = class_of(kOneSliceMax) + 1;
struct alignas(64) LongBins {
  std::atomic<std::uint32_t> next_free;  // pool
  ColdBin of[kClasses - kFirstLongClass];
};

// Sheets that all classes of a thread need at most.
inline constexpr std::uint32_t kSheets = (kClasses - 1 + kShortsOfSheet - 1) / kShortsOfSheet;

// Bits of ThreadCache::reclaim_state: a taker wants the cache, and since one did bins have gaps or
// its loans are gone.
inline constexpr std::uint8_t kAsked = 1, kHasGaps = 2;

// What a cache has borrowed beside its share, of blocks or of spans (loans.h).
struct Loan {
  std::uint64_t bytes = 0;
  std::uint32_t refused_at = 0;  // of slow_events
  bool was_refused = false;      // the latest one, or some of it was given up
};

struct alignas(64) ThreadCache {
  // A cache whose bins are all empty and all full: they point one past a NULL.
  constexpr explicit ThreadCache(void** nothing_end) {
    for (Bin& bin : bins) bin = {nothing_end, nothing_end};
    deferred_bin = bins;  // full
  }
  // The deferred block, of which the cache lets go; nullptr: there is none. Of its bin the next
  // free() takes the nullptr that is left.
  void* take_deferred() {
    void* block = deferred;
    deferred = nullptr;
    nowhere = {&nowhere_slot, nullptr};
    deferred_bin = &nowhere;
    order_for_fork();
    return block;
  }
  // Makes one that comes from the pool as new. Not by placement new: a thread that pops from the
  // pool may still read next_free of an object that another has just popped, and only atomic stores
  // may meet that.
  void reset(void** nothing_end, std::uint32_t thread, std::uintptr_t tls_address) {
    for (Bin& bin : bins) bin = {nothing_end, nothing_end};
    // What threads that ended left lies in depots, for those that come after them.
    comes_after_others = tls.load(std::memory_order_relaxed) != 0;
    take_deferred();
    deferred_to = kFirstSpanClass - 1;
    deferred_takes = 0;
    for (ColdBin& cold : cold_bins) cold = {};
    if (classes_end.load(std::memory_order_relaxed) > kFirstLongClass)
      for (ColdBin& cold : long_bins->of) cold = {};
    classes_end.store(0, std::memory_order_relaxed);
    slow_events.store(0, std::memory_order_relaxed);
    age_cursor = 0;
    sum_at_look = 0;
    reclaim_state.fetch_and(static_cast<std::uint8_t>(~kHasGaps), std::memory_order_relaxed);
    own_bytes = span_bytes = 0;
    loan = span_loan = {};
    free_short = nullptr;
    sheet_count = 0;
    take_backs_seen = take_backs();
    held_bytes.store(0, std::memory_order_relaxed);
    exit_rounds = 0;
    shard = steals_from = large_events = 0;
    long_slices = long_score = most_long_slices = 0;
    long_is_freed = false;
    latest_class = trips_in_a_row = 0;
    tls.store(tls_address, std::memory_order_relaxed);
    thread_id.store(thread, std::memory_order_release);
  }

  Bin bins[kBins] = {};
  // The block that the thread freed last, which enters its bin at the next free() (0021).
  void* deferred = nullptr;
  Bin* deferred_bin = nullptr;
  Bin nowhere = {};                           // where there is none: of one nullptr
  void* nowhere_slot = nullptr;               // its, never read
  std::uint32_t deferred_to = 0;              // the last class that is deferred; read by free()
  ColdBin cold_bins[kFirstLongClass] = {};    // by cold_bin_of()
  std::atomic<std::uint32_t> next_free{0};    // pool
  std::atomic<std::uint32_t> thread_id{0};    // 0: not in use. Release: `tls` is this thread's
  std::atomic<std::uint32_t> slow_events{0};  // trips to the slow path, for ageing; relaxed
  std::uint32_t age_cursor = 0;               // class that ageing looks at next
  std::uint32_t take_backs_seen = 0;          // of take_backs(), when it was last emptied for them
  std::atomic<SliceIndex> long_block{0};      // that it keeps (long_block.h); 0: none
  std::atomic<std::uint64_t> held_bytes{0};   // relaxed; magazines and the blocks they may hold
  int exit_rounds = 0;                        // how often the thread's key destructor ran
  std::uint8_t shard = 0;                     // where the thread was when it last looked
  std::uint8_t steals_from = 0;               // which other shard's depot it asks next
  std::uint8_t large_events = 0;              // large blocks it has taken, for looking about
  std::uint8_t own_blocks = 0;                // of each long class, beside its share (shares.h)
  std::uint8_t latest_class = 0;              // that came to the slow path
  std::uint8_t trips_in_a_row = 0;            // of that class, up to kTripsOfBatch
  // Of long_block.h.
  std::atomic<std::uint16_t> longs_kept{0};  // how often it kept one, wrapping; relaxed
  std::uint8_t long_slices = 0;              // of the large block that it took last; 0: of none
  std::uint8_t long_score = 0;               // how well the next one follows a free()
  std::uint8_t most_long_slices = 0;         // that it may keep
  bool long_is_freed = false;                // a large block, since it took the last one
  std::uint64_t own_bytes = 0;               // of held_bytes, what those may take
  Loan loan;                                 // beside its share (shares.h)
  std::uint64_t span_bytes = 0;              // of own_bytes, what spans may take
  std::uint64_t span_share = 0;              // the most of that, beside what it has borrowed
  Loan span_loan;                            // of that; another thread may take it (reclaim.h)
  Magazine* free_short = nullptr;            // those that no class uses, linked by slots[0]
  std::uint32_t sheets[kSheets] = {};        // indices of magazines, kept until all classes go
  std::uint8_t sheet_count = 0;
  // Of reclaim.h.
  std::atomic<bool> is_in_slow_path{false};    // by the owner
  std::atomic<std::uint8_t> reclaim_state{0};  // kAsked by the taker; kHasGaps cleared by the owner
  bool comes_after_others = false;             // another thread, which ended, had this cache
  std::uint8_t deferred_takes = 0;             // by malloc, wrapping
  std::uint16_t longs_at_look = 0;             // of longs_kept, at the latest look (reclaim.cc)
  // No class was opened from here on. Relaxed, as are the looks of others at bins.
  std::atomic<std::uint8_t> classes_end{0};
  std::uint64_t sum_at_look = 0;       // of what tells whether the owner did anything
  LongBins* long_bins = nullptr;       // the cache's for ever, from before it has a thread_id
  std::atomic<std::uintptr_t> tls{0};  // address of its thread's this_cache (caches_by_tls.h)
};

static_assert(sizeof(ThreadCache) == 2112);
inline ColdBin& cold_bin_of(ThreadCache& cache, unsigned size_class) {
  return size_class < kFirstLongClass ? cache.cold_bins[size_class]
                                      : cache.long_bins->of[size_class - kFirstLongClass];
}
inline const ColdBin& cold_bin_of(const ThreadCache& cache, unsigned size_class) {
  return cold_bin_of(const_cast<ThreadCache&>(cache), size_class);
}
inline unsigned classes_end(const ThreadCache& cache) {
  return cache.classes_end.load(std::memory_order_relaxed);
}

namespace detail {
extern constinit ThreadCache empty_cache;
extern thread_local constinit ThreadCache* this_cache;
}  // namespace detail

// Slow halves; cold. "No memory" is nullptr with errno ENOMEM.
void* cache_allocate_slow(unsigned size_class, std::size_t bytes);
// A block of a span class that this thread holds. Of several nodes: whose pages are near; far ones
// that other threads allocated and this one freed go to the page heap, where they wait for threads
// there.
void* cache_try_allocate_span(unsigned size_class);
// A block of a span class; nullptr where the thread may not hold one, or there is no memory.
void* cache_allocate_span(unsigned size_class);
// Of a block of a class that has bins: not 0, kLargeClass or kHeapClass.
void cache_free_slow(void* block, unsigned size_class);

// A fork child believes what the caches of vanished threads say (cache_reclaim_after_fork), and it
// sees each thread's stores up to some point of its program order. So a cache lets go of blocks
// before it gives them to another thread, and takes hold of them only once they are there; in
// between a fork loses them to the child, but never gives them to two. This keeps the compiler from
// changing that order: order_for_fork(); the kernel does not (fork.h).

// A block that this thread holds in the bin at this offset; nullptr when it is empty. Three loads
// on the way, each of which waits for the one before: the cache, the bin's top, the block.
[[gnu::always_inline]] inline void* cache_try_allocate_at(std::size_t bin_offset) {
  void*** tops = &detail::this_cache->bins[0].top;
  void** top = tops[bin_offset];
  void* block = top[-1];
  if (block == nullptr) [[unlikely]]
    return nullptr;
  // The address of the bin is part of the load and of the store: kept, it would take an
  // instruction.
  asm("" : "+r"(bin_offset));
  tops[bin_offset] = top - 1;
  in_use_begin(block, static_cast<unsigned>(bin_offset * 8 / sizeof(Bin)));
  return block;
}
// As above, by class.
[[gnu::always_inline]] inline void* cache_try_allocate(unsigned size_class) {
  return cache_try_allocate_at(size_class * sizeof(Bin) / 8);
}

// A block of the class, or nullptr (and ENOMEM) when there is no memory. `bytes` is what it is for:
// where there is none, those of its own class serve too, if a coarser one serves now (bin_table.h).
[[gnu::always_inline]] inline void* cache_allocate(unsigned size_class, std::size_t bytes) {
  void* block = cache_try_allocate(size_class);
  if (block == nullptr) [[unlikely]]
    return cache_allocate_slow(size_class, bytes);
  return block;
}

// Whether free() enters blocks of the class at once: what has no bin with room, and buffers. Of
// these malloc is to give the one that was freed last, with its pages and registrations, while the
// thread has few (defer_buffers).
inline bool is_entered_at_once(const ThreadCache& cache, unsigned size_class) {
  return size_class - 1 >= cache.deferred_to;
}
// A block enters its bin. False, with nothing changed: the bin is full, or the block on top of it.
[[gnu::always_inline]] inline bool cache_try_enter(ThreadCache& cache, void* block,
                                                   unsigned size_class) {
  Bin& bin = cache.bins[size_class];
  void** top = bin.top;
  if (top == bin.end || top[-1] == block) [[unlikely]]
    return false;
  *top = block;
  order_for_fork();
  bin.top = top + 1;
  return true;
}

// Takes a block back on this thread, whichever thread allocated it. `size_class` is what the class
// map says. False, with nothing changed: the caller is to take the slow path, for which 0,
// kLargeClass and kHeapClass have bins that are always full.
[[gnu::always_inline]] inline bool cache_try_free(void* block, unsigned size_class) {
  in_use_end(block, size_class);
  ThreadCache& cache = *detail::this_cache;
  if (is_entered_at_once(cache, size_class)) return cache_try_enter(cache, block, size_class);
  Bin* bin = &cache.bins[size_class];
  asm("" : "+r"(bin));  // found once: three instructions less
  void* deferred = cache.deferred;
  Bin& deferred_bin = *cache.deferred_bin;
  void** top = deferred_bin.top;
  // The commonest double free, free(p) twice in a row, is the deferred block or, where one of
  // another class was freed since, the top one: two compares of lines we write anyway. Others are
  // found when the block goes back to its slab.
  if (top == deferred_bin.end || deferred == block || bin->top[-1] == block) [[unlikely]]
    return false;
  cache.deferred = block;
  cache.deferred_bin = bin;
  order_for_fork();
  *top = deferred;
  order_for_fork();
  deferred_bin.top = top + 1;
  return true;
}

// Gives everything the calling thread holds back to the slabs.
void cache_flush_this_thread();
// Gives some of the spans that it holds to the page heap: for a large block of so many slices that
// took pages which were never used.
void cache_give_up_spans(std::uint32_t slices);

// Called once at initialisation: the table, pools and the key whose destructor flushes at thread
// exit. 0 or a negative errno.
int cache_init();
// The key alone, where there is none yet: at the library's start, as the program may have all by
// its first malloc. Calls come one at a time, cache_init()'s too.
int cache_make_key();

// Gives up address space of the pools, as the program has lowered RLIMIT_AS to `limit_bytes`.
void caches_fit_limit(std::uint64_t limit_bytes);

// Looks where the calling thread runs now, as its slow path does every so often. Returns its shard.
unsigned cache_enter_shard();
// The same for a thread without a cache, which no shard counts: it stays where it was seen first,
// the process's first thread in the first shard.
unsigned cache_shard_without_cache();
// For a large block: its shard as of the last look. Looks every so many blocks.
unsigned cache_shard_for_large();

// ---- for reclaim.cc ----

// Caches are numbered from 1; those that are not in use have thread_id 0.
std::uint32_t caches_made();
ThreadCache* cache_at(std::uint32_t index);
// Closes up what a taker left in the bins, as the owner comes back.
void cache_resume(ThreadCache& cache);

struct CacheCounters {
  std::uint64_t threads;
  std::uint64_t cached_bytes;  // blocks in magazines of threads; a moment's guess
  std::uint64_t magazines;     // magazines ever made
};
CacheCounters cache_counters();

// In the child of a fork: frees the locks of the pools. And, with no lock held, returns what the
// caches of threads that are gone hold; `forker`: the number of the thread that forked, which may
// be another than the one that calls this and be at work already, or 0, where it is not known.
void caches_after_fork();
void cache_reclaim_after_fork(std::uint32_t forker);

}  // namespace rdmalloc
