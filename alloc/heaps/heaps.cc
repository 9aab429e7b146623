// Making, finding and destroying heaps of the user, and what happens to them from outside: the
// purge thread's look, statistics, fork.
#include <errno.h>

#include <bit>

#include "alloc/cache/take_back.h"
#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/core/report.h"
#include "alloc/heaps/heap_blocks.h"
#include "alloc/heaps/heap_regions.h"
#include "alloc/heaps/heap_spans.h"
#include "alloc/os/cancel.h"
#include "alloc/os/memory.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {

constinit Pool<Heap> heaps;

namespace {

// Reserved by the first heap: programs without one pay nothing.
constinit Lock reserve_lock;
// Release at the end of reserve_heaps() pairs with acquire by a walk over the slots.
constinit std::atomic<bool> is_reserved{false};
// What is left of them under the tightest limit: addresses given up don't come back.
constexpr std::size_t kLeastHeaps = 64;
// Makes every handle another one, whatever its slot.
constinit std::atomic<std::uint64_t> last_generation{0};

// In proportion to the addresses there are, as the threads' caches.
std::size_t reserved_for_heaps(std::uint64_t room_bytes) {
  constexpr std::size_t kAll = (std::size_t{kMostHeaps} + 1) * sizeof(Heap);
  constexpr std::size_t kLeast = kLeastHeaps * sizeof(Heap);
  std::uint64_t part = room_bytes / 256;
  if (part < kLeast) return kLeast;
  return part < kAll ? part : kAll;
}

int reserve_heaps() {
  LockGuard guard(reserve_lock);
  if (is_reserved.load(std::memory_order_relaxed)) return 0;
  // The program may have lowered it since the start.
  std::uint64_t room_bytes = os::address_limit().bytes;
  if (room_bytes > arena.room_bytes) room_bytes = arena.room_bytes;
  if (int error = heaps.reserve(reserved_for_heaps(room_bytes))) return error;
  detail::age_heaps.store(heaps_age, std::memory_order_relaxed);
  is_reserved.store(true, std::memory_order_release);
  return 0;
}

template <typename Function>
void for_each_slot(Function function) {
  if (!is_reserved.load(std::memory_order_acquire)) return;
  for (std::uint32_t slot = 1; slot < heaps.used(); ++slot) function(*heaps.at(slot));
}

// What is left once no caller can reach the heap any more. `kept`: see heap_registrar.h.
void free_everything(Heap& heap, std::uint64_t kept) {
  for (HeapShard& shard : heap.shards) {
    LockGuard guard(shard.lock);
    for (Magazine*& slot : shard.magazines) {
      Magazine* magazine = slot;
      slot = nullptr;
      if (magazine != nullptr) magazines.free(magazine);
    }
    shard.held_bytes.store(0, std::memory_order_relaxed);
    shard.live_bytes.store(0, std::memory_order_relaxed);
    shard.live_blocks.store(0, std::memory_order_relaxed);
  }
  heap_free_all_spans(heap);
  if (has_regions(heap)) regions_end(heap, kept);
}

// Bytes of small blocks that live, by the shards' counts.
std::uint64_t small_live(const Heap& heap, std::atomic<std::int64_t> HeapShard::*counter) {
  std::int64_t sum = 0;
  for (const HeapShard& shard : heap.shards)
    sum += (shard.*counter).load(std::memory_order_relaxed);
  return sum > 0 ? static_cast<std::uint64_t>(sum) : 0;
}

// ---- walking ----

using WalkFunction = int (*)(void* block, std::size_t usable_bytes, void* arg);

// A slab that came in its place since, of this heap and that class, is walked on: what is live
// there is the heap's too. Its generation doesn't tell: it changes when a purge takes some of its
// pages.
int walk_slab(const Heap& heap, std::uint64_t handle, SliceIndex slice, SpanWord word,
              WalkFunction fn, void* arg) {
  std::size_t bytes = block_bytes_of(word.size_class);
  for (std::uint32_t w = 0; w < slab_words_in(word.size_class, word.slices); ++w) {
    std::uint64_t seen = 0;
    for (;;) {
      // Looked at anew for each block: `fn` may free others.
      std::uint64_t bits = live_word(slice, w).load(std::memory_order_relaxed) & ~seen;
      if (bits == 0) break;
      auto bit = static_cast<std::uint32_t>(std::countr_zero(bits));
      // This one, and those below it, which may have come since.
      seen |= (bits & -bits) | ((bits & -bits) - 1);
      std::uintptr_t index = w * 64 + bit;
      if (int result =
              fn(reinterpret_cast<void*>(arena.address_of(slice) + index * bytes), bytes, arg))
        return result;
      if (!heap.is(handle) || pack(arena.span(slice).load()) != pack(word)) return 0;
    }
  }
  return 0;
}

int walk_span(const Heap& heap, std::uint64_t handle, SliceIndex slice, SpanWord word,
              WalkFunction fn, void* arg) {
  if (word.kind == SpanKind::kHeapSlab) return walk_slab(heap, handle, slice, word, fn, arg);
  return fn(reinterpret_cast<void*>(arena.address_of(slice)),
            std::size_t{word.slices} << kSliceShift, arg);
}

// ---- the child of a fork ----

// Makes a heap whole. What threads of the parent were changing is made anew, and then the locks
// that they held are freed: not before, since a fork of this child that finds them free believes
// the heap. Nothing of a heap changes without one of its locks, so one none of whose locks was held
// is whole.
void repair(Heap& heap, const Forker& forker) {
  std::uint64_t handle = heap.handle.load(std::memory_order_relaxed);
  if (handle == 0) return;
  auto for_each_lock = [&](auto function) {
    for (HeapShard& shard : heap.shards) function(shard.lock);
    for (HeapClass& slabs : heap.classes) function(slabs.lock);
    function(heap.span_lock);
  };
  bool is_orphaned = false;
  for_each_lock([&](const Lock& lock) { is_orphaned |= lock.is_orphaned(); });
  auto free_locks = [&] { for_each_lock([&](Lock& lock) { lock.reset(); }); };
  if (!is_live(handle) && handle != (kEnding | forker.id)) {
    // The handle, not a lock, says until the end that this is to be done.
    heap_rebuild_spans(heap, true);
    free_locks();
    free_everything(heap, 0);  // no device reaches a child's memory
    heap.handle.store(0, std::memory_order_release);
    heaps.free(&heap);
    return;
  }
  // What another thread was adding is lost to the child; one that forked in a call of the registrar
  // goes on.
  if (heap.grower.load(std::memory_order_relaxed) != forker.id)
    heap.grower.store(0, std::memory_order_relaxed);
  if (!is_orphaned) return;
  // A destroy that forked in a call of the registrar goes on, with what its magazines hold.
  bool is_exact = is_live(handle);
  if (is_exact) {
    for (HeapShard& shard : heap.shards) {
      for (Magazine* magazine : shard.magazines)
        if (magazine != nullptr) magazine->count = 0;
      shard.held_bytes.store(0, std::memory_order_relaxed);
    }
  }
  heap_rebuild_spans(heap, is_exact);
  free_locks();
}

// The calls of a registrar that belong together. It is NULL for heaps that are not registered.
class RegistrarScope {
 public:
  RegistrarScope(const HeapRegistrar* registrar, bool unmakes) : registrar_(registrar) {
    if (registrar_ != nullptr) error_ = registrar_->enter(unmakes, &token_);
  }
  ~RegistrarScope() {
    if (registrar_ != nullptr && error_ == 0) registrar_->leave(token_);
  }
  RegistrarScope(const RegistrarScope&) = delete;
  RegistrarScope& operator=(const RegistrarScope&) = delete;
  int error() const { return error_; }

