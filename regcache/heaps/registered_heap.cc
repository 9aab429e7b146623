#include "regcache/heaps/registered_heap.h"

#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/abandoned.h"
#include "regcache/core/check_domains.h"
#include "regcache/core/drop.h"
#include "regcache/core/gate.h"
#include "regcache/core/make.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

constexpr std::uint32_t kAllAccess = RDMALLOC_ACCESS_LOCAL | RDMALLOC_ACCESS_REMOTE;

// The place that a number names, if it is that heap's still; NULL in a child of fork, which has not
// got the parent's.
RegisteredHeap* place_of(std::uint32_t place, std::uint64_t handle) {
  RegisteredHeaps* all = registered_heaps.get();
  if (all == nullptr || place == 0 || place > kMostRegisteredHeaps) return nullptr;
  RegisteredHeap& heap = all->places[place - 1];
  return heap.handle.load(std::memory_order_acquire) == handle ? &heap : nullptr;
}

Domain& domain_at(const RegisteredHeap& heap, std::size_t index) {
  return state()->domains[heap.domains[index]];
}

constexpr const char* kWho = "rdmalloc_heap_create";

Message begin_refusal() {
  return Message().text("warning: ").text(kWho).text(": ");
}
int refuse(int error, const Message& why) {
  why.warn();
  return error;
}

// What one domain allows, into *limits.
int narrow(const Domain& domain, std::size_t index, std::uint32_t access, RegionLimits* limits) {
  bool is_remote = (access & RDMALLOC_ACCESS_REMOTE) != 0;
  if (is_remote && (domain.ops.flags & RDMALLOC_REGISTRAR_EXACT_ACCESS) == 0)
    return refuse(-EACCES, begin_refusal()
                               .text("remote rights, and the registrar of domains[")
                               .number(index)
                               .text("] (")
                               .value(domain.ops.name)
                               .text(") can't open exactly the bytes asked for; ask for "
                                     "RDMALLOC_ACCESS_LOCAL, or leave that domain out"));
  if (domain.unit > limits->alignment) limits->alignment = domain.unit;
  if (domain.largest < limits->most_bytes) limits->most_bytes = domain.largest;
  return 0;
}

// With its domains, under the lock: Holder::has_domain reads them under it.
RegisteredHeap* take_place(std::uint64_t handle, rdmalloc_domain* const* domains,
                           std::size_t domain_count, std::uint32_t* place) {
  LockGuard guard(registered_heaps->lock);
  for (std::uint32_t i = 0; i < kMostRegisteredHeaps; ++i) {
    // Acquire: pairs with the release in give_up().
    RegisteredHeap& heap = registered_heaps->places[i];
    if (heap.handle.load(std::memory_order_acquire) != 0) continue;
    heap.domain_count = static_cast<std::uint32_t>(domain_count);
    for (std::size_t d = 0; d < domain_count; ++d)
      heap.domains[d] = static_cast<std::uint8_t>(domain_of(domains[d])->index);
    heap.handle.store(handle, std::memory_order_relaxed);
    *place = i + 1;
    return &heap;
  }
  return nullptr;
}

int heed_domains(rdmalloc_domain* const* domains, std::size_t count, std::uint32_t access,
                 RegionLimits* limits) {
  // None twice: a second registration of the same range with one domain would hide the first.
  if (int error = check_domains(kWho, domains, count)) return error;
  for (std::size_t i = 0; i < count; ++i)
    if (int error = narrow(*domain_of(domains[i]), i, access, limits)) return error;
  std::size_t largest = limits->most_bytes;
  limits->most_bytes &= ~(limits->alignment - 1);
  if (limits->most_bytes == 0)
    return refuse(-EMSGSIZE, begin_refusal()
                                 .text("its domains register ")
                                 .number(largest)
                                 .text(" bytes at once, and a region of a heap is ")
                                 .number(limits->alignment)
                                 .text(" at least; open them with a larger `largest`"));
  if (kMostHeapKeys / count < limits->most)
    limits->most = static_cast<std::uint32_t>(kMostHeapKeys / count);
  return 0;
}

