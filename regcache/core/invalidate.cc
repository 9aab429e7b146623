#include "regcache/core/invalidate.h"

#include "regcache/core/callbacks.h"
#include "regcache/core/drop.h"
#include "regcache/core/history.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {

Invalidation* Invalidations::begin(std::uintptr_t low, std::uintptr_t high,
                                   std::uint64_t generation_limit, void (*done)(void*), void* arg) {
  Invalidation* one = pool_.take(survivors.invalidations);
  if (one == nullptr) return nullptr;
  *one = {nullptr, low, high, generation_limit, 0, 1, done, arg};
  LockGuard guard(lock_);
  one->next = pending_;
  pending_ = one;
  return one;
}

void Invalidations::await(Invalidation* one, Registration* reg) {
  if (reg->head.key.generation >= one->generation_limit) return;
  reg->rest().is_awaited = true;
  LockGuard guard(lock_);
  ++one->remaining;
}

void Invalidations::looked_through(Invalidation* one, std::uint16_t domain_index) {
  LockGuard guard(lock_);
  one->domains |= std::uint64_t{1} << domain_index;
}

void Invalidations::unlink(Invalidation* one) {
  Invalidation** link = &pending_;
  while (*link != one) link = &(*link)->next;
  *link = one->next;
}

Invalidation* Invalidations::ended(const Registration* reg) {
  LockGuard guard(lock_);
  Invalidation* completed = nullptr;
  std::uint64_t domain = std::uint64_t{1} << reg->domain_index();
  for (Invalidation* one = pending_; one != nullptr;) {
    Invalidation* next = one->next;
    bool is_counted = (one->domains & domain) != 0 && reg->base() < one->high &&
                      reg->end() > one->low && reg->head.key.generation < one->generation_limit;
    if (is_counted && --one->remaining == 0) {
      unlink(one);
      one->next = completed;
      completed = one;
    }
    one = next;
  }
  return completed;
}

Invalidation* Invalidations::finish(Invalidation* one) {
  LockGuard guard(lock_);
  if (--one->remaining != 0) return nullptr;
  unlink(one);
  one->next = nullptr;
  return one;
}

void Invalidations::complete(Invalidation* list) {
  DropScope scope;
  while (list != nullptr) {
    Invalidation* next = list->next;
    assert_no_lock_held("invalidation completion");
    {
      CallbackScope callback;
      list->done(list->arg);
    }
    pool_.give(list);
    list = next;
  }
}

bool Invalidations::prepare() {
  return pool_.prepare(survivors.invalidations);
}

namespace {

struct Look {
  Domain* domain;
  Invalidation* one;  // NULL: no caller waits
  Registration* drops;
  std::int64_t count;

  bool operator()(Registration* reg) {
    // The registration of a heap ends with the heap, and so do the keys of its blocks.
    if (reg->rest().is_quarantined || reg->rest().kind == Kind::kHeap) return true;
    bool is_counted_already = reg->rest().is_awaited;
    if (reg->rest().is_suspended) {
      // A quiesce that fails must not open it again.
      if (unsuspend(reg)) push(&drops, reg);
      ++count;
    } else if (reg->is_open()) {
      if (close_held_too(*domain, reg)) push(&drops, reg);
      ++count;
      note(Event::kInvalidated, reg->base(), reg->end(), domain->ops.name,
           reg->head.key.generation);
    } else if (reg->rest().kind == Kind::kPerUse && reg->refs() != 0 && !is_counted_already) {
      ++count;
    }
    if (one != nullptr) state()->invalidations.await(one, reg);
    return true;
  }
};

// A close or a quiesce may be waiting for some. Those of a device that is gone reach no page.
bool may_have_registrations(const Domain& domain) {
  // Acquire: pairs with open's release.
  Phase phase = domain.phase.load(std::memory_order_acquire);
  return phase == Phase::kIsOpen || phase == Phase::kBeingClosed || phase == Phase::kIsChanging ||
         phase == Phase::kIsQuiesced ||
         (phase == Phase::kIsLost && !domain.is_lost.load(std::memory_order_acquire));
}

// Forgets what touches [low, high) in one domain. `is_users_thread`: its registrar may be called,
// whatever it is.
std::int64_t invalidate_in(Domain& domain, std::uintptr_t low, std::uintptr_t high,
                           Invalidation* one, bool is_users_thread) {
  Look look{&domain, one, nullptr, 0};
  Registration* deferred = nullptr;
  {
    RangeGuard guard(domain, low, high);
    if (!may_have_registrations(domain)) return 0;
    visit_overlapping(domain, low, high, look);
    visit_in_flight(domain, low, high, [one](Registration* reg) {
      if (reg->rest().kind == Kind::kHeap) return true;  // as above
      reg->rest().is_stale = true;
      if (one != nullptr) state()->invalidations.await(one, reg);
      return true;
    });
    if (one != nullptr) {
      guard.drop_generations();
      state()->invalidations.looked_through(one, domain.index);
    }
    if (is_users_thread || domain.is_any_thread()) {
      // Waited for too, and there may be no later call into the domain. Under the lock: all of the
      // range that other threads have closed and deferred is there, and the domain does not close.
      deferred = take_deferred(domain);
    } else {
      defer_list(domain, look.drops);
      look.drops = nullptr;
    }
  }
  drop_list(domain, look.drops, Reason::kAsked);
  drop_list(domain, deferred, Reason::kPurged);
  return look.count;
}

}  // namespace
}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int64_t rdmalloc_invalidate(rdmalloc_domain* handle, const void* addr,
                                                    size_t length, void (*done)(void*), void* arg) {
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  if (length == 0 || low + length < low) return -EINVAL;
  Domain* only = domain_of(handle);
  if (only != nullptr) {
    if (int error = domain_check(only); error != 0 && error != -EAGAIN) return error;
  }
  State* all = state();
  bool is_empty = all == nullptr || !all->is_ready();
  if (!is_empty && rdmalloc::is_in_page_event()) {
    // By a handler that hears from another library of what we purge, and asks this of all that
    // goes.
    is_empty = low >= all->cleared_low && low + length <= all->cleared_high;
    if (!is_empty) return -EDEADLK;
  }
  if (is_empty) {
    if (done != nullptr) done(arg);
    return 0;
  }
  Invalidation* one = nullptr;
  if (done != nullptr) {
    std::uint64_t limit = all->generation.fetch_add(1, std::memory_order_relaxed) + 1;
    one = all->invalidations.begin(low, low + length, limit, done, arg);
  }
  std::int64_t count = 0;
  // A domain that is named is not looked for among all, which took 680 instructions.
  const std::size_t first = only != nullptr ? only->index : 0;
  const std::size_t end = only != nullptr ? first + 1 : kMostDomains;
  for (std::size_t i = first; i < end; ++i) {
    Domain& domain = all->domains[i];
    if (may_have_registrations(domain))
      count += invalidate_in(domain, low, low + length, one, only != nullptr);
  }
  if (one != nullptr) all->invalidations.complete(all->invalidations.finish(one));
  return done != nullptr && one == nullptr ? -ENOMEM : count;
}
