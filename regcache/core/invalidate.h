// Completions of rdmalloc_invalidate(): which invalidation waits for which registrations to end.
//
// A registration does not list the invalidations that wait for it, so nothing is allocated for the
// pair. A pending invalidation describes the registrations that it counted: by range, by generation
// (begun before it) and by domain (those it has looked through). Each registration that ends asks
// all pending ones. The look-through and the end both happen under the domain's lock, so the two
// agree on every registration: what begins after a look has a later generation (Generations). One
// that is being made counts: its pages may be pinned already.
#pragma once

#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/pool.h"
#include "regcache/core/registration.h"

namespace rdmalloc::regcache {

struct Invalidation {
  Invalidation* next;
  std::uintptr_t low, high;
  std::uint64_t generation_limit;  // counts registrations begun before this
  std::uint64_t domains;           // bit for each domain looked through
  std::uint64_t remaining;         // registrations not yet gone, and 1 until finish()
  void (*done)(void* arg);
  void* arg;

  static Invalidation*& free_link(Invalidation* one) { return one->next; }
};
static_assert(sizeof(Invalidation) == 64);

class Invalidations {
 public:
  // NULL when there is no memory: 1,024 are prepared when a domain opens.
  Invalidation* begin(std::uintptr_t low, std::uintptr_t high, std::uint64_t generation_limit,
                      void (*done)(void*), void* arg);
  // Under the domain's lock, for each registration found: waits for it if it was begun before.
  void await(Invalidation* one, Registration* reg);
  // Under the domain's lock, after the last of them.
  void looked_through(Invalidation* one, std::uint16_t domain_index);
  // Under the domain's lock: `reg` is gone. Returns the invalidations that this completes.
  Invalidation* ended(const Registration* reg);
  // Under no lock, after all domains; returns `one` if nothing is left to wait for.
  Invalidation* finish(Invalidation* one);
  // Calls back each of the list. Under no lock.
  void complete(Invalidation* list);

  bool prepare();

 private:
  void unlink(Invalidation* one);

  Lock lock_;
  Invalidation* pending_ = nullptr;
  Pool<Invalidation> pool_;
};

}  // namespace rdmalloc::regcache