int begin(std::uint64_t handle, rdmalloc_domain* const* domains, std::size_t domain_count,
          std::uint32_t access, RegionLimits* limits, std::uint32_t* place) {
  if (access == 0) access = RDMALLOC_ACCESS_LOCAL;
  if ((access & ~kAllAccess) != 0)
    return refuse(-EINVAL, begin_refusal()
                               .text("`access` is ")
                               .address(reinterpret_cast<void*>(std::uintptr_t{access}))
                               .text(", with rights that are not known; allowed: those of "
                                     "RDMALLOC_ACCESS_LOCAL and RDMALLOC_ACCESS_REMOTE, together ")
                               .address(reinterpret_cast<void*>(std::uintptr_t{kAllAccess})));
  if (is_in_page_event())
    return refuse(-EDEADLK, begin_refusal().text("called inside a page event, where nothing can be "
                                                 "registered; call it when that has returned"));
  if (int error = heed_domains(domains, domain_count, access, limits)) return error;
  RegisteredHeap* heap = take_place(handle, domains, domain_count, place);
  if (heap == nullptr)
    return refuse(-EMFILE, begin_refusal()
                               .text("there are ")
                               .number(kMostRegisteredHeaps)
                               .text(" registered heaps, and can't be more; destroy one"));
  heap->is_abandoned.store(false, std::memory_order_relaxed);
  heap->access = access;
  heap->region_count.store(0, std::memory_order_relaxed);
  return 0;
}

// Drops a registration that was closed. Whether it is gone.
bool drop(Domain& domain, Registration* reg) {
  if (reg == nullptr) return true;
  reg->next() = nullptr;
  return drop_list(domain, reg, Reason::kAsked) == 1;
}

// Takes the heap's own reference to a registration back and closes it. False when it is held
// otherwise.
bool close(Domain& domain, Registration* reg) {
  if (reg == nullptr) return true;  // quiesced, or lost at a resume
  RangeGuard guard(domain, reg);
  if (!close_heaps(reg)) return false;
  withdraw(domain, reg);
  return true;
}
void reopen(Domain& domain, Registration* reg) {
  if (reg == nullptr) return;
  RangeGuard guard(domain, reg);
  reopen_heaps(domain, reg);
}

// Whether a heap's registration there could not be ended, now, in a quiesce or in a resume, while
// the device may still reach the range. No other heap's is there: such a range is never handed out
// again.
bool is_quarantined(Domain& domain, std::uintptr_t base, std::size_t length) {
  // Acquire: pairs with lose_domain()'s release.
  if (domain.is_lost.load(std::memory_order_acquire)) return false;
  auto look = [](Registration* reg) {
    return reg->rest().kind != Kind::kHeap || !reg->rest().is_quarantined;
  };
  RangeGuard guard(domain, base, base + length);
  return !visit_overlapping(domain, base, base + length, look);
}

// Takes back what the first `count` domains registered of that region. Whether all is gone, but for
// what `*is_kept` says of; false where a caller has got one of them, by an address that it has no
// block at, and all are as before.
bool take_back(RegisteredHeap& heap, std::size_t first, std::size_t count, bool* is_kept) {
  for (std::size_t i = 0; i < count; ++i) {
    if (close(domain_at(heap, i), heap.registrations[first + i])) continue;
    while (i-- != 0) reopen(domain_at(heap, i), heap.registrations[first + i]);
    return false;
  }
  for (std::size_t i = 0; i < count; ++i)
    *is_kept |= !drop(domain_at(heap, i), heap.registrations[first + i]);
  return true;
}

