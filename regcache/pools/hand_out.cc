// Getting, putting and waiting: the way through a thread's own cache first.
#include <errno.h>
#include <pthread.h>

#include "alloc/for_regcache.h"
#include "regcache/pools/buffer_pool.h"

// libc's, for C programs of old. longjmp() calls what is registered so on the frames that it
// leaves; what pthread_cleanup_push() registers today it does not.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming)
void _pthread_cleanup_push(_pthread_cleanup_buffer* buffer, void (*routine)(void*), void* arg);
void _pthread_cleanup_pop(_pthread_cleanup_buffer* buffer, int execute);
// NOLINTEND(readability-identifier-naming)
}

namespace rdmalloc::regcache {
namespace {

Buffer* take_cached(PoolCache& cache, Side side) {
  LockGuard guard(cache.lock);
  if (cache.count[side] == 0) return nullptr;
  ++cache.gets[side];
  return cache.buffers(side)[--cache.count[side]];
}

// False when the cache is full, or a thread waits.
bool keep_cached(BufferPool& pool, PoolCache& cache, Buffer* buffer) {
  LockGuard guard(cache.lock);
  Side side = buffer->side;
  // Relaxed, but under the cache's lock: see the head of buffer_pool.h.
  if (pool.waiting[side].load(std::memory_order_relaxed) != 0) return false;
  if (cache.count[side] == kMostCached[side]) return false;
  cache.buffers(side)[cache.count[side]++] = buffer;
  return true;
}

// A free buffer, or one from any cache; `mine` (may be NULL) is filled up on the way. Under the
// pool's lock.
Buffer* take_shared(BufferPool& pool, Side side, PoolCache* mine) {
  PoolSide& shelf = pool.sides[side];
  if (shelf.free_count != 0) {
    Buffer* buffer = shelf.free[--shelf.free_count];
    ++shelf.gets;
    if (mine == nullptr) return buffer;
    // Half a cache, so that puts find room in it; at most a quarter of the free ones, for other
    // threads.
    std::uint32_t batch = shelf.free_count / 4;
    LockGuard guard(mine->lock);
    while (batch-- != 0 && mine->count[side] < kMostCached[side] / 2)
      mine->buffers(side)[mine->count[side]++] = shelf.free[--shelf.free_count];
    return buffer;
  }
  for (PoolCache* cache = pool.caches; cache != nullptr; cache = cache->next)
    if (Buffer* buffer = take_cached(*cache, side)) return buffer;
  return nullptr;
}

// The side whose buffers hold `bytes`, or kSides.
Side side_for(const BufferPool& pool, std::size_t bytes) {
  for (Side side : {kSmall, kLarge})
    if (pool.sides[side].count != 0 && bytes <= pool.sides[side].length) return side;
  return kSides;
}

int hand_out(Buffer* buffer, rdmalloc_buffer** out) {
  // Relaxed: only says whether a put is right; locks order everything else.
  buffer->is_out.store(1, std::memory_order_relaxed);
  *out = handle_of(buffer);
  return 0;
}

// A waiter's `buffer` from its wait until it is called or cancelled, by which a second wait tells.
// Nothing that a waiter's memory has by chance; and of this process, since no waiter waits on in a
// child.
rdmalloc_buffer* mark_of_waiting(const rdmalloc_pool_waiter* waiter) {
  constexpr std::uintptr_t kMark = 0x9e3779b97f4a7c15;
  auto process = static_cast<std::uintptr_t>(os::process_id());
  return reinterpret_cast<rdmalloc_buffer*>(reinterpret_cast<std::uintptr_t>(waiter) ^
                                            (kMark + process));
}

// Relaxed: a second wait beside the call itself may say either.
bool is_waiting(rdmalloc_pool_waiter* waiter) {
  return std::atomic_ref(waiter->buffer).load(std::memory_order_relaxed) == mark_of_waiting(waiter);
}
void set_mark(rdmalloc_pool_waiter* waiter, rdmalloc_buffer* mark) {
  std::atomic_ref(waiter->buffer).store(mark, std::memory_order_relaxed);
}

void enqueue(PoolSide& shelf, rdmalloc_pool_waiter* waiter) {
  waiter->next = nullptr;
  set_mark(waiter, mark_of_waiting(waiter));
  (shelf.last_waiter != nullptr ? shelf.last_waiter->next : shelf.first_waiter) = waiter;
  shelf.last_waiter = waiter;
}

// Takes `waiter`, which follows `before` (NULL: is the first), out of the queue.
void unlink(PoolSide& shelf, rdmalloc_pool_waiter* before, rdmalloc_pool_waiter* waiter) {
  (before != nullptr ? before->next : shelf.first_waiter) = waiter->next;
  if (shelf.last_waiter == waiter) shelf.last_waiter = before;
}

// Gives the buffer to the waiter that has waited longest, which is to be called; else puts it on
// the free stack, and returns false. Under no lock.
bool share(BufferPool& pool, PoolCache* cache, Buffer* buffer) {
  Side side = buffer->side;
  LockGuard guard(pool.lock);
  PoolSide& shelf = pool.sides[side];
  if (rdmalloc_pool_waiter* waiter = shelf.first_waiter) {
    unlink(shelf, nullptr, waiter);
    pool.waiting[side].fetch_sub(1, std::memory_order_relaxed);
    ++shelf.gets;
    buffer->is_out.store(1, std::memory_order_relaxed);  // as in hand_out()
    buffer->waiter = waiter;
    return true;
  }
  shelf.free[shelf.free_count++] = buffer;
  if (cache == nullptr) return false;
  LockGuard cache_guard(cache->lock);
  if (cache->count[side] == kMostCached[side])
    while (cache->count[side] > kMostCached[side] / 2)
      shelf.free[shelf.free_count++] = cache->buffers(side)[--cache->count[side]];
  return false;
}

void call_ready(Buffer* buffer) {
  assert_no_lock_held("a pool's waiter");
  int saved = errno;
  rdmalloc_pool_waiter* waiter = buffer->waiter;
  set_mark(waiter, nullptr);
  waiter->ready(waiter, handle_of(buffer));
  errno = saved;
}

void note_jump(void* thread);

// Calls this thread's ready waiters, and those that they make ready. A callback may leave it by an
// exception, the end of the thread or longjmp(). Those behind its waiter have their buffers
// already, and are called on the way, as a destructor would: after this the thread may never come
// back to a pool. For the first two rdmalloc_pool_unwinds() is the frame's personality, which is
// asked for here, since the compiler would ask for that of libgcc, which this library does not
// link. longjmp() compares addresses of the stack with the buffer's: AddressSanitizer is not to put
// that elsewhere.
[[gnu::noinline, gnu::no_sanitize_address]] void call_all(PoolThread* thread) {
  asm volatile(".cfi_personality 0x1b, rdmalloc_pool_unwinds");  // 0x1b: a distance of 4 bytes
  _pthread_cleanup_buffer on_jump = {};
  _pthread_cleanup_push(&on_jump, note_jump, thread);
  thread->calling = &on_jump;
  while (Buffer* first = thread->first_ready) {
    thread->first_ready = first->next_ready;
    call_ready(first);
  }
  thread->calling = nullptr;
  _pthread_cleanup_pop(&on_jump, 0);
}

// Called by longjmp() and pthread_exit(), from below the frame that is left.
void note_jump(void* thread) {
  call_all(static_cast<PoolThread*>(thread));
}

// From here on the pool may be gone: a callback that puts its buffer may destroy it.
void call_back(Buffer* buffer) {
  PoolThread* thread = pool_thread();
  if (thread == nullptr) return call_ready(buffer);
  buffer->next_ready = nullptr;
  (thread->first_ready != nullptr ? thread->last_ready->next_ready : thread->first_ready) = buffer;
  thread->last_ready = buffer;
  if (thread->calling == nullptr) call_all(thread);  // else it is further up this stack
}

// The pool's buffer of that handle, or NULL.
Buffer* buffer_of(const BufferPool& pool, rdmalloc_buffer* handle) {
  std::uintptr_t offset =
      reinterpret_cast<std::uintptr_t>(handle) - reinterpret_cast<std::uintptr_t>(pool.buffers);
  if (offset % sizeof(Buffer) != 0 || offset / sizeof(Buffer) >= pool.total) return nullptr;
  return pool.buffers + offset / sizeof(Buffer);
}

rdmalloc_pool_side side_counters(BufferPool& pool, Side side) {
  const PoolSide& shelf = pool.sides[side];
  rdmalloc_pool_side counters = {};
  counters.bytes = shelf.length;
  counters.count = shelf.count;
  counters.free = shelf.free_count;
  counters.gets = shelf.gets;
  for (PoolCache* cache = pool.caches; cache != nullptr; cache = cache->next) {
    LockGuard guard(cache->lock);
    counters.cached += cache->count[side];
    counters.gets += cache->gets[side];
  }
  counters.in_use = counters.count - counters.free - counters.cached;
  counters.exhausted = shelf.exhausted;
  counters.waiting = pool.waiting[side].load(std::memory_order_relaxed);
  return counters;
}

}  // namespace

// A personality routine (Itanium C++ ABI, level I): an exception is on its way through call_all().
extern "C" int rdmalloc_pool_unwinds(int, int actions, std::uint64_t, void*, void*) {
  constexpr int kCleanupPhase = 2, kContinueUnwind = 8;
  PoolThread* thread = pool_thread();
  // At the end of the thread note_jump() was called already.
  if ((actions & kCleanupPhase) != 0 && thread->calling != nullptr) {
    _pthread_cleanup_pop(thread->calling, 0);
    call_all(thread);
  }
  return kContinueUnwind;
}

int pool_check(const BufferPool* pool) {
  BufferPools* all = buffer_pools.get();
  if (all == nullptr || pool < all->places || pool >= all->places + kMostPools ||
      (reinterpret_cast<std::uintptr_t>(pool) - reinterpret_cast<std::uintptr_t>(all->places)) %
              sizeof(BufferPool) !=
          0)
    return -EINVAL;
  // Acquire: pairs with create's release.
  if (pool->phase.load(std::memory_order_acquire) == Phase::kIsOpen) [[likely]]
    return 0;
  // A pool of this process that is gone has taken its mark with it.
  bool is_inherited = pool->phase.load(std::memory_order_relaxed) == Phase::kUnused &&
                      pool_survivors.is_open[pool - all->places].load(std::memory_order_relaxed);
  return is_inherited ? -ECHILD : -EINVAL;
}

}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_pool_get(rdmalloc_pool* handle, size_t bytes,
                                              rdmalloc_buffer** out) {
  BufferPool* pool = pool_of(handle);
  if (int error = pool_check(pool)) return error;
  if (out == nullptr) return -EINVAL;
  Side side = side_for(*pool, bytes);
  if (side == kSides) return -EMSGSIZE;
  PoolCache* cache = pool_cache(*pool);
  Buffer* buffer = cache != nullptr ? take_cached(*cache, side) : nullptr;
  if (buffer == nullptr) {
    rdmalloc::LockGuard guard(pool->lock);
    buffer = take_shared(*pool, side, cache);
    if (buffer == nullptr) {
      ++pool->sides[side].exhausted;
      return -EAGAIN;
    }
  }
  return hand_out(buffer, out);
}

