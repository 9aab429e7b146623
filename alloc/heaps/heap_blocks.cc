#include "alloc/heaps/heap_blocks.h"

#include <errno.h>

#include <cstring>
#include <utility>

#include "alloc/cache/take_back.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/fork.h"
#include "alloc/core/purge_signal.h"
#include "alloc/core/report.h"
#include "alloc/heaps/heap_regions.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/in_flight.h"
#include "alloc/pages/page_heap.h"
#include "alloc/slabs/slab.h"

namespace rdmalloc {
namespace {

// Locks a shard that no caller is in. When there is none the thread waits, and the heap gets more.
[[gnu::noinline]] HeapShard& lock_another_shard(Heap& heap) {
  std::uint32_t active = heap.active_shards.load(std::memory_order_acquire);
  std::uint32_t mine = thread_id();
  for (std::uint32_t i = 1; i < active; ++i) {
    HeapShard& shard = heap.shards[(mine + i) & (active - 1)];
    if (shard.lock.try_lock()) return shard;
  }
  HeapShard& shard = heap.shards[mine & (active - 1)];
  shard.lock.lock();
  // Not before: while there is one shard, the caller in it relies on being alone.
  if (active < kMostShards)
    heap.active_shards.compare_exchange_strong(active, active * 2, std::memory_order_release,
                                               std::memory_order_relaxed);
  return shard;
}

// Locks a shard of the heap: the one that the thread's id says, or another.
inline HeapShard& lock_shard(Heap& heap) {
  std::uint32_t active = heap.active_shards.load(std::memory_order_acquire);
  HeapShard& shard = heap.shards[thread_id() & (active - 1)];
  return shard.lock.try_lock() ? shard : lock_another_shard(heap);
}

// A shard of a heap, locked.
class ShardGuard {
 public:
  explicit ShardGuard(Heap& heap) : shard_(&lock_shard(heap)) { shard_->calls += 1; }
  // Of a shard that another one was relieved of.
  explicit ShardGuard(HeapShard& locked) : shard_(&locked) {}
  ~ShardGuard() {
    if (shard_ != nullptr) shard_->lock.unlock();
  }
  ShardGuard(const ShardGuard&) = delete;
  ShardGuard& operator=(const ShardGuard&) = delete;
  HeapShard& operator*() { return *shard_; }
  HeapShard& relieve() { return *std::exchange(shard_, nullptr); }

