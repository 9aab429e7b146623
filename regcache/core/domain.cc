// Opening, closing, flushing and counting of domains.
#include "regcache/core/domain.h"

#include <errno.h>

#include <algorithm>

#include "alloc/for_regcache.h"
#include "regcache/core/at_exit.h"
#include "regcache/core/callbacks.h"
#include "regcache/core/drop.h"
#include "regcache/core/gate.h"
#include "regcache/core/put_clock.h"
#include "regcache/core/room.h"
#include "regcache/core/rooms.h"
#include "regcache/core/state.h"
#include "regcache/core/statistics.h"
#include "regcache/core/stripes.h"
#include "regcache/core/wiped_on_fork.h"

namespace rdmalloc::regcache {
namespace {

bool is_power_of_two(std::size_t value) {
  return (value & (value - 1)) == 0;
}

// The smaller of two limits of which 0 means none; UINT64_MAX when both are.
std::uint64_t tighter(std::uint64_t a, std::uint64_t b) {
  if (a == 0) a = UINT64_MAX;
  if (b == 0) b = UINT64_MAX;
  return a < b ? a : b;
}

constexpr std::uint32_t kRegistrarFlags =
    RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG |
    RDMALLOC_REGISTRAR_EXACT_ACCESS | RDMALLOC_REGISTRAR_REOPEN |
    RDMALLOC_REGISTRAR_DIES_WITH_DEVICE | RDMALLOC_REGISTRAR_PINS | RDMALLOC_REGISTRAR_LOCKS |
    RDMALLOC_REGISTRAR_NO_OVERLAP;

int check_ops(const rdmalloc_registrar_ops& ops) {
  if (ops.register_ == nullptr || ops.deregister == nullptr || ops.name == nullptr) return -EINVAL;
  if ((ops.flags & ~kRegistrarFlags) != 0 || !is_power_of_two(ops.granularity)) return -EINVAL;
  return (ops.flags & RDMALLOC_REGISTRAR_SYNC_DEREG) != 0 ? 0 : -ENOTSUP;
}

int check_attr(const rdmalloc_domain_attr& attr) {
  // Cached registrations span more than one block, so remote rights on them would break I13.
  return (attr.access & ~RDMALLOC_ACCESS_LOCAL) == 0 && attr.flags == 0 ? 0 : -EINVAL;
}

// Takes a place that was not open in a parent process, so that a handle that the child inherited
// does not name a domain of the child's. If there is no other, takes one that was open there.
Domain* take_place(State& all) {
  LockGuard guard(all.open_lock);
  for (bool inherited_too : {false, true}) {
    for (std::size_t i = 0; i < kMostDomains; ++i) {
      Domain& domain = all.domains[i];
      // Acquire: pairs with the release at the end of close.
      if (domain.phase.load(std::memory_order_acquire) != Phase::kUnused) continue;
      if (survivors.is_open[i].load(std::memory_order_relaxed) && !inherited_too) continue;
      domain.index = static_cast<std::uint16_t>(i);
      // Once, since a call that came too late for the domain before may look at it now.
      if (domain.stripes == nullptr) domain.stripes = all.stripes[i];
      // Release: pairs with the acquire of a thread that takes a domain's locks while it is opened.
      domain.phase.store(Phase::kBeingOpened, std::memory_order_release);
      return &domain;
    }
  }
  return nullptr;
}

int map_tables(Domain& domain, std::size_t slices) {
  std::atomic<std::uintptr_t>& tables = survivors.tables[domain.index];
  std::size_t bytes = slices * sizeof(Slot);
  if (tables.load(std::memory_order_relaxed) == 0) {
    std::uintptr_t base = 0;
    if (map_wiped_on_fork(2 * bytes + kHints * sizeof(Slot), &base) != 0) return -ENOMEM;
    tables.store(base, std::memory_order_relaxed);
  }
  // Tables of an earlier domain in this place. Its slots are empty again. Its hints may not be,
  // which does no harm: a reader checks each hint.
  domain.sticky = reinterpret_cast<Slot*>(tables.load(std::memory_order_relaxed));
  domain.counted = domain.sticky + slices;
  domain.hints = domain.counted + slices;
  return 0;
}

// Defaults of `attr`: the registrar's, then the environment's.
void set_defaults(Domain& domain, const rdmalloc_registrar_ops& ops, void* context,
                  const rdmalloc_domain_attr& attr) {
  domain.ops = ops;
  domain.context = context;
  domain.access = attr.access != 0 ? attr.access : RDMALLOC_ACCESS_LOCAL;
  domain.unit = ops.granularity != 0 ? ops.granularity : os::page_bytes();
  std::uint64_t largest = tighter(attr.largest, ops.largest);
  domain.event = attr.event;
  domain.event_arg = attr.event_arg;
  domain.largest = largest > Extent::kMostLength ? Extent::kMostLength : largest;
  const Options& settings = options();
  std::uint64_t bytes = attr.max_bytes != 0 ? attr.max_bytes : settings.reg_max_bytes;
  std::uint64_t count = attr.max_count != 0 ? attr.max_count : settings.reg_max_count;
  domain.max_bytes = tighter(bytes, 0);
  domain.max_count = tighter(count, ops.max_count);
  if (bytes != 0 || count != 0) put_clock_start();
}

void reset(Domain& domain) {
  for (std::size_t i = 0; i <= kStripes; ++i) {
    Stripe& stripe = domain.stripes[i];
    stripe.by_range.clear();
    stripe.by_stamp.clear();
    stripe.in_flight = stripe.sticky_ring = nullptr;
    stripe.generations.drop();
#if RDMALLOC_CHECKED
    stripe.takes = 0;
#endif
    stripe.totals = {};
    stripe.counters = {};
  }
  for (Budget* budget : {&domain.taken, &domain.sticky_taken}) {
    budget->bytes.store(0, std::memory_order_relaxed);
    budget->count.store(0, std::memory_order_relaxed);
  }
  domain.sticky_turn = 0;
  domain.whole_takes = 0;
  domain.deferred.store(nullptr, std::memory_order_relaxed);
  domain.is_lost.store(false, std::memory_order_relaxed);
  domain.is_abandoned.store(false, std::memory_order_relaxed);
  domain.has_warned_of_memlock.store(false, std::memory_order_relaxed);
  domain.has_warned_of_quarantine.store(false, std::memory_order_relaxed);
}

int open_place(State& all, Domain& domain, const rdmalloc_registrar_ops& ops, void* context,
               const rdmalloc_domain_attr& attr) {
  std::size_t length = survivors.arena_length.load(std::memory_order_relaxed);
  if (int error = map_tables(domain, length >> RDMALLOC_SLICE_SHIFT)) return error;
  if (!all.invalidations.prepare() || !all.registrations.prepare(survivors.registrations))
    return -ENOMEM;
  // Under the lock: a purge may still look into the domain that had this place before.
  WholeGuard guard(domain);
  set_defaults(domain, ops, context, attr);
  reset(domain);
  domain.head.arena_base = survivors.arena_base.load(std::memory_order_relaxed);
  domain.head.arena_length = length;
  domain.head.sticky = reinterpret_cast<const std::uint32_t*>(domain.sticky);
  domain.head.records = survivors.registrations.window.numbered_from();
  return 0;
}

// Closes every registration. False, with nothing changed, when one is held.
bool close_all(Domain& domain, Registration** drops) {
  Registration* closed[2] = {};  // [was_sticky]
  auto close = [&](Registration* reg) {
    bool was_sticky = reg->rest().is_sticky;
    while (!close_idle(reg)) {
      // One look at both: a put between two would pass for a drop, and no thread would ever drop
      // it. Relaxed: it orders nothing; to close what was put meanwhile is for close_idle() again.
      std::uint64_t seen = reg->state.load(std::memory_order_relaxed);
      if ((seen & kRefs) != 0) return false;
      if ((seen & kOpen) == 0) return true;  // being dropped by another thread: will vanish
    }
    withdraw(domain, reg);
    push(&closed[was_sticky], reg);
    return true;
  };
  bool is_clear = visit_all(domain, close);
  for (bool was_sticky : {false, true}) {
    for (Registration *reg = closed[was_sticky], *next = nullptr; reg != nullptr; reg = next) {
      next = reg->next();
      if (is_clear)
        push(drops, reg);
      else
        reopen(domain, reg, was_sticky);
    }
  }
  return is_clear;
}

// Keeps ranges that could not be deregistered after their domain has closed, so that no purge takes
// them.
void move_quarantined(State& all, Domain& domain) {
  Domain& orphans = all.domains[kOrphans];
  WholeGuard guard(domain);
  WholeGuard orphans_guard(orphans);
  for (std::size_t i = 0; i <= kStripes; ++i) {
    while (Registration* reg = domain.stripes[i].by_range.first()) {
      leave_tree(domain, reg);
      reg->rest().by_range.left = nullptr;
      reg->rest().by_range.right = nullptr;
      Extent extent = Extent::of(reg->length(), kOrphans, reg->access());
      std::atomic_ref(reg->head.extent).store(extent.word, std::memory_order_release);
      orphans.stripes[i].by_range.insert(reg);
      ++orphans.stripes[i].totals.count;
      ++orphans.stripes[i].totals.quarantined_count;
      orphans.stripes[i].totals.bytes += reg->length();
    }
    domain.stripes[i].totals.quarantined_count = 0;
  }
}

int begin_closing(Domain& domain, Registration** drops) {
  WholeGuard guard(domain);
  Phase phase = domain.phase.load(std::memory_order_relaxed);
  if (phase != Phase::kIsOpen && phase != Phase::kIsLost && phase != Phase::kIsQuiesced)
    return -EINVAL;
  bool is_making = !visit_in_flight(domain, [](Registration*) { return false; });
  if (is_making || !close_all(domain, drops)) return -EBUSY;
  domain.phase.store(Phase::kBeingClosed, std::memory_order_relaxed);
  return 0;
}

}  // namespace

int domain_check(const Domain* domain) {
  State* all = state();
  if (all == nullptr || domain < all->domains || domain >= all->domains + kMostDomains ||
      (reinterpret_cast<std::uintptr_t>(domain) - reinterpret_cast<std::uintptr_t>(all->domains)) %
              sizeof(Domain) !=
          0)
    return -EINVAL;
  // Acquire: pairs with open's release.
  Phase phase = domain->phase.load(std::memory_order_acquire);
  if (phase == Phase::kIsOpen) return 0;
  if (phase == Phase::kIsLost) return -ENODEV;
  if (phase == Phase::kIsChanging || phase == Phase::kIsQuiesced) {
    if (domain->has_failed()) return -ENODEV;
    return may_register_early() ? 0 : -EAGAIN;
  }
  bool is_inherited = phase == Phase::kUnused &&
                      survivors.is_open[domain - all->domains].load(std::memory_order_relaxed);
  return is_inherited ? -ECHILD : -EINVAL;
}

void add(Counters& sums, const Counters& more) {
  std::uint64_t worst = std::max(sums.register_ns_worst, more.register_ns_worst);
  for (const ShownCounter& counter : kShownCounters) sums.*counter.kept += more.*counter.kept;
  sums.register_ns_worst = worst;
}

Counters domain_counters(const Domain& domain) {
  Counters sums = {};
  for (std::size_t i = 0; i <= kStripes; ++i) add(sums, domain.stripes[i].counters);
  return sums;
}

Totals domain_totals(const Domain& domain) {
  Totals sums = {};
  for (std::size_t i = 0; i <= kStripes; ++i) {
    const Totals& more = domain.stripes[i].totals;
    sums.count += more.count;
    sums.bytes += more.bytes;
    sums.quarantined_count += more.quarantined_count;
    sums.sticky_count += more.sticky_count;
    sums.sticky_bytes += more.sticky_bytes;
    sums.listed_count += more.listed_count;
    sums.listed_bytes += more.listed_bytes;
    sums.reserved_count += more.reserved_count;
    sums.reserved_bytes += more.reserved_bytes;
  }
  return sums;
}

namespace {

// Whether a stripe has what is its own, in order, and counts it right.
bool stripe_is_valid(const Domain& domain, const Stripe& stripe) {
  Totals seen = {};
  std::uintptr_t previous = 0;
  bool is_right = true;
  auto look = [&](Registration* reg) {
    ++seen.count;
    seen.bytes += reg->length();
    if (reg->rest().is_sticky) ++seen.sticky_count, seen.sticky_bytes += reg->length();
    if (reg->rest().is_listed) ++seen.listed_count, seen.listed_bytes += reg->length();
    bool is_apart = (reg->state.load(std::memory_order_relaxed) & kApart) != 0;
    is_right &= &domain.stripe_of_reg(reg) == &stripe;
    is_right &= reg->base() >= previous && reg->rest().furthest_end >= reg->end();
    int places = reg->rest().is_sticky + reg->rest().is_listed + is_apart;
    is_right &= places <= 1 && !(reg->is_open() && places == 0 && reg->rest().kind != Kind::kHeap);
    previous = reg->base();
    return true;
  };
  visit_all(stripe.by_range.root(), look);
  const Totals& totals = stripe.totals;
  return is_right && seen.count == totals.count && seen.bytes == totals.bytes &&
         seen.sticky_count == totals.sticky_count && seen.sticky_bytes == totals.sticky_bytes &&
         seen.listed_count == totals.listed_count && seen.listed_bytes == totals.listed_bytes &&
         totals.quarantined_count <= seen.count;
}

bool is(const Budget& budget, std::uint64_t bytes, std::uint64_t count) {
  return budget.bytes.load(std::memory_order_relaxed) == bytes &&
         budget.count.load(std::memory_order_relaxed) == count;
}

}  // namespace

bool domain_is_valid(Domain& domain) {
  for (std::size_t i = 0; i <= kStripes; ++i)
    if (!stripe_is_valid(domain, domain.stripes[i])) return false;
  Counters counters = domain_counters(domain);
  if (counters.deregistrations + counters.lost_drops > counters.registrations) return false;
  Totals totals = domain_totals(domain);
  return !domain.is_bounded() ||
         (is(domain.taken, totals.bytes + totals.reserved_bytes,
             totals.count + totals.reserved_count) &&
          is(domain.sticky_taken, totals.sticky_bytes, totals.sticky_count));
}

}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_domain_open(const rdmalloc_registrar_ops* given_ops,
                                                 void* context,
                                                 const rdmalloc_domain_attr* given_attr,
                                                 rdmalloc_domain** handle) {
  rdmalloc_registrar_ops ops = {};
  rdmalloc_domain_attr attr = {};
  if (handle == nullptr) return -EINVAL;
  if (int error = rdmalloc::read_struct(given_ops, &ops)) return error;
  if (int error = given_attr != nullptr ? rdmalloc::read_struct(given_attr, &attr) : 0)
    return error;
  if (int error = check_ops(ops)) return error;
  if (int error = check_attr(attr)) return error;
  if (rdmalloc::is_in_page_event()) return -EDEADLK;
  State* all = nullptr;
  if (int error = state_prepare(&all)) return error;
  GateScope scope(*all, Gate::kMakes);
  if (int error = scope.error()) return error;
  Domain* domain = take_place(*all);
  if (domain == nullptr) return -EMFILE;
  rdmalloc::hold_at_exit();
  // The first domain's observer has started it; the last rdmalloc_fini() since may have ended it.
  rdmalloc::purge_thread_start();
  // A purge under way has not asked this domain whether its range is whole units (purge.cc).
  bool is_coarse = ops.granularity > rdmalloc::os::page_bytes();
  int error = is_coarse ? rdmalloc::purge_pause() : 0;
  if (error == 0) {
    error = open_place(*all, *domain, ops, context, attr);
    if (error != 0 && is_coarse) rdmalloc::purge_resume();
  }
  if (error != 0) {
    domain->phase.store(Phase::kUnused, std::memory_order_release);
    return error;
  }
  watcher.attach(*all);
  survivors.is_open[domain->index].store(true, std::memory_order_relaxed);
  domain->phase.store(Phase::kIsOpen, std::memory_order_release);
  if (is_coarse) rdmalloc::purge_resume();
  *handle = reinterpret_cast<rdmalloc_domain*>(domain);
  return 0;
}

