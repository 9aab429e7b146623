#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

void take(Stripe& stripe) {
  stripe.lock.lock();
#if RDMALLOC_CHECKED
  ++stripe.takes;
#endif
}

void take_all(Domain& domain) {
  for (std::size_t i = 0; i < kStripes; ++i) take(domain.stripes[i]);
  ++domain.whole_takes;
}
void give_all(Domain& domain) {
  for (std::size_t i = kStripes; i-- != 0;) domain.stripes[i].lock.unlock();
}

// Under the lock of any stripe.
bool touches_wide(const Domain& domain, std::uintptr_t low, std::uintptr_t high) {
  auto stop = [](Registration*) { return false; };
  if (!visit_overlapping(domain.wide().by_range.root(), low, high, stop)) return true;
  for (Registration* reg = domain.wide().in_flight; reg != nullptr; reg = reg->next())
    if (reg->base() < high && reg->end() > low) return true;
  return false;
}

}  // namespace

WholeGuard::WholeGuard(Domain& domain) : domain_(domain) {
  take_all(domain_);
}
WholeGuard::~WholeGuard() {
  give_all(domain_);
}

RangeGuard::RangeGuard(Domain& domain, std::uintptr_t low, std::uintptr_t high)
    : domain_(domain), held_(stripe_of(low, high)) {
  if (held_ == kWide) {
    take_all(domain_);
    return;
  }
  take(domain_.stripes[held_]);
  // Neither comes nor goes without this lock, so the answer stays true.
  if (touches_wide(domain_, low, high)) become_whole();
}

RangeGuard::~RangeGuard() {
  if (is_whole())
    give_all(domain_);
  else
    domain_.stripes[held_].lock.unlock();
}

void RangeGuard::drop_generations() {
  if (!is_whole()) return domain_.stripes[held_].generations.drop();
  for (std::size_t i = 0; i < kStripes; ++i) domain_.stripes[i].generations.drop();
}

void RangeGuard::become_whole() {
  if (is_whole()) return;
  domain_.stripes[held_].lock.unlock();
  held_ = kWide;
  take_all(domain_);
}

}  // namespace rdmalloc::regcache
