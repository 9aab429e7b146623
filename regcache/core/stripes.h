// Which of a domain's stripes a thread holds (domain.h). Any two ranges that overlap have a lock in
// common: that of the one stripe that both lie in, or, where one of them is wide, all locks are
// held. So what was true under one lock of the domain is true under the guard of a range, for what
// overlaps that range; and of the domain as a whole under a WholeGuard.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/domain.h"

namespace rdmalloc::regcache {

// Holds the locks of all stripes: for a limit that is reached, a flush, a close, a quiesce, a loss.
class WholeGuard {
 public:
  explicit WholeGuard(Domain& domain);
  ~WholeGuard();
  WholeGuard(const WholeGuard&) = delete;
  WholeGuard& operator=(const WholeGuard&) = delete;

 private:
  Domain& domain_;
};

// Holds what is needed to find and change every registration that overlaps [low, high), made or in
// flight: one lock; all of them where the range, or a registration that overlaps it, is wide.
class RangeGuard {
 public:
  RangeGuard(Domain& domain, std::uintptr_t low, std::uintptr_t high);
  RangeGuard(Domain& domain, const Registration* reg)
      : RangeGuard(domain, reg->base(), reg->end()) {}
  ~RangeGuard();
  RangeGuard(const RangeGuard&) = delete;
  RangeGuard& operator=(const RangeGuard&) = delete;

  bool is_whole() const { return held_ == kWide; }
  // Takes all locks; others may change everything before it has them.
  void become_whole();
  // What begins over the range after this has a later generation than the count of all now.
  void drop_generations();
  // Where the holder may count.
  Counters& counters() const { return domain_.stripes[held_].counters; }

 private:
  Domain& domain_;
  std::size_t held_;  // index of the stripe; kWide: all
};

// Calls fn(stripe) for each, held in turn: its own lock, of the wide one those of all. So no thread
// waits for a walk through the whole domain, but for what one stripe has, or the wide one: what
// crosses a multiple of 4 MiB. What fn finds is true of each stripe at a moment of its own.
template <class Fn>
void each_stripe_in_turn(Domain& domain, Fn fn) {
  for (std::size_t i = 0; i < kStripes; ++i) {
    LockGuard guard(domain.stripes[i].lock);
#if RDMALLOC_CHECKED
    ++domain.stripes[i].takes;
#endif
    fn(domain.stripes[i]);
  }
  WholeGuard guard(domain);
  fn(domain.wide());
}

// Calls fn(stripe) for each that may have what overlaps [low, high), until it returns false.
// Returns false when fn did.
template <class Fn>
bool each_stripe(Domain& domain, std::uintptr_t low, std::uintptr_t high, Fn fn) {
  std::size_t only = stripe_of(low, high);
  if (only != kWide) return fn(domain.stripes[only]) && fn(domain.wide());
  for (std::size_t i = 0; i <= kStripes; ++i)
    if (!fn(domain.stripes[i])) return false;
  return true;
}

// As those of tree.h, in a domain, one stripe after the other. Under a guard of the range.
template <class Fn>
bool visit_overlapping(Domain& domain, std::uintptr_t low, std::uintptr_t high, Fn& fn) {
  return each_stripe(domain, low, high, [&](Stripe& stripe) {
    return visit_overlapping(stripe.by_range.root(), low, high, fn);
  });
}
template <class Fn>
bool visit_all(Domain& domain, Fn& fn) {
  for (std::size_t i = 0; i <= kStripes; ++i)
    if (!visit_all(domain.stripes[i].by_range.root(), fn)) return false;
  return true;
}
// Calls fn(registration) for each in flight that overlaps [low, high), until it returns false.
template <class Fn>
bool visit_in_flight(Domain& domain, std::uintptr_t low, std::uintptr_t high, Fn fn) {
  return each_stripe(domain, low, high, [&](Stripe& stripe) {
    for (Registration* reg = stripe.in_flight; reg != nullptr; reg = reg->next())
      if (reg->base() < high && reg->end() > low && !fn(reg)) return false;
    return true;
  });
}
// The same for all of them. Under a WholeGuard.
template <class Fn>
bool visit_in_flight(Domain& domain, Fn fn) {
  return visit_in_flight(domain, 0, UINTPTR_MAX, fn);
}

}  // namespace rdmalloc::regcache