extern "C" RDMALLOC_API int rdmalloc_pool_put(rdmalloc_pool* handle, rdmalloc_buffer* out) {
  BufferPool* pool = pool_of(handle);
  if (int error = pool_check(pool)) return error;
  Buffer* buffer = buffer_of(*pool, out);
  // Of two puts at once, one sees the buffer out.
  if (buffer == nullptr || buffer->is_out.exchange(0, std::memory_order_relaxed) == 0) {
    rdmalloc::report_warning("rdmalloc_pool_put",
                             "no buffer of this pool, or put already; ignored");
    return -EINVAL;
  }
  PoolCache* cache = pool_cache(*pool);
  if (cache != nullptr && keep_cached(*pool, *cache, buffer)) return 0;
  if (share(*pool, cache, buffer)) call_back(buffer);
  return 0;
}

extern "C" RDMALLOC_API int rdmalloc_pool_wait(rdmalloc_pool* handle, size_t bytes,
                                               rdmalloc_pool_waiter* waiter,
                                               rdmalloc_buffer** out) {
  BufferPool* pool = pool_of(handle);
  if (int error = pool_check(pool)) return error;
  if (out == nullptr || waiter == nullptr || waiter->ready == nullptr) return -EINVAL;
  Side side = side_for(*pool, bytes);
  if (side == kSides) return -EMSGSIZE;
  PoolCache* cache = pool_cache(*pool);
  Buffer* buffer = cache != nullptr ? take_cached(*cache, side) : nullptr;
  if (buffer != nullptr) return hand_out(buffer, out);
  rdmalloc::LockGuard guard(pool->lock);
  PoolSide& shelf = pool->sides[side];
  // Before the look at the caches: see the head of buffer_pool.h.
  pool->waiting[side].fetch_add(1, std::memory_order_relaxed);
  buffer = take_shared(*pool, side, nullptr);
  bool waits_already = is_waiting(waiter);
  if (buffer != nullptr || waits_already)
    pool->waiting[side].fetch_sub(1, std::memory_order_relaxed);
  if (buffer != nullptr) return hand_out(buffer, out);
  ++shelf.exhausted;
  if (waits_already) return -EALREADY;
  enqueue(shelf, waiter);
  return -EINPROGRESS;
}