 private:
  os::NoCancelScope not_cancelled_;  // ends last
  const HeapRegistrar* registrar_;
  int error_ = 0;
  std::uint64_t token_ = 0;
};

// The registrar of a heap that is there.
const HeapRegistrar* registrar_of(const Heap& heap) {
  // Acquire: pairs with the release of the registration cache.
  return heap.place.load(std::memory_order_relaxed) != 0
             ? heap_registrar.load(std::memory_order_acquire)
             : nullptr;
}

// Takes and registers the memory of a heap that no caller knows yet. 0 or a negative errno with
// nothing left behind, but for regions that can't be deregistered (remove_regions()).
int fill_regions(Heap& heap, std::uint64_t handle, const HeapPlan& plan) {
  std::size_t unit = pool_page_bytes(plan.pages);
  if (unit < kChunkBytes) unit = kChunkBytes;
  heap.region_limits = {SIZE_MAX & ~(unit - 1), unit, kMostRegions, plan.node, plan.pages};
  heap.budget_slices.store(0, std::memory_order_relaxed);
  // Acquire: pairs with the release of the registration cache.
  const HeapRegistrar* registrar = heap_registrar.load(std::memory_order_acquire);
  std::uint32_t place = 0;
  if (plan.domain_count != 0 && registrar == nullptr) {
    report_warning("rdmalloc_heap_create",
                   "`domains` are named, and none was opened yet; open them first");
    return -EINVAL;
  }
  RegistrarScope scope(plan.domain_count != 0 ? registrar : nullptr, false);
  if (int error = scope.error()) return error;
  if (plan.domain_count != 0) {
    if (int error = registrar->begin(handle, plan.domains, plan.domain_count, plan.access,
                                     &heap.region_limits, &place))
      return error;
  }
  heap.place.store(place, std::memory_order_relaxed);
  int error = regions_add(heap, handle, plan.budget_bytes);
  if (error != 0 && place != 0 && !has_regions(heap)) {
    registrar->give_up(place, handle);
    heap.place.store(0, std::memory_order_relaxed);
  }
  return error;
}

}  // namespace

