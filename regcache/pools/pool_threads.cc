// The caches of threads: made at the first use, emptied at the thread's end.
#include <errno.h>
#include <pthread.h>

#include "alloc/for_regcache.h"
#include "regcache/pools/buffer_pool.h"

namespace rdmalloc::regcache {
namespace {

// The record, or what of it a fork has left: zeroes, which mean a thread without caches.
constinit thread_local PoolThread* this_thread = nullptr;

// Made once for a process and its children: the key plus 1; 0 until one could be had.
constinit std::atomic<std::uint64_t> exit_key{0};

// Gives the cache's buffers to the free ones and takes it from its pool. Under the pool's lock.
void retire(BufferPool& pool, PoolCache* cache) {
  {
    LockGuard guard(cache->lock);
    for (Side side : {kSmall, kLarge}) {
      PoolSide& shelf = pool.sides[side];
      while (cache->count[side] != 0)
        shelf.free[shelf.free_count++] = cache->buffers(side)[--cache->count[side]];
      shelf.gets += cache->gets[side];
      cache->gets[side] = 0;
    }
  }
  if (cache->next != nullptr) cache->next->previous = cache->previous;
  (cache->previous != nullptr ? cache->previous->next : pool.caches) = cache->next;
  cache->place->store(nullptr, std::memory_order_relaxed);
  buffer_pools->caches.give(cache);
}

void on_thread_exit(void* value) {
  auto* thread = static_cast<PoolThread*>(value);
  this_thread = nullptr;
  {
    // No pool is destroyed meanwhile, so each cache's is there.
    LockGuard guard(buffer_pools->lock);
    for (std::atomic<PoolCache*>& place : thread->caches) {
      PoolCache* cache = place.load(std::memory_order_relaxed);
      if (cache == nullptr) continue;
      LockGuard pool_guard(cache->pool->lock);
      retire(*cache->pool, cache);
    }
  }
  buffer_pools->threads.give(thread);
}

}  // namespace

int pool_threads_prepare() {
  // Relaxed: the key is all that it says.
  if (exit_key.load(std::memory_order_relaxed) != 0) return 0;
  pthread_key_t key = 0;
  if (os::should_fail(os::Site::kThreadKey)) return -EAGAIN;
  if (int error = pthread_key_create(&key, on_thread_exit)) return -error;
  std::uint64_t expected = 0;
  if (!exit_key.compare_exchange_strong(expected, std::uint64_t{key} + 1,
                                        std::memory_order_relaxed))
    pthread_key_delete(key);
  return 0;
}

PoolThread* pool_thread() {
  if (this_thread != nullptr) [[likely]]
    return this_thread;
  PoolThread* thread = buffer_pools->threads.take(pool_survivors.threads);
  if (thread == nullptr) return nullptr;
  thread->first_ready = thread->last_ready = nullptr;
  thread->calling = nullptr;
  this_thread = thread;
  // Without it the record lives on after the thread, and what it caches is found by threads that
  // need it: nothing is lost but the record.
  pthread_setspecific(static_cast<pthread_key_t>(exit_key.load(std::memory_order_relaxed) - 1),
                      thread);
  return thread;
}

PoolCache* pool_cache(BufferPool& pool) {
  PoolThread* thread = pool_thread();
  if (thread == nullptr) [[unlikely]]
    return nullptr;
  std::atomic<PoolCache*>& place = thread->caches[pool.index];
  PoolCache* cache = place.load(std::memory_order_relaxed);
  if (cache != nullptr) [[likely]]
    return cache;
  cache = buffer_pools->caches.take(pool_survivors.caches);
  if (cache == nullptr) return nullptr;
  for (Side side : {kSmall, kLarge}) cache->count[side] = 0, cache->gets[side] = 0;
  cache->pool = &pool;
  cache->place = &place;
  cache->previous = nullptr;
  LockGuard guard(pool.lock);
  cache->next = pool.caches;
  if (pool.caches != nullptr) pool.caches->previous = cache;
  pool.caches = cache;
  place.store(cache, std::memory_order_relaxed);
  return cache;
}

std::uint32_t cached_count(BufferPool& pool, Side side) {
  std::uint32_t count = 0;
  for (PoolCache* cache = pool.caches; cache != nullptr; cache = cache->next) {
    LockGuard guard(cache->lock);
    count += cache->count[side];
  }
  return count;
}

void retire_caches(BufferPool& pool) {
  while (pool.caches != nullptr) retire(pool, pool.caches);
}

}  // namespace rdmalloc::regcache
