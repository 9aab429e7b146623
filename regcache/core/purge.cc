// The cache's part of the purge protocol (I3): answers the allocator's page events for every
// domain.
#include "alloc/for_regcache.h"
#include "regcache/core/drop.h"
#include "regcache/core/history.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

// The range to be purged.
struct Range {
  std::uintptr_t low, high;
  // Pages of a slab in use, in whose neighbourhood blocks live.
  bool is_in_use;
  // While memory is not short, a cached registration of such a slab is worth more than its pages.
  bool keeps_idle;
};

// Tries to close one domain's registrations over the range, into `drops`.
struct Claim {
  Domain* domain;
  bool keeps_idle;
  Registration* drops = nullptr;
  bool is_refused = false;

  bool operator()(Registration* reg) {
    bool was_sticky = reg->rest().is_sticky;
    // Held, or already being dropped by another thread, or quarantined: its pages must stay.
    is_refused = keeps_idle || !close_idle(reg);
    if (is_refused) return false;
    withdraw(*domain, reg);
    // With its slots empty: a thread that takes a block in its range from here on does not find it,
    // and is_unused() sees a block that was taken before (README.md, "Why no reader is late").
    is_refused = was_sticky && !is_unused(*domain, reg);
    if (is_refused)
      reopen(*domain, reg, true);
    else
      push(&drops, reg);
    return !is_refused;
  }
};

// Of those that were sticky nothing lives any more: their keys are over.
void reopen_list(Domain& domain, Registration* list) {
  while (list != nullptr) {
    Registration* next = list->next();
    reopen(domain, list, false);
    list = next;
  }
}

// A domain that opens after this look registers nothing over the range, since the range's words say
// that it is being purged. A domain that is closing counts: its registrations may still be there. A
// lost domain's registrations reach no page.
bool may_hold_registrations(const Domain& domain) {
  // Acquire: pairs with open's release.
  Phase phase = domain.phase.load(std::memory_order_acquire);
  return phase != Phase::kUnused && phase != Phase::kBeingOpened &&
         !domain.is_lost.load(std::memory_order_acquire);
}

// Clears one domain of registrations over [low, high). False: some must stay, or must be dropped by
// a thread of the user; nothing is lost then.
bool clear_domain(Domain& domain, const Range& range) {
  Claim claim{&domain, range.keeps_idle};
  Registration* drops = nullptr;
  {
    RangeGuard guard(domain, range.low, range.high);
    if (!may_hold_registrations(domain)) return true;
    visit_overlapping(domain, range.low, range.high, claim);
    if (claim.is_refused) {
      reopen_list(domain, claim.drops);
      ++guard.counters().purge_refusals;
      return false;
    }
    drops = claim.drops;
    if (drops != nullptr && !domain.is_any_thread()) {
      // This registrar may be called on the user's threads only: the next call of a user's thread
      // drops these, and the next purge finds the range clear.
      defer_list(domain, drops);
      ++guard.counters().purge_refusals;
      return false;
    }
  }
  std::uint64_t expected = 0;
  for (Registration* reg = drops; reg != nullptr; reg = reg->next()) ++expected;
  return drop_list(domain, drops, Reason::kPurged) == expected;
}

// With a registrar coarser than a page, a registration of a block beside the range may have to take
// in a part of it. So only whole units are purged: no block lives in them. A domain that opens
// meanwhile waits for this purge (rdmalloc_domain_open()).
bool is_too_fine_for(const Domain& domain, const Range& range) {
  return domain.unit > os::page_bytes() &&
         (range.is_in_use || ((range.low | range.high) & (domain.unit - 1)) != 0);
}

// Asked before anything is dropped.
bool is_too_fine_for_any(State& all, const Range& range) {
  for (std::size_t i = 0; i < kMostDomains; ++i) {
    Domain& domain = all.domains[i];
    // A look without the lock, as in clear_all(). With it: the place may become another domain's.
    if (!may_hold_registrations(domain)) continue;
    // Nothing is registered any more with one that failed at a resume. What it could not undo is
    // for clear_all() to find.
    if (domain.has_failed()) continue;
    RangeGuard guard(domain, range.low, range.high);
    if (!is_too_fine_for(domain, range)) continue;
    ++guard.counters().purge_refusals;
    return true;
  }
  return false;
}

bool clear_all(State& all, const Range& range) {
  for (std::size_t i = 0; i <= kOrphans; ++i) {
    Domain& domain = all.domains[i];
    // A look without the lock spares most of the 64.
    if (!may_hold_registrations(domain)) continue;
    if (!clear_domain(domain, range)) return false;
  }
  return true;
}

SliceRange slices_of(std::uintptr_t low, std::size_t length) {
  std::uintptr_t first = low - survivors.arena_base.load(std::memory_order_relaxed);
  return {first >> RDMALLOC_SLICE_SHIFT, ((first + length - 1) >> RDMALLOC_SLICE_SHIFT) + 1};
}

}  // namespace

int on_purge(void*, void* base, std::size_t length, rdmalloc_purge_reason reason) {
  State* all = ready_state();
  if (all == nullptr || length == 0) return 0;
  auto low = reinterpret_cast<std::uintptr_t>(base);
  SliceRange slices = slices_of(low, length);
  bool is_in_use = !rdmalloc_range_is_idle(base, length);
  Range range{low, low + length, is_in_use, is_in_use && reason == RDMALLOC_PURGE_DECAY};
  note(Event::kPurgeAsked, range.low, range.high);
  if (range.is_in_use) all->part_in_purge.begin(range.low, range.high);
  if (!is_too_fine_for_any(*all, range) && all->words.try_begin_purging(slices)) {
    // What earlier domains dropped before a later one refuses is only a registration to be made
    // again.
    if (clear_all(*all, range)) {
      all->cleared_low = range.low;
      all->cleared_high = range.high;
      return 0;
    }
    all->words.end_purging(slices);
  }
  all->part_in_purge.end();
  note(Event::kPurgeRefused, range.low, range.high);
  return -EBUSY;
}

void on_purged(void*, void* base, std::size_t length, int) {
  State* all = ready_state();
  if (all == nullptr || length == 0) return;
  auto low = reinterpret_cast<std::uintptr_t>(base);
  all->cleared_low = all->cleared_high = 0;
  note(Event::kPurged, low, low + length);
  all->words.end_purging(slices_of(low, length));
  all->part_in_purge.end();
}

}  // namespace rdmalloc::regcache