int add(std::uint32_t place, std::uint64_t handle, std::uintptr_t base, std::size_t length,
        bool* is_kept, bool* is_held) {
  *is_kept = *is_held = false;
  RegisteredHeap* heap = place_of(place, handle);
  if (heap == nullptr) return -ECHILD;
  if (is_in_page_event()) return -EDEADLK;
  std::uint32_t region = heap->region_count.load(std::memory_order_relaxed);
  std::size_t first = std::size_t{region} * heap->domain_count;
  heap->regions[region] = {base, length, false};
  for (std::size_t i = 0; i < heap->domain_count; ++i) {
    Registration*& reg = heap->registrations[first + i];
    if (int error = make_heaps(domain_at(*heap, i), base, length, heap->access, &reg)) {
      *is_kept = error == -ENOTRECOVERABLE;
      *is_held = !take_back(*heap, first, i, is_kept);
      if (!*is_held) return error;
      for (; i < heap->domain_count; ++i) {
        heap->registrations[first + i] = nullptr;
        store_key(heap->keys[first + i], {});
      }
      heap->regions[region].is_left_over = true;
      // Release: as below.
      heap->region_count.store(region + 1, std::memory_order_release);
      return error;
    }
    store_key(heap->keys[first + i], reg->head.key);
  }
  // Release: pairs with the acquire of a thread that asks for keys.
  heap->region_count.store(region + 1, std::memory_order_release);
  return 0;
}

int end(std::uint32_t place, std::uint64_t handle, std::uint32_t first, std::uint64_t* kept) {
  *kept = 0;
  // In a child of fork there is nothing to undo.
  RegisteredHeap* heap = place_of(place, handle);
  if (heap == nullptr) return 0;
  if (is_in_page_event()) return -EDEADLK;
  std::uint32_t regions = heap->region_count.load(std::memory_order_relaxed);
  std::size_t begin = std::size_t{first} * heap->domain_count;
  std::size_t end = std::size_t{regions} * heap->domain_count;
  for (std::size_t i = begin; i < end; ++i) {
    if (close(domain_at(*heap, i % heap->domain_count), heap->registrations[i])) continue;
    while (i-- != begin) reopen(domain_at(*heap, i % heap->domain_count), heap->registrations[i]);
    if (first != 0)
      for (std::uint32_t region = first; region < regions; ++region)
        heap->regions[region].is_left_over = true;
    return -EBUSY;
  }
  heap->region_count.store(first, std::memory_order_relaxed);
  for (std::size_t i = begin; i < end; ++i) {
    Domain& domain = domain_at(*heap, i % heap->domain_count);
    const auto& region = heap->regions[i / heap->domain_count];
    bool is_gone = drop(domain, heap->registrations[i]);
    if (!is_gone || is_quarantined(domain, region.base, region.length))
      *kept |= std::uint64_t{1} << i / heap->domain_count;
  }
  return 0;
}

void abandon(std::uint32_t place, std::uint64_t handle) {
  RegisteredHeap* heap = place_of(place, handle);
  if (heap == nullptr) return;
  // Release: pairs with the acquire in end_abandoned().
  heap->is_abandoned.store(true, std::memory_order_release);
  State& all = *state();
  all.abandoned.fetch_add(1, std::memory_order_seq_cst);
  // What was in the way may have ended before the note was there.
  end_abandoned(all);
}

void give_up(std::uint32_t place, std::uint64_t handle) {
  RegisteredHeap* heap = place_of(place, handle);
  if (heap == nullptr) return;
  heap->is_abandoned.store(false, std::memory_order_relaxed);
  // Release: pairs with the acquire of the thread that takes the place next.
  heap->handle.store(0, std::memory_order_release);
}

int enter(bool unmakes, std::uint64_t* token) {
  return enter_gate(*state(), unmakes ? Gate::kUnmakes : Gate::kMakes, token);
}
void leave(std::uint64_t token) {
  leave_gate(*state(), token);
}

}  // namespace

constinit WipedObject<RegisteredHeaps> registered_heaps;

constinit const HeapRegistrar heap_registrations = {enter, leave,   begin,  add,
                                                    end,   abandon, give_up};

const RegisteredHeap* registered_heap(std::uint32_t place, std::uint64_t handle) {
  return place_of(place, handle);
}

}  // namespace rdmalloc::regcache