void heaps_fit_limit(std::uint64_t limit_bytes) {
  {
    // A first heap that is being made has read the limit before it was lowered, maybe.
    LockGuard guard(reserve_lock);
    if (!is_reserved.load(std::memory_order_relaxed)) return;
  }
  heaps.give_up_beyond(reserved_for_heaps(limit_bytes));
}

int heap_create(const HeapPlan& plan, std::uint64_t* handle) {
  if (!ensure_initialised()) return -ENOMEM;
  fork_check();
  if (int error = reserve_heaps()) return error;
  Heap* heap = heaps.allocate();
  std::uint32_t slot = heap != nullptr ? slot_of(*heap) : kMostHeaps + 1;
  if (slot > kMostHeaps) {
    if (heap != nullptr) heaps.free(heap);
    Message()
        .text("warning: rdmalloc_heap_create: there are as many heaps as can be: ")
        .number(kMostHeaps)
        .text(", fewer where address space is short (RLIMIT_AS); destroy one")
        .warn();
    return -ENOSPC;
  }
  heap->budget_slices.store(plan.budget_bytes >> kSliceShift, std::memory_order_relaxed);
  heap->active_shards.store(1, std::memory_order_relaxed);
  heap->most_span_slices.store(0, std::memory_order_relaxed);
  heap->refusals.store(0, std::memory_order_relaxed);
  std::uint64_t generation = last_generation.fetch_add(1, std::memory_order_relaxed) + 1;
  std::uint64_t made = generation << kHandleSlotBits | slot;
  if (plan.has_regions) {
    if (int error = fill_regions(*heap, made, plan)) {
      if (!has_regions(*heap)) {
        heaps.free(heap);
        return error;
      }
      // A caller holds a registration of what was taken: the heap ends once that is put.
      heap->handle.store(made, std::memory_order_release);
      (void)heap_abandon(made);
      return error;
    }
  }
  *handle = made;
  // Release: pairs with the acquire in heap_of_handle().
  heap->handle.store(made, std::memory_order_release);
  return 0;
}

int heap_grow(std::uint64_t handle, std::uint64_t bytes) {
  if (!ensure_initialised()) return -ENOMEM;
  fork_check();
  Heap* heap = heap_of_handle(handle);
  if (heap == nullptr || !has_regions(*heap)) return -EINVAL;
  // Acquire, and release: the regions that the one before added.
  std::uint32_t none = 0;
  if (!heap->grower.compare_exchange_strong(none, thread_id(), std::memory_order_acquire,
                                            std::memory_order_relaxed))
    return -EBUSY;
  int error = 0;
  {
    RegistrarScope scope(registrar_of(*heap), false);
    error = scope.error();
    if (error == 0) error = regions_add(*heap, handle, bytes);
  }
  heap->grower.store(0, std::memory_order_release);
  return error;
}

int heap_abandon(std::uint64_t handle) {
  int error = heap_destroy(handle);
  const Heap* heap = error != 0 ? heap_of_handle(handle) : nullptr;
  const HeapRegistrar* registrar = heap != nullptr ? registrar_of(*heap) : nullptr;
  if (registrar == nullptr) return error;
  registrar->abandon(heap->place.load(std::memory_order_relaxed), handle);
  return heap_of_handle(handle) == nullptr ? 0 : -EINPROGRESS;
}

int heap_destroy(std::uint64_t handle) {
  if (!ensure_initialised()) return -ENOMEM;
  fork_check();
  os::NoCancelScope no_cancel;  // observers may be asked, with the turn
  Heap* heap = heap_of_handle(handle);
  std::uint64_t seen = handle, kept = 0;
  // Acquire: pairs with the release in heap_create(), as heap_of_handle() does. One thread wins.
  if (heap == nullptr ||
      !heap->handle.compare_exchange_strong(seen, kEnding | thread_id(), std::memory_order_acquire,
                                            std::memory_order_relaxed))
    return -EINVAL;
  if (std::uint32_t place = heap->place.load(std::memory_order_relaxed)) {
    assert_no_lock_held("rdmalloc_heap_destroy()");
    RegistrarScope scope(registrar_of(*heap), true);
    int error = scope.error();
    if (error == 0) error = registrar_of(*heap)->end(place, handle, 0, &kept);
    if (error != 0) {
      heap->handle.store(handle, std::memory_order_release);
      return error;
    }
    registrar_of(*heap)->give_up(place, handle);
  }
  free_everything(*heap, kept);
  // Release: pairs with the acquire of the caller that gets the slot next, by way of the pool's
  // stack.
  heap->handle.store(0, std::memory_order_release);
  heaps.free(heap);
  // Of any heap: none are retired, most times.
  if (page_heap_retired_slices() != 0) region_pages_restore();
  purge_note_dirty();
  return 0;
}

