// Pools of equal registered buffers: the state of a pool, and where each buffer is.
//
// Each buffer of one size ("side") is at any time in exactly one of these places:
//
//   free      on the side's stack                                        pool's lock
//   cached    in the cache of a thread                                   that cache's lock
//   out       with the user; its is_out says so
//
//   count == free + cached + out        waiting != 0  =>  free == 0 and cached == 0
//
// The second holds because a thread that begins to wait first raises `waiting`, then looks through
// the free stack and every cache, each under its lock; and a put looks at `waiting` under the lock
// of the cache that it puts into. One of the two takes that lock first: either the waiter finds the
// buffer, or the put sees the waiter. So waiters are served in their order, and a buffer in the
// cache of an idle thread can always be had.
//
// Lock order: BufferPools::lock, a pool's lock, a cache's. No callback and no registrar is called
// under any of them (I2).
#pragma once

#include <pthread.h>
#include <rdmalloc/regcache.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/domain.h"
#include "regcache/core/pool.h"
#include "regcache/core/rooms.h"

namespace rdmalloc::regcache {

inline constexpr std::size_t kMostPools = 60;

enum Side : std::uint32_t { kSmall, kLarge, kSides };

// The user's rdmalloc_buffer. Not in memory that is wiped on fork: address and length stay true in
// a child. The keys are in such memory.
struct alignas(64) Buffer {
  void* address;
  std::size_t length;
  const rdmalloc_key* keys;
  std::atomic<std::uint32_t> is_out;
  Side side;
  // Until it is called: the waiter that has it, and the next in PoolThread's list.
  rdmalloc_pool_waiter* waiter;
  Buffer* next_ready;
};
static_assert(sizeof(Buffer) == sizeof(rdmalloc_buffer));
static_assert(offsetof(Buffer, address) == offsetof(rdmalloc_buffer, addr) &&
              offsetof(Buffer, length) == offsetof(rdmalloc_buffer, length) &&
              offsetof(Buffer, keys) == offsetof(rdmalloc_buffer, keys));

// Most buffers of each side that one thread keeps: what fills a record of 1 KiB. SPDK's defaults
// are 128 and 16 (lib/thread/iobuf.c).
inline constexpr std::uint32_t kMostCached[kSides] = {96, 24};

struct BufferPool;

// The buffers that one thread keeps of one pool.
struct alignas(64) PoolCache {
  Lock lock;  // taken by its thread, and by threads that find no buffer elsewhere
  std::uint32_t count[kSides];
  std::uint64_t gets[kSides];
  BufferPool* pool;
  std::atomic<PoolCache*>* place;  // where its thread finds it
  PoolCache* next;                 // of the pool's, or of the free records
  PoolCache* previous;
  Buffer* small[kMostCached[kSmall]];
  Buffer* large[kMostCached[kLarge]];

  Buffer** buffers(Side side) { return side == kSmall ? small : large; }
  static PoolCache*& free_link(PoolCache* cache) { return cache->next; }
};
static_assert(sizeof(PoolCache) == 1024);

// What one thread has of all pools.
struct PoolThread {
  // Filled by the thread, emptied by it or by a pool's destruction, with no call for it under way.
  std::atomic<PoolCache*> caches[kMostPools];
  PoolThread* next;  // of the free records
  // Buffers that waiters got inside a callback. Their callbacks run when that one has returned, so
  // that a queue of any length takes no stack.
  Buffer* first_ready;
  Buffer* last_ready;
  // In the stack frame of call_all(), which runs callbacks; nullptr: none. An exception, the end of
  // the thread and longjmp() end it on their way.
  _pthread_cleanup_buffer* calling;

  static PoolThread*& free_link(PoolThread* thread) { return thread->next; }
};
static_assert(sizeof(PoolThread) == 512);

struct PoolSide {
  std::size_t length;  // of one buffer
  std::uint32_t count;
  std::uint32_t free_count;
  Buffer** free;  // a stack
  rdmalloc_pool_waiter* first_waiter;
  rdmalloc_pool_waiter* last_waiter;
  std::uint64_t gets;  // other than from caches that are there now
  std::uint64_t exhausted;
};

struct alignas(64) BufferPool {
  // Written by create only.
  std::atomic<Phase> phase;
  std::uint16_t index;
  Buffer* buffers;  // first all small ones, then all large ones
  std::uint32_t total;
  std::size_t domain_count;
  std::uint8_t domains[kMostDomains];  // indices
  std::uint32_t access;
  bool is_remote;
  std::uint64_t piece_bytes;  // with local access
  rdmalloc_key* keys;         // [piece][domain]
  void* memory;
  std::uint64_t memory_bytes;
  rdmalloc_reg** registrations;  // [piece][domain]; NULL while quiesced, and in a lost domain
  std::size_t registration_count;
  // How many wait for each side. Written under the pool's lock, read under caches' locks.
  alignas(64) std::atomic<std::uint32_t> waiting[kSides];

  alignas(64) Lock lock;
  PoolSide sides[kSides];
  PoolCache* caches;
};

struct BufferPools {
  Lock lock;  // creating and destroying pools, and the ends of threads; before a pool's lock
  Pool<PoolCache> caches;
  Pool<PoolThread> threads;
  BufferPool places[kMostPools];
};
extern constinit WipedObject<BufferPools> buffer_pools;

// A mapping that is used again where its length is enough.
struct KeptMapping {
  std::atomic<std::uintptr_t> base{0};
  std::atomic<std::size_t> length{0};
};

// Where the parent's pools are, for its children. The buffers' addresses and the memory itself are
// the child's too; their keys and registrations are not.
struct PoolSurvivors {
  std::atomic<bool> is_open[kMostPools] = {};
  std::atomic<void*> memory[kMostPools] = {};
  KeptMapping buffers[kMostPools] = {};
  KeptMapping tables[kMostPools] = {};
  PoolMemory caches;
  PoolMemory threads;
};
extern constinit PoolSurvivors pool_survivors;

// What the core and a checkpoint call (core/rooms.h).
extern const Holder pool_holder;

inline BufferPool* pool_of(rdmalloc_pool* handle) {
  return reinterpret_cast<BufferPool*>(handle);
}
inline rdmalloc_buffer* handle_of(Buffer* buffer) {
  return reinterpret_cast<rdmalloc_buffer*>(buffer);
}

// 0 when calls may go on; -EINVAL for no pool, -ECHILD for one of a parent process.
int pool_check(const BufferPool* pool);

// ---- threads and their caches (pool_threads.cc) ----

// 0 once there is a destructor that empties the caches of a thread at its end. Under no lock.
int pool_threads_prepare();
// The calling thread's record and its cache for the pool; NULL when there is no memory for them.
PoolThread* pool_thread();
PoolCache* pool_cache(BufferPool& pool);
// Buffers of the side in all caches. Under the pool's lock.
std::uint32_t cached_count(BufferPool& pool, Side side);
// Takes every cache of the pool from its thread. Under BufferPools::lock and the pool's lock.
void retire_caches(BufferPool& pool);

}  // namespace rdmalloc::regcache