extern "C" RDMALLOC_API int rdmalloc_domain_close(rdmalloc_domain* handle) {
  Domain* domain = domain_of(handle);
  if (rdmalloc::is_in_page_event() || is_dropping()) return -EDEADLK;
  int error = domain_check(domain);
  if (error == -ECHILD) {
    // The parent's domain: the child has nothing of it, and must not touch the registrar's objects.
    survivors.is_open[domain - state()->domains].store(false, std::memory_order_relaxed);
    return 0;
  }
  if (error != 0 && error != -ENODEV && error != -EAGAIN) return error;
  GateScope scope(*state(), Gate::kUnmakes);
  if (int busy = scope.error()) return busy;
  // Also if nothing is registered for them: in a checkpoint, or after one that lost the domain.
  if (is_in_a_list(domain->index)) return -EBUSY;
  drain_deferred(*domain);
  Registration* drops = nullptr;
  if (int busy = begin_closing(*domain, &drops)) return busy;
  drop_list(*domain, drops, Reason::kAsked);
  wait_for_drops(*domain);
  if (domain->is_lost.load(std::memory_order_acquire))
    forget_quarantined(*domain);
  else
    move_quarantined(*state(), *domain);
  rdmalloc::assert_no_lock_held("close");
  if (domain->ops.close != nullptr) {
    CallbackScope callback;
    domain->ops.close(domain->context);
  }
  domain->is_abandoned.store(false, std::memory_order_relaxed);
  // The head stays as it is, so that a call on another thread reads nothing that this one writes:
  // its slots are empty, and the slow path looks at the phase.
  count_closed(*state(), *domain);
  survivors.is_open[domain->index].store(false, std::memory_order_relaxed);
  domain->phase.store(Phase::kUnused, std::memory_order_release);
  watcher.detach();
  return 0;
}