int heap_walk(std::uint64_t handle, WalkFunction fn, void* arg) {
  if (!ensure_initialised()) return -ENOMEM;
  fork_check();
  assert_no_lock_held("rdmalloc_heap_walk()");
  Heap* heap = heap_of_handle(handle);
  if (heap == nullptr) return -EINVAL;
  SliceIndex end = page_heap_frontier();
  for (SliceIndex slice = end == 0 ? 0 : 1; slice < end; slice = page_heap_next(slice, end)) {
    SpanWord word = arena.span(slice).load();
    if (!is_in_use(word.kind) || word.heap != slot_of(*heap)) continue;
    if (int result = walk_span(*heap, handle, slice, word, fn, arg)) return result;
    if (!heap->is(handle)) return -EINVAL;
  }
  return 0;
}

void heaps_bind_again() {
  for_each_slot([](Heap& heap) {
    // Not one that is being made: in the child of a fork its maker may be gone, with its lock held
    // (repair).
    if (is_live(heap.handle.load(std::memory_order_relaxed)) && has_regions(heap))
      regions_bind_again(heap);
  });
}

bool heaps_age(bool everything) {
  bool is_something_left = false;
  for_each_slot([&](Heap& heap) {
    bool is_idle = true;
    // The rest was never used; dead slots are passed by.
    if (!is_live(heap.handle.load(std::memory_order_relaxed))) return;
    std::uint32_t active = heap.active_shards.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < active; ++i) {
      HeapShard& shard = heap.shards[i];
      LockGuard guard(shard.lock);
      if (!is_live(heap.handle.load(std::memory_order_relaxed))) return;
      if (!everything && shard.calls != shard.calls_at_age) {
        shard.calls_at_age = shard.calls;
        is_idle = false;
      } else {
        (void)heap_shard_flush(heap, shard);  // the caller purges now
      }
    }
    if (is_idle) (void)heap_slab_trim(heap);
    is_something_left |= !is_idle;
  });
  return is_something_left;
}

HeapState heap_state(const Heap& heap) {
  auto bytes = [](const std::atomic<std::uint64_t>& slices) {
    return slices.load(std::memory_order_relaxed) << kSliceShift;
  };
  HeapState state{};
  state.budget_bytes = bytes(heap.budget_slices);
  state.span_bytes = bytes(heap.span_slices);
  state.most_span_bytes = bytes(heap.most_span_slices);
  state.large_bytes = bytes(heap.large_slices);
  state.large_blocks = heap.large_blocks.load(std::memory_order_relaxed);
  state.live_bytes = small_live(heap, &HeapShard::live_bytes) + state.large_bytes;
  state.live_blocks = small_live(heap, &HeapShard::live_blocks) + state.large_blocks;
  for (const HeapShard& shard : heap.shards) state.cached_bytes += shard.held();
  state.refusals = heap.refusals.load(std::memory_order_relaxed);
  if (has_regions(heap)) state.region_bytes = state.budget_bytes;
  state.huge_2m_bytes = bytes(heap.huge_2m_slices);
  state.huge_1g_bytes = bytes(heap.huge_1g_slices);
  return state;
}

HeapCounters heap_counters() {
  HeapCounters counters{};
  for_each_slot([&](const Heap& heap) {
    if (!is_live(heap.handle.load(std::memory_order_acquire))) return;
    HeapState state = heap_state(heap);
    counters.heaps += 1;
    counters.span_bytes += state.span_bytes;
    counters.live_bytes += state.live_bytes;
    counters.refusals += state.refusals;
    counters.region_bytes += state.region_bytes;
    if (state.region_bytes != 0) counters.region_span_bytes += state.span_bytes;
    counters.huge_2m_bytes += state.huge_2m_bytes;
    counters.huge_1g_bytes += state.huge_1g_bytes;
    counters.registered += heap.place.load(std::memory_order_relaxed) != 0;
  });
  return counters;
}

void heap_orphan(std::uint16_t slot) {
  heaps.at(slot)->span_lock.orphan();
}

void heaps_after_fork(const Forker& forker) {
  reserve_lock.reset();
  heaps.lock().reset();
  for_each_slot([&](Heap& heap) { repair(heap, forker); });
}

}  // namespace rdmalloc
