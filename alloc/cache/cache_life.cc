#include "alloc/cache/cache_life.h"

#include <errno.h>
#include <pthread.h>

#include "alloc/cache/bins.h"
#include "alloc/cache/caches_by_tls.h"
#include "alloc/cache/coarse_classes.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/long_block.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/shares.h"
#include "alloc/cache/slow_events.h"
#include "alloc/core/fork.h"
#include "alloc/core/helper_threads.h"
#include "alloc/core/lock.h"
#include "alloc/core/options.h"
#include "alloc/core/purge_signal.h"
#include "alloc/os/fault.h"
#include "alloc/os/os.h"
#include "alloc/pages/dirty.h"

namespace rdmalloc {

constinit void* nothing[1] = {nullptr};

namespace detail {
constinit ThreadCache empty_cache{nothing + 1};
thread_local constinit ThreadCache* this_cache = &empty_cache;
}  // namespace detail

namespace {

// POSIX runs key destructors in up to four rounds; ours waits for the third, so that the
// destructors of others that free and allocate still find a cache. Not for the fourth, in which
// ThreadSanitizer ends the thread's state.
constexpr int kLastExitRound = 2;

// A thread that has only freed so far has no cache for as many frees. libc frees a few blocks of
// its own after the key destructors, also on threads that never called malloc: nothing would end
// their caches. 20,000 detached threads left 78 MiB.
constexpr std::uint8_t kFreesWithoutCache = 16;

constinit Pool<ThreadCache> caches;
constinit Pool<LongBins> long_bins;
// Of the first caches: a process of one thread needs no page for them, and one of few no call.
constinit LongBins first_long_bins[kFirstThreads] = {};
constinit CachesByTls<Pool<ThreadCache>> caches_by_tls;
constexpr pthread_key_t kNoKey = static_cast<pthread_key_t>(-1);
constinit pthread_key_t exit_key = kNoKey;

// Set while a thread is past its last key destructor, and while its cache is being made.
thread_local constinit bool has_no_cache = false;
// Up to kFreesWithoutCache.
thread_local constinit std::uint8_t frees_without_cache = 0;

// Of a cache that is empty. Its thread_id became 0 within a slow path, so that a taker finds no
// thread there and leaves it alone (reclaim.h).
void end_cache(ThreadCache& cache) {
  shards[cache.shard].threads.fetch_sub(1, std::memory_order_relaxed);
  caches.free(&cache);
  loans.threads.fetch_sub(1, std::memory_order_relaxed);
}

void on_thread_exit(void* value) {
  auto* cache = static_cast<ThreadCache*>(value);
  if (cache->exit_rounds++ < kLastExitRound) {
    pthread_setspecific(exit_key, cache);
    return;
  }
  fork_check();
  // From here on this thread has no cache: libc's own last frees go straight to the slabs.
  detail::this_cache = &detail::empty_cache;
  {
    SlowPath slow_path(*cache);
    drop_all(*cache);
    cache->thread_id.store(0, std::memory_order_relaxed);
  }
  is_known_first_thread() ? purge_note_first_thread_ends() : purge_note_thread_ends();
  end_cache(*cache);
}

// Of the address space for caches, what is for their long bins: as many, and a step in any case.
constexpr std::size_t kStepBytes = decltype(caches)::kStepBytes;
constexpr std::size_t long_part_of(std::size_t bytes) {
  std::size_t part = bytes / 3 / kStepBytes * kStepBytes;
  return part < kStepBytes ? kStepBytes : part;
}
// One range for both: each takes a system call of the process's start. The caches lie behind, so
// not a multiple of 256 MiB from the magazines, which the kernel puts next to them: AMD's Zen finds
// a line of its first cache by its place in the page and a hash of the bits 12 to 27 (Lipp et al.,
// Take A Way, 2020), so a thread's bins and the slots of its magazine pushed each other out. Three
// blocks of 1 KiB in turn took 12 ns for 7, eight of 2 KiB 17.
int reserve_caches(std::size_t bytes) {
  for (; bytes >= 2 * kStepBytes; bytes /= 2) {
    bytes = bytes / kStepBytes * kStepBytes;
    std::uintptr_t base = 0;
    if (os::reserve(0, bytes, &base) != 0) continue;
    std::size_t part = long_part_of(bytes);
    long_bins.take_range(base, part);
    caches.take_range(base + part, bytes - part);
    return 0;
  }
  return -ENOMEM;
}

// A cache that is not in use. It is given its long bins once.
ThreadCache* take_cache() {
  ThreadCache* cache = caches.allocate();
  if (cache == nullptr || cache->long_bins != nullptr) return cache;
  std::uint32_t index = caches.index_of(cache);
  cache->long_bins = index <= kFirstThreads ? &first_long_bins[index - 1] : long_bins.allocate();
  if (cache->long_bins != nullptr) return cache;
  caches.free(cache);
  return nullptr;
}

}  // namespace

ThreadCache* make_cache() {
  if (has_no_cache || options().check_frees) return nullptr;
  has_no_cache = true;  // pthread_setspecific may allocate
  auto tls = reinterpret_cast<std::uintptr_t>(&detail::this_cache);
  auto place = caches_by_tls.find(caches, tls);
  if (place.left != 0) [[unlikely]] {
    ThreadCache& left = *caches.at(place.left);
    {
      SlowPath slow_path(left);
      drop_left(left);
      left.thread_id.store(0, std::memory_order_relaxed);
    }
    end_cache(left);
  }
  std::uint64_t backed = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  bool is_one_too_many = loans.threads.load(std::memory_order_relaxed) >= most_caches(backed);
  ThreadCache* cache = is_one_too_many ? nullptr : take_cache();
  if (cache == nullptr) {
    has_no_cache = false;
    return nullptr;
  }
  cache->reset(nothing + 1, thread_id(), tls);
  caches_by_tls.note(place, caches.index_of(cache));
  // Where there is one thread there is one place: its processors are not asked for. Of more, what
  // takes files to know is learned before they are made (shards_learn).
  std::uint32_t others = loans.threads.fetch_add(1, std::memory_order_relaxed);
  bool is_first = others == 0;
  coarse_note_thread(others + 1);
  cache->own_blocks = static_cast<std::uint8_t>(own_blocks_of(std::uint64_t{others} + 1));
  cache->span_share = span_share_of(std::uint64_t{others} + 1, backed);
  cache->most_long_slices =
      static_cast<std::uint8_t>(long_slices_of(std::uint64_t{others} + 1, backed));
  const os::TopologySource& topology = options().topology;
  if (is_first) os::topology_note_first_thread();
  if (topology.mode == os::TopologyMode::kMadeUp) os::topology_learn(topology);
  shards[0].threads.fetch_add(1, std::memory_order_relaxed);
  if (is_first) shards[0].was_used.store(true, std::memory_order_relaxed);
  enter_shard(*cache);
  detail::this_cache = cache;
  // libc may want memory for its table of keys, and say in errno that there is none: not in free().
  int saved = errno;
  if (pthread_setspecific(exit_key, cache) == 0 && is_known_first_thread())
    first_thread_notifies.store(true, std::memory_order_relaxed);
  errno = saved;
  // Stays true: on_thread_exit leaves it so, and a thread has one cache in its life.
  return cache;
}

ThreadCache* cache_to_free_into() {
  if (ThreadCache* cache = cache_of_this_thread()) return cache;
  if (frees_without_cache == kFreesWithoutCache) return make_cache();
  ++frees_without_cache;
  return nullptr;
}

int cache_make_key() {
  if (exit_key != kNoKey) return 0;
  if (os::should_fail(os::Site::kThreadKey)) return -EAGAIN;
  return -pthread_key_create(&exit_key, on_thread_exit);
}

int cache_init() {
  bin_table_init();
  // Kept after a failure below, for the next try (I10).
  if (!magazines.is_reserved())
    if (int error = magazines.reserve(reserved_for_magazines(arena.room_bytes))) return error;
  if (!long_bins.is_reserved())
    if (int error = reserve_caches(reserved_for_caches(arena.room_bytes))) return error;
  return cache_make_key();
}

void caches_fit_limit(std::uint64_t limit_bytes) {
  magazines.give_up_beyond(reserved_for_magazines(limit_bytes));
  std::size_t bytes = reserved_for_caches(limit_bytes);
  caches.give_up_beyond(bytes - long_part_of(bytes));
  long_bins.give_up_beyond(long_part_of(bytes));
}

std::uint32_t caches_made() {
  return caches.used();
}

ThreadCache* cache_at(std::uint32_t index) {
  return caches.at(index);
}

void cache_resume(ThreadCache& cache) {
  cache.reclaim_state.fetch_and(static_cast<std::uint8_t>(~kHasGaps), std::memory_order_relaxed);
  close_gaps(cache);
  // Its loans are gone.
  make_share(cache, 0, 0);
  fit_span_share(cache);
}

CacheCounters cache_counters() {
  CacheCounters counters{loans.threads.load(std::memory_order_relaxed), 0, magazines.used() - 1};
  for (std::uint32_t i = 1; i < caches.used(); ++i) {
    ThreadCache& cache = *caches.at(i);
    // Acquire: pairs with the release in reset(). Its long bins are there.
    if (cache.thread_id.load(std::memory_order_acquire) != 0)
      counters.cached_bytes += cache_bytes(cache) + long_block_bytes(cache);
  }
  return counters;
}

void caches_after_fork() {
  reclaim_after_fork();
  coarse_after_fork();
  caches.lock().reset();
  long_bins.lock().reset();
  magazines.lock().reset();
}

// Each cache where it is: a vanished thread may have been on its way from one shard to another.
// Also where the caches of vanished threads stay, and the one of the thread that forked: what ends
// them takes them away again, and no count may go below 0.
static void count_threads_of_shards() {
  for (Shard& shard : shards) shard.threads.store(0, std::memory_order_relaxed);
  for (std::uint32_t i = 1; i < caches.used(); ++i) {
    const ThreadCache& cache = *caches.at(i);
    if (cache.thread_id.load(std::memory_order_relaxed) != 0)
      shards[cache.shard].threads.fetch_add(1, std::memory_order_relaxed);
  }
}

void cache_reclaim_after_fork(std::uint32_t forker) {
  first_thread_notifies.store(false, std::memory_order_relaxed);
  count_threads_of_shards();
  // Then no thread knows which cache is still in use, and what vanished threads held (within what
  // all caches may hold) is lost to this child.
  if (forker == 0) return;
  reclaim_end_after_fork();
  ThreadCache* mine = nullptr;
  for (std::uint32_t i = 1; i < caches.used(); ++i) {
    ThreadCache& cache = *caches.at(i);
    if (cache.thread_id.load(std::memory_order_relaxed) == forker) {
      mine = &cache;
      continue;
    }
    cache.reclaim_state.store(0, std::memory_order_relaxed);
    cache.is_in_slow_path.store(false, std::memory_order_relaxed);
    if (cache.thread_id.load(std::memory_order_relaxed) == 0) continue;
    recover_long_block(cache);
    drop_left(cache);
    cache.thread_id.store(0, std::memory_order_relaxed);
    shards[cache.shard].threads.fetch_sub(1, std::memory_order_relaxed);
    caches.free(&cache);
  }
  first_thread_notifies.store(mine != nullptr, std::memory_order_relaxed);
  loans.threads.store(mine == nullptr ? 0 : 1, std::memory_order_relaxed);
  loans.lent_bytes.store(mine == nullptr ? 0 : mine->loan.bytes, std::memory_order_relaxed);
  loans.lent_span_bytes.store(mine == nullptr ? 0 : mine->span_loan.bytes,
                              std::memory_order_relaxed);
  // Gaps perhaps: its next slow path looks.
  if (mine != nullptr) mine->reclaim_state.store(kHasGaps, std::memory_order_relaxed);
}

}  // namespace rdmalloc