extern "C" RDMALLOC_API int64_t rdmalloc_domain_flush(rdmalloc_domain* handle) {
  Domain* domain = domain_of(handle);
  if (rdmalloc::is_in_page_event()) return -EDEADLK;
  if (int error = domain_check(domain)) return error;
  drain_deferred(*domain);
  flush_blocks_with_keys(*domain);
  Registration* drops = nullptr;
  {
    WholeGuard guard(*domain);
    reclaim_sticky(*domain, UINT64_MAX);
    drops = pick_victims(*domain, UINT64_MAX, UINT64_MAX);
  }
  return static_cast<std::int64_t>(drop_list(*domain, drops, Reason::kFlushed));
}

extern "C" RDMALLOC_API int rdmalloc_domain_stats(rdmalloc_domain* handle,
                                                  rdmalloc_domain_counters* wanted) {
  Domain* domain = domain_of(handle);
  if (int error = rdmalloc::check_struct(wanted)) return error;
  if (int error = domain_check(domain); error != 0 && error != -ENODEV && error != -EAGAIN)
    return error;
  MemlockRoom memlock = memlock_room(*domain);
  rdmalloc_domain_counters stats;
  {
    WholeGuard guard(*domain);
    const Totals totals = domain_totals(*domain);
    stats = counters_for_user(domain_counters(*domain));
    stats.live_count = totals.count;
    stats.live_bytes = totals.bytes;
    stats.sticky_count = totals.sticky_count;
    stats.sticky_bytes = totals.sticky_bytes;
    stats.is_lost = domain->has_failed() ? 1 : 0;
  }
  // What only the registrations know. A stripe's counter of hits has those of its registrations
  // that are gone.
  stats.hits = 0;
  auto add = [&](Registration* reg) {
    stats.hits += reg->state.load(std::memory_order_relaxed) >> kHitShift;
    if (reg->refs() > (reg->rest().is_suspended ? 1u : 0u)) ++stats.in_use;
    return true;
  };
  each_stripe_in_turn(*domain, [&](Stripe& stripe) {
    stats.hits += stripe.counters.hits;
    visit_all(stripe.by_range.root(), add);
  });
  // One counted may have gone since, and another come.
  stats.in_use = std::min(stats.in_use, stats.live_count);
  stats.memlock_limit_bytes = memlock.limit;
  stats.memlock_left_bytes = memlock.left;
  rdmalloc::write_struct(stats, wanted);
  return 0;
}

extern "C" RDMALLOC_API int rdmalloc_domain_context(rdmalloc_domain* handle,
                                                    const rdmalloc_registrar_ops* ops,
                                                    void** context) {
  Domain* domain = domain_of(handle);
  int error = domain_check(domain);
  if (ops == nullptr || context == nullptr || error == -EINVAL || error == -ECHILD) return -EINVAL;
  if (domain->ops.register_ != ops->register_) return -EINVAL;
  *context = domain->context;
  return 0;
}
