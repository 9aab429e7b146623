// Rooms whose objects hold registrations beside the cache's users: heaps/ and pools/. Closing a
// domain and a checkpoint ask them here, so neither the core nor checkpoint/ includes those rooms.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc::regcache {

struct Domain;
struct State;
struct Registration;

// What a room answers for all of its objects. Called under no lock.
struct Holder {
  // Whether an object has the domain in its list, registered or not.
  bool (*has_domain)(State& all, std::size_t domain);
  // References that its objects have to the domain's registrations.
  std::uint64_t (*references)(State& all, std::size_t domain);
  // The other three: in a quiesce or a resume only, with the turn and the gate closed (gate.h).
  // Gives the references back; a registration that ends by it joins the list of its domain in
  // `drops`. The keys read as zero from here on.
  void (*give_back)(State& all, Registration** drops);
  // Registers again. Domains that refuse are lost. Returns the first error of theirs.
  int (*register_again)(State& all);
};

inline constexpr std::size_t kMostHolders = 2;
// By the order in which a resume registers again. Code of ours in static memory: a fork child has
// what its parent had.
inline constinit std::atomic<const Holder*> holders[kMostHolders] = {};

// Before the room's first object names a domain. Any thread, any number of times.
inline void add_holder(std::size_t order, const Holder& holder) {
  // Release: pairs with the acquire in each_holder().
  holders[order].store(&holder, std::memory_order_release);
}

// For register_again(): whether a domain waits for it, stopped and not lost.
bool is_to_be_reopened(const Domain& domain);
// Loses a domain that refuses, and says so. It is stopped yet.
void lose_at_resume(Domain& domain, int error);

template <class Fn>
void each_holder(Fn fn) {
  for (const std::atomic<const Holder*>& place : holders)
    if (const Holder* holder = place.load(std::memory_order_acquire)) fn(*holder);
}

// Whether an object of any room has the domain in its list.
bool is_in_a_list(State& all, std::size_t domain);

}  // namespace rdmalloc::regcache