 private:
  HeapShard* shard_;
};

// Under the shard's lock.
void count_live(HeapShard& shard, std::int64_t bytes, std::int64_t blocks) {
  shard.live_bytes.store(shard.live_bytes.load(std::memory_order_relaxed) + bytes,
                         std::memory_order_relaxed);
  shard.live_blocks.store(shard.live_blocks.load(std::memory_order_relaxed) + blocks,
                          std::memory_order_relaxed);
}

// A heap that was there when the call began is not any more.
void* gone() {
#if RDMALLOC_CHECKED
  report_fatal("rdmalloc_heap_destroy() while another thread is in the heap", "rdmalloc(3)");
#endif
  errno = EINVAL;
  return nullptr;
}

Magazine* open_magazine(HeapShard& shard, unsigned size_class) {
  Magazine* magazine = shard.magazines[size_class];
  if (magazine == nullptr && (magazine = magazines.allocate()) != nullptr) {
    magazine->count = 0;
    order_for_fork();
    shard.magazines[size_class] = magazine;
  }
  return magazine;
}

// Gives the lower `count` blocks of a magazine back: those that were freed first.
bool spill(Heap& heap, HeapShard& shard, unsigned size_class, std::uint32_t count) {
  Magazine* magazine = shard.magazines[size_class];
  void* blocks[kMagazineSlots];
  std::uint32_t left = magazine->count - count;
  std::memcpy(blocks, magazine->slots, count * sizeof blocks[0]);
  // The child of a fork may believe a magazine as it stands: no block twice in it, at no moment.
  magazine->count = 0;
  order_for_fork();
  std::memmove(magazine->slots, magazine->slots + count, left * sizeof blocks[0]);
  order_for_fork();
  magazine->count = left;
  shard.count_held(-std::int64_t{count} * block_bytes_of(size_class));
  order_for_fork();
  return heap_slab_give_back(heap, size_class, blocks, count);
}

// Makes room in the shard for `bytes` more, by emptying classes in turn.
bool make_room(Heap& heap, HeapShard& shard, std::uint64_t bytes) {
  bool has_freed = false;
  for (unsigned looked = 0; shard.held() + bytes > kShardBytes && looked < kClasses; ++looked) {
    unsigned c = shard.drop_cursor + 1;
    shard.drop_cursor = c % (kClasses - 1);
    Magazine* magazine = shard.magazines[c];
    if (magazine != nullptr && magazine->count != 0)
      has_freed |= spill(heap, shard, c, magazine->count);
  }
  return has_freed;
}

// A block of the class for a shard that has none; nullptr when there is none to be had.
void* refill(Heap& heap, HeapShard& shard, unsigned size_class) {
  const ClassInfo& info = class_info(size_class);
  Magazine* magazine = open_magazine(shard, size_class);
  std::uint64_t room =
      shard.held() < kShardBytes ? (kShardBytes - shard.held()) / info.block_bytes : 0;
  std::uint32_t wanted = magazine == nullptr ? 1 : info.whole / 2u;
  if (wanted > room + 1) wanted = static_cast<std::uint32_t>(room) + 1;
  void* blocks[kMagazineSlots];
  std::uint32_t got = heap_slab_take(heap, size_class, blocks, wanted);
  if (got == 0) return nullptr;
  if (got > 1) {
    // The lowest addresses last: a run of allocations walks upwards through memory.
    std::memcpy(magazine->slots, blocks, (got - 1) * sizeof blocks[0]);
    order_for_fork();
    magazine->count = got - 1;
    shard.count_held(std::int64_t{got - 1} * info.block_bytes);
  }
  return blocks[got - 1];
}

// A block of the class that the shard has; nullptr when it has none.
inline void* take_block(HeapShard& shard, unsigned size_class) {
  Magazine* magazine = shard.magazines[size_class];
  if (magazine == nullptr || magazine->count == 0) [[unlikely]]
    return nullptr;
  magazine->count -= 1;
  shard.count_held(-std::int64_t{class_info(size_class).block_bytes});
  return magazine->slots[magazine->count];
}

void put_into(Magazine& magazine, HeapShard& shard, void* block, const ClassInfo& info) {
  magazine.slots[magazine.count] = block;
  order_for_fork();
  magazine.count += 1;
  shard.count_held(info.block_bytes);
}

// Puts a block, which is not live any more, where its magazine is missing or full, or the shard.
// Whether spans were freed.
[[gnu::noinline]] bool put_with_room(Heap& heap, HeapShard& shard, unsigned size_class,
                                     void* block) {
  const ClassInfo& info = class_info(size_class);
  Magazine* magazine = open_magazine(shard, size_class);
  if (magazine == nullptr) return heap_slab_give_back(heap, size_class, &block, 1);
  bool has_freed = false;
  if (magazine->count == info.whole)
    has_freed = spill(heap, shard, size_class, (magazine->count + 1) / 2);
  has_freed |= make_room(heap, shard, info.block_bytes);
  put_into(*magazine, shard, block, info);
  return has_freed;
}

// What is to be noted of a free, once no lock is held.
enum class Freed { kOnFastPath, kWithRoom, kSpans };

// Puts it into its magazine.
inline Freed put_block(Heap& heap, HeapShard& shard, unsigned size_class, void* block) {
  const ClassInfo& info = class_info(size_class);
  Magazine* magazine = shard.magazines[size_class];
  if (magazine == nullptr || magazine->count == info.whole ||
      shard.held() + info.block_bytes > kShardBytes) [[unlikely]]
    return put_with_room(heap, shard, size_class, block) ? Freed::kSpans : Freed::kWithRoom;
  put_into(*magazine, shard, block, info);
  return Freed::kOnFastPath;
}

// The block is the program's from now on.
[[gnu::always_inline]] inline void hand_out(const Heap& heap, HeapShard& shard, unsigned size_class,
                                            void* block) {
  const ClassInfo& info = class_info(size_class);
  if (set_live(heap, live_bit_of(block, info)))
    report_fatal_address("a heap is about to hand out a block that is in use", block);
  count_live(shard, info.block_bytes, 1);
}

// A block of the slabs, and others beside it for the next calls. Unlocks the shard.
[[gnu::noinline]] void* allocate_from_below(Heap& heap, HeapShard& locked, unsigned size_class) {
  void* block = nullptr;
  {
    ShardGuard shard(locked);
    block = refill(heap, *shard, size_class);
    if (block != nullptr) hand_out(heap, *shard, size_class, block);
  }
  // Either may wake the purge thread, which wants the lock.
  purge_note_new_pages();
  purge_note_caches_change();
  return block;
}

inline void* allocate_small(Heap& heap, std::uint64_t handle, unsigned size_class) {
  ShardGuard shard(heap);
  if (!heap.is(handle)) return nullptr;
  void* block = take_block(*shard, size_class);
  if (block == nullptr) [[unlikely]]
    return allocate_from_below(heap, shard.relieve(), size_class);
  hand_out(heap, *shard, size_class, block);
  return block;
}

// No span is so long, or lies so.
bool is_beyond_arena(std::size_t bytes, std::size_t alignment) {
  return bytes > arena.extent() || alignment > arena.extent();
}

void* allocate_large(Heap& heap, std::uint64_t handle, std::size_t bytes, std::size_t alignment,
                     bool* is_zero) {
  if (is_beyond_arena(bytes, alignment)) return nullptr;
  SliceIndex slice = heap_large_take(heap, handle, slices_for(bytes), alignment, is_zero);
  purge_note_new_pages();
  return slice == 0 ? nullptr : reinterpret_cast<void*>(arena.address_of(slice));
}

// The class of a request; 0 when it takes a span.
unsigned class_for(std::size_t bytes, std::size_t alignment) {
  if (bytes > kSmallMax) return 0;
  if (alignment <= 16) return heap_class_of(bytes);
  return aligned_class_of(alignment, bytes < kSmallestHeapBlock ? kSmallestHeapBlock : bytes);
}

void* allocate_once(Heap& heap, std::uint64_t handle, std::size_t bytes, std::size_t alignment,
                    bool* is_zero) {
  *is_zero = false;
  unsigned size_class = class_for(bytes, alignment);
  return size_class != 0 ? allocate_small(heap, handle, size_class)
                         : allocate_large(heap, handle, bytes, alignment, is_zero);
}

// Whether it is the page heap that has refused, and not the heap's budget or its regions.
bool spans_may_help(const Heap& heap, std::size_t bytes) {
  return !has_regions(heap) && heap_has_budget(heap, slices_for(bytes));
}
// Whether it is spans that are missing there, and not what RDMALLOC_LIMIT leaves of them.
bool is_short_of_spans(const Heap& heap, std::size_t bytes) {
  return spans_may_help(heap, bytes) && !page_heap_is_over_limit(slices_for(bytes));
}

// The end of an allocation for which there is no memory.
void* refuse(Heap& heap, std::uint64_t handle) {
  if (!heap.is(handle)) return gone();
  heap.refusals.fetch_add(1, std::memory_order_relaxed);
  errno = ENOMEM;
  return nullptr;
}

[[noreturn]] void report_no_block(const void* block) {
  report_fatal_address("free() of an address inside a block, not its start", block);
}
[[noreturn]] void report_double_free(const void* block) {
  report_fatal_address("double free(), or free() of a block of a destroyed heap", block);
}

inline Freed free_small(const HeapBlock& at, void* block) {
  Heap& heap = *at.heap;
  unsigned size_class = at.word().size_class;
  ShardGuard shard(heap);
  // Once more under the lock, where a destroy that has begun would wait for us.
  if (!is_live(heap.handle.load(std::memory_order_relaxed)) ||
      arena.span(at.slice).word.load(std::memory_order_acquire) != at.packed_word ||
      !clear_live(heap, live_bit_of(at)))
    report_double_free(block);
  count_live(*shard, -static_cast<std::int64_t>(class_info(size_class).block_bytes), -1);
  return put_block(heap, *shard, size_class, block);
}

void free_large(const HeapBlock& at, void* block) {
  if (!heap_large_free(*at.heap, at.slice)) report_double_free(block);
  purge_note_dirty();
}

// As for malloc's blocks: one that is at least half used stays, and one whose class is the smallest
// there is for it.
bool is_good_enough(const HeapBlock& at, std::size_t bytes) {
  std::size_t usable = at.bytes();
  if (bytes > usable) return false;
  return bytes >= usable / 2 ||
         (bytes <= kSmallMax && block_bytes_of(heap_class_of(bytes)) == usable);
}

// Makes a large block fit where it lies.
bool resize_large(const HeapBlock& at, std::size_t bytes) {
  if (at.word().kind != SpanKind::kHeapLarge || bytes <= kSmallMax || bytes > arena.extent())
    return false;
  bool has_freed = false;
  bool fits = heap_large_resize(*at.heap, at.slice, slices_for(bytes), &has_freed);
  if (has_freed)
    purge_note_dirty();
  else
    purge_note_new_pages();
  return fits;
}

}  // namespace

void heap_note_freed() {
  slab_note_change();
  purge_note_dirty();
}

// Of a free that went the slow way: the magazine may be new, and the frees that follow note
// nothing.
[[gnu::noinline]] static void note_slow_free(Freed freed) {
  purge_note_caches_change();
  if (freed == Freed::kSpans) heap_note_freed();
}

// A small block of the heap, unless that takes more than a look at what it has.
void* heap_malloc(std::uint64_t handle, std::size_t bytes) {
  fork_check();
  Heap* heap = heap_of_handle(handle);
  if (heap != nullptr && bytes <= kSmallMax) [[likely]]
    if (void* block = allocate_small(*heap, handle, heap_class_of(bytes))) [[likely]]
      return block;
  bool is_zero = false;
  return heap_allocate(handle, bytes, 1, &is_zero);
}

void* heap_allocate(std::uint64_t handle, std::size_t bytes, std::size_t alignment, bool* is_zero) {
  fork_check();
  Heap* heap = heap_of_handle(handle);
  if (heap == nullptr) {
    errno = EINVAL;
    return nullptr;
  }
  MemoryWait wait;
  void* block = allocate_once(*heap, handle, bytes, alignment, is_zero);
  if (block != nullptr) return block;
  // No cache is emptied for what no memory can give.
  if (is_beyond_arena(bytes, alignment)) return refuse(*heap, handle);
  // What the magazines and the last empty slabs hold may make room in the budget.
  if (heap_flush(*heap)) heap_note_freed();
  TakeBack take_back;
  do {
    block = allocate_once(*heap, handle, bytes, alignment, is_zero);
    if (block != nullptr) return block;
  } while ((is_short_of_spans(*heap, bytes) && wait.again()) ||
           (spans_may_help(*heap, bytes) && take_back.again(slices_for(bytes))));
  return refuse(*heap, handle);
}

void heap_block_free(void* block) {
  fork_check();
  HeapBlock at = heap_block_at(block);
  if (at.heap == nullptr) report_double_free(block);
  if (!at.is_start) report_no_block(block);
  if (at.word().kind == SpanKind::kHeapLarge) return free_large(at, block);
  Freed freed = free_small(at, block);
  if (freed != Freed::kOnFastPath) [[unlikely]]
    note_slow_free(freed);
}

std::size_t heap_block_bytes(const void* block) {
  HeapBlock at = heap_block_at(block);
  return at.heap == nullptr || (at.word().kind == SpanKind::kHeapLarge && !at.is_start)
             ? 0
             : at.bytes();
}

void* heap_block_resize(void* block, std::size_t bytes) {
  fork_check();
  HeapBlock at = heap_block_at(block);
  if (at.heap == nullptr) report_double_free(block);
  if (!at.is_start)
    report_fatal_address("realloc() of an address inside a block, not its start", block);
  std::size_t usable = at.bytes();
  if (is_good_enough(at, bytes) || resize_large(at, bytes)) return block;
  int saved = errno;
  std::uint64_t handle = at.heap->handle.load(std::memory_order_relaxed);
  void* moved = nullptr;
  // A large block that grows has done so before, and will again.
  if (at.word().kind == SpanKind::kHeapLarge && bytes > usable && bytes <= arena.extent() / 4)
    if (SliceIndex slice = heap_large_take_growing(*at.heap, handle, slices_for(bytes)))
      moved = reinterpret_cast<void*>(arena.address_of(slice));
  bool is_zero = false;
  if (moved == nullptr) moved = heap_allocate(handle, bytes, 1, &is_zero);
  if (moved == nullptr) {
    // As in reallocate_unclassed().
    if (!resize_large(at, bytes) && bytes > usable) return nullptr;
    errno = saved;
    return block;
  }
  std::memcpy(moved, block, usable < bytes ? usable : bytes);
  heap_block_free(block);
  return moved;
}

bool heap_shard_flush(Heap& heap, HeapShard& shard) {
  bool has_freed = false;
  for (unsigned c = 1; c < kClasses; ++c) {
    Magazine* magazine = shard.magazines[c];
    if (magazine == nullptr) continue;
    if (magazine->count != 0) has_freed |= spill(heap, shard, c, magazine->count);
    shard.magazines[c] = nullptr;
    order_for_fork();
    magazines.free(magazine);
  }
  return has_freed;
}

bool heap_flush(Heap& heap) {
  bool has_freed = false;
  std::uint32_t active = heap.active_shards.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < active; ++i) {
    LockGuard guard(heap.shards[i].lock);
    if (!is_live(heap.handle.load(std::memory_order_relaxed))) return has_freed;
    has_freed |= heap_shard_flush(heap, heap.shards[i]);
  }
  return heap_slab_trim(heap) || has_freed;
}

}  // namespace rdmalloc
