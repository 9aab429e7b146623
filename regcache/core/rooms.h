// What the core and a checkpoint ask of the rooms above them, which neither includes: rooms whose
// objects hold registrations (heaps/, pools/), and the one that watches foreign memory (foreign/).
// regcache/rooms.cc lists them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "regcache/core/wiped_on_fork.h"

namespace rdmalloc::regcache {

struct Domain;
struct State;
struct Registration;

// What a room answers for all of its objects. Called under no lock.
struct Holder {
  // Before the first domain opens, once in a process: makes the room's state. 0 or a negative
  // errno.
  int (*prepare)();
  // Whether an object has the domain in its list, registered or not.
  bool (*has_domain)(std::size_t domain);
  // References that its objects have to the domain's registrations.
  std::uint64_t (*references)(std::size_t domain);
  // These two: in a quiesce or a resume only, with the turn and the gate closed (gate.h).
  // Gives the references back; a registration that ends by it joins the list of its domain in
  // `drops`. The keys read as zero from here on.
  void (*give_back)(State& all, Registration** drops);
  // Registers again. Domains that refuse are lost. Returns the first error of theirs.
  int (*register_again)(State& all);
  // Ends abandoned objects (abandoned.h). Whether some are left.
  bool (*end_abandoned)();
};
inline constexpr std::size_t kHolders = 2;
extern const Holder* const holders[kHolders];  // in the order in which a resume registers again

// Watching of foreign memory (foreign/watch.h, which says what each promises).
struct Watcher {
  int (*prepare)();  // as above
  // A domain is open, or one is not any more. Under no lock.
  void (*attach)(State& all);
  void (*detach)();
  // A checkpoint, while nothing is registered.
  void (*quiesce)();
  void (*resume)(State& all);
  // Whether all that happened to watched memory before this call has been applied. Lock-free.
  bool (*is_settled)();
  bool (*catch_up)(State& all);
  bool (*begin)(std::uintptr_t low, std::uintptr_t high);
  void (*end)(State& all, std::uintptr_t low, std::uintptr_t high);
  void (*quarantined)();  // under a domain's lock
};
extern const Watcher watcher;

// Whether this process, or one that it was forked from, has ever watched: only then may a
// registration be a watched one. Relaxed: a reader finds such a registration by a later store.
inline constinit std::atomic<bool> watch_was_used{false};

// What a room keeps, in memory of its own that a fork child finds zero, at the same address.
template <class T>
class WipedObject {
 public:
  int prepare() { return map_wiped_once(place_, sizeof(T)); }
  // NULL before prepare().
  T* get() const { return reinterpret_cast<T*>(place_.load(std::memory_order_acquire)); }
  T* operator->() const { return get(); }
  T& operator*() const { return *get(); }

 private:
  std::atomic<std::uintptr_t> place_{0};
};

// For register_again(): whether a domain waits for it, stopped and not lost.
bool is_to_be_reopened(const Domain& domain);
// Loses a stopped domain that refuses, or says of one that is lost that it is.
void lose_at_resume(Domain& domain, int error);

// Whether an object of any room has the domain in its list.
inline bool is_in_a_list(std::size_t domain) {
  for (const Holder* holder : holders)
    if (holder->has_domain(domain)) return true;
  return false;
}

}  // namespace rdmalloc::regcache