extern "C" RDMALLOC_API int rdmalloc_pool_cancel(rdmalloc_pool* handle,
                                                 rdmalloc_pool_waiter* waiter) {
  BufferPool* pool = pool_of(handle);
  if (int error = pool_check(pool)) return error;
  rdmalloc::LockGuard guard(pool->lock);
  for (Side side : {kSmall, kLarge}) {
    PoolSide& shelf = pool->sides[side];
    rdmalloc_pool_waiter* before = nullptr;
    for (auto* one = shelf.first_waiter; one != nullptr; before = one, one = one->next) {
      if (one != waiter) continue;
      unlink(shelf, before, waiter);
      set_mark(waiter, nullptr);
      pool->waiting[side].fetch_sub(1, std::memory_order_relaxed);
      return 0;
    }
  }
  return -ENOENT;
}

extern "C" RDMALLOC_API int rdmalloc_pool_stats(rdmalloc_pool* handle,
                                                rdmalloc_pool_counters* wanted) {
  BufferPool* pool = pool_of(handle);
  if (int error = rdmalloc::check_struct(wanted)) return error;
  if (int error = pool_check(pool)) return error;
  rdmalloc::LockGuard guard(pool->lock);
  rdmalloc_pool_counters stats = {sizeof stats, side_counters(*pool, kSmall),
                                  side_counters(*pool, kLarge), pool->memory_bytes,
                                  pool->registration_count};
  rdmalloc::write_struct(stats, wanted);
  return 0;
}
