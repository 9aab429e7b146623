#include "regcache/core/drop.h"

#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/at_exit.h"
#include "regcache/core/callbacks.h"
#include "regcache/core/history.h"
#include "regcache/core/page_frame_check.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

bool fills_slices(const Domain& domain, const Registration* reg) {
  return ((reg->head.base | reg->length()) & (RDMALLOC_SLICE_BYTES - 1)) == 0 &&
         domain.holds(reg->base()) && domain.holds(reg->end() - 1);
}

// The registrar's answer to the end of a registration.
struct Answer {
  int error;          // 0: it is gone
  bool ends_by_loss;  // gone with the device, whatever the registrar's answer
};

// Asks the registrar; notices that the device is gone, from the domain or from the answer.
Answer ask_to_deregister(Domain& domain, Registration* reg) {
  assert_no_lock_held("deregister");
  bool is_called = (domain.ops.flags & RDMALLOC_REGISTRAR_DIES_WITH_DEVICE) == 0 ||
                   !domain.is_lost.load(std::memory_order_acquire);
  int error = 0;
  if (is_called && os::should_fail(os::Site::kDeregister)) {
    error = -EIO;
  } else if (is_called) {
    CallbackScope callback;
    error = domain.ops.deregister(domain.context, reinterpret_cast<void*>(reg->base()),
                                  reg->length(), &reg->head.key);
  }
  if (error == -ENODEV) lose_domain(domain);
  if (is_called && error == 0) return {0, false};
  bool is_lost = domain.is_lost.load(std::memory_order_acquire);
  return {is_lost ? 0 : error, is_lost};
}

// What a drop changes once the registrar has answered. Under the lock.
void account_drop(Domain& domain, Registration* reg, Reason reason, const Answer& answer) {
  if (answer.error != 0) {
    quarantine(domain, reg);
    return;
  }
  leave_tree(domain, reg);
  Counters& counters = domain.stripe_of_reg(reg).counters;
  counters.hits += reg->state.load(std::memory_order_relaxed) >> kHitShift;
  ++(answer.ends_by_loss ? counters.lost_drops : counters.deregistrations);
  if (reason == Reason::kEvicted) ++counters.evictions;
  if (reason == Reason::kFlushed) ++counters.flush_drops;
  // Events of watched memory defer drops too, beside those of purges.
  if (reason == Reason::kPurged && !reg->rest().is_watched) ++counters.purge_drops;
}

Event event_of(Reason reason) {
  if (reason == Reason::kEvicted) return Event::kEvicted;
  return reason == Reason::kPurged ? Event::kDroppedByPurge : Event::kDeregistered;
}

}  // namespace

void leave_tree(Domain& domain, Registration* reg) {
  Stripe& stripe = domain.stripe_of_reg(reg);
  stripe.by_range.erase(reg);
  --stripe.totals.count;
  stripe.totals.bytes -= reg->length();
  if (domain.is_bounded()) domain.taken.give(reg->length());
}

Invalidation* completed_by_end_of(Registration* reg) {
  if (!reg->rest().is_awaited) return nullptr;
  reg->rest().is_awaited = false;
  return state()->invalidations.ended(reg);
}

namespace {

bool drop_one(Domain& domain, Registration* reg, Reason reason) {
  std::uintptr_t low = reg->base(), high = reg->end();
  bool was_watched = reg->rest().is_watched;
  Answer answer = ask_to_deregister(domain, reg);
  Invalidation* completed = nullptr;
  bool is_waited_for = false;
  if (answer.error != 0) {
    warn_quarantined(domain, reg, answer.error);
  } else {
    note(event_of(reason), reg->base(), reg->end(), domain.ops.name, reg->head.key.generation);
    page_frames_deregistered(reg);
  }
  {
    RangeGuard guard(domain, low, high);
    account_drop(domain, reg, reason, answer);
    // A quarantined registration completes its invalidations too: it never ends.
    completed = completed_by_end_of(reg);
    Phase phase = domain.phase.load(std::memory_order_relaxed);
    is_waited_for = phase == Phase::kBeingClosed || phase == Phase::kIsChanging;
    if (is_waited_for) domain.drops.fetch_add(1, std::memory_order_relaxed);
  }
  // After it left the tree, and before the domain is closed: watching ends with the last domain.
  if (was_watched && answer.error == 0) watcher.end(*state(), low, high);
  // From here on another thread may close the domain: its memory stays, but do not use its
  // registrar.
  if (is_waited_for) os::futex_wake(reinterpret_cast<const std::uint32_t*>(&domain.drops), 1);
  if (answer.error == 0) {
    // Zero, as in a child: a late put recognises it.
    reg->state.store(0, std::memory_order_relaxed);
    state()->registrations.give(reg);
  }
  state()->invalidations.complete(completed);
  return answer.error == 0;
}

}  // namespace

void quarantine(Domain& domain, Registration* reg) {
  reg->rest().is_quarantined = true;
  Stripe& stripe = domain.stripe_of_reg(reg);
  ++stripe.counters.quarantined;
  ++stripe.totals.quarantined_count;
  note_quarantined(reg->length());
  if (reg->rest().is_watched) watcher.quarantined();
}

void forget_quarantined(Domain& domain) {
  WholeGuard guard(domain);
  for (std::size_t i = 0; i <= kStripes; ++i) {
    Stripe& stripe = domain.stripes[i];
    while (Registration* reg = stripe.by_range.first()) {
      leave_tree(domain, reg);
      --stripe.totals.quarantined_count;
      ++stripe.counters.lost_drops;
      forget_quarantined_bytes(reg->length());
      // Zero, as after a drop: a late put recognises it.
      reg->state.store(0, std::memory_order_relaxed);
      state()->registrations.give(reg);
    }
  }
}

void warn_quarantined(Domain& domain, const Registration* reg, int error) {
  if (domain.has_warned_of_quarantine.exchange(true, std::memory_order_relaxed)) return;
  bool is_remote = (reg->access() & RDMALLOC_ACCESS_REMOTE) != 0;
  Message()
      .text("warning: ")
      .value(domain.ops.name)
      .text(" could not deregister ")
      .address(reinterpret_cast<void*>(reg->base()))
      .text(" + ")
      .number(reg->length())
      .text(" bytes (error ")
      .signed_number(error)
      .text("): its pages are never given back from now on")
      .text(is_remote ? ", and peers that have its key may reach them until the domain is closed"
                      : "")
      .text("; stats.quarantined_bytes counts these, and those that follow")
      .warn();
}

void publish(Domain& domain, Slot* table, Registration* reg, SliceRange forced) {
  if (!fills_slices(domain, reg)) return;
  // The inline fast path checks no page frames.
  if (table == domain.sticky && page_frames_are_checked(domain)) return;
  // Nor does it note its key.
  if (table == domain.sticky && domain.notes_keys() && reg->rest().kind != Kind::kHeap) return;
  RecordNumber number = domain.number_of(reg);
  SliceRange slices = domain.slices_of(reg->base(), reg->end());
  for (std::size_t slice = slices.first; slice != slices.end; ++slice) {
    bool is_forced = slice >= forced.first && slice < forced.end;
    // Release: pairs with the acquire of the fast paths, which then read the head.
    if (is_forced || table[slice].load(std::memory_order_relaxed) == 0)
      table[slice].store(number, std::memory_order_release);
  }
}

void unpublish(Domain& domain, Slot* table, Registration* reg) {
  if (!fills_slices(domain, reg)) return;
  RecordNumber number = domain.number_of(reg);
  SliceRange slices = domain.slices_of(reg->base(), reg->end());
  for (std::size_t slice = slices.first; slice != slices.end; ++slice)
    // seq_cst: before the look at what lives there (README.md, "Why no reader is late").
    if (table[slice].load(std::memory_order_relaxed) == number)
      table[slice].store(0, std::memory_order_seq_cst);
}

void list(Domain& domain, Registration* reg) {
  reg->rest().listed_stamp = reg->stamp.load(std::memory_order_relaxed);
  reg->rest().is_listed = true;
  reg->rest().by_stamp = {};
  Stripe& stripe = domain.stripe_of_reg(reg);
  stripe.by_stamp.insert(reg);
  ++stripe.totals.listed_count;
  stripe.totals.listed_bytes += reg->length();
}

namespace {

void take_from_order(Domain& domain, Registration* reg) {
  Stripe& stripe = domain.stripe_of_reg(reg);
  stripe.by_stamp.erase(reg);
  reg->rest().is_listed = false;
  --stripe.totals.listed_count;
  stripe.totals.listed_bytes -= reg->length();
}

}  // namespace

void unlist(Domain& domain, Registration* reg) {
  if (reg->rest().is_listed)
    take_from_order(domain, reg);
  else if ((reg->state.load(std::memory_order_relaxed) & kApart) != 0)
    reg->state.fetch_and(~kApart, std::memory_order_relaxed);
}

void list_apart(Domain& domain, Registration* reg) {
  bool was_apart = (reg->state.fetch_and(~kApart, std::memory_order_relaxed) & kApart) != 0;
  if (was_apart) list(domain, reg);
}

void begin_sticky(Domain& domain, Registration* reg) {
  unlist(domain, reg);
  reg->rest().is_sticky = true;
  Stripe& stripe = domain.stripe_of_reg(reg);
  ++stripe.totals.sticky_count;
  stripe.totals.sticky_bytes += reg->length();
  // Looked at last.
  Registration* next = stripe.sticky_ring != nullptr ? stripe.sticky_ring : reg;
  Registration* previous = next != reg ? next->rest().by_stamp.right : reg;
  reg->rest().by_stamp = {next, previous};
  previous->rest().by_stamp.left = reg;
  next->rest().by_stamp.right = reg;
  stripe.sticky_ring = next;
}

void end_sticky(Domain& domain, Registration* reg) {
  reg->rest().is_sticky = false;
  Stripe& stripe = domain.stripe_of_reg(reg);
  --stripe.totals.sticky_count;
  stripe.totals.sticky_bytes -= reg->length();
  if (domain.is_bounded()) domain.sticky_taken.give(reg->length());
  auto [next, previous] = reg->rest().by_stamp;
  previous->rest().by_stamp.left = next;
  next->rest().by_stamp.right = previous;
  if (stripe.sticky_ring == reg) stripe.sticky_ring = next != reg ? next : nullptr;
}

bool is_unused(const Domain& domain, const Registration* reg) {
  void* base = reinterpret_cast<void*>(reg->base());
  return rdmalloc_range_is_idle(base, reg->length()) ||
         (!fills_slices(domain, reg) && rdmalloc_range_is_free(base, reg->length()));
}

void flush_blocks_with_keys(Domain& domain) {
  {
    WholeGuard guard(domain);
    if (domain_totals(domain).sticky_count == 0) return;
  }
  rdmalloc_caches_flush();
}

namespace {

std::uint64_t reclaim_sticky_of(Domain& domain, Stripe& stripe, std::uint64_t looks) {
  std::uint64_t reclaimed = 0;
  for (; looks != 0; --looks) {
    Registration* reg = stripe.sticky_ring;
    stripe.sticky_ring = reg->rest().by_stamp.left;
    // The first look keeps the slots of registrations in use filled. The second look, with the
    // slots empty, decides.
    if (!is_unused(domain, reg)) continue;
    unpublish(domain, domain.sticky, reg);
    if (is_unused(domain, reg)) {
      end_sticky(domain, reg);
      list(domain, reg);
      ++reclaimed;
    } else {
      publish(domain, domain.sticky, reg, {0, 0});
    }
  }
  return reclaimed;
}

}  // namespace

std::uint64_t reclaim_sticky(Domain& domain, std::uint64_t most) {
  std::uint64_t left = most, reclaimed = 0;
  for (std::size_t i = 0; i <= kStripes && left != 0; ++i) {
    Stripe& stripe = domain.stripes[domain.sticky_turn];
    std::uint64_t there = stripe.totals.sticky_count;
    std::uint64_t looks = there < left ? there : left;
    reclaimed += reclaim_sticky_of(domain, stripe, looks);
    left -= looks;
    // On to the next even if some of this one were not looked at: its ring has moved on too.
    domain.sticky_turn = (domain.sticky_turn + 1) % (kStripes + 1);
  }
  return reclaimed;
}

void withdraw(Domain& domain, Registration* reg) {
  unlist(domain, reg);
  if (reg->rest().is_sticky || reg->rest().kind == Kind::kHeap)
    unpublish(domain, domain.sticky, reg);
  if (reg->rest().is_sticky) end_sticky(domain, reg);
  unpublish(domain, domain.counted, reg);
}

bool close_for_drop(Domain& domain, Registration* reg, Registration** drops) {
  if (!close_idle(reg)) return false;
  withdraw(domain, reg);
  push(drops, reg);
  return true;
}

bool close_held_too(Domain& domain, Registration* reg) {
  // First out of the orders: once closed, the last put may link it into a list of drops.
  withdraw(domain, reg);
  // Closing and counting holders is one step: of this and the last put, exactly one sees the word
  // closed without holders, and drops.
  return (reg->state.fetch_and(~kOpen, std::memory_order_acq_rel) & kRefs) == 0;
}

void suspend(Domain& domain, Registration* reg) {
  bool was_sticky = reg->rest().is_sticky;
  withdraw(domain, reg);
  reg->rest().is_suspended = true;
  reg->rest().was_sticky = was_sticky;
  // One step: the put of the last other reference finds the word closed and our reference in it.
  reg->state.fetch_sub(kOpen - 1, std::memory_order_acq_rel);
}

bool unsuspend(Registration* reg) {
  reg->rest().is_suspended = false;
  // Acquire: pairs with the release in put(), so that earlier holders are done with it.
  return (reg->state.fetch_sub(1, std::memory_order_acq_rel) & kRefs) == 1;
}

void give_reference_back(Registration* reg, Registration** drops) {
  // Acquire: pairs with the release in put(), so that earlier holders are done with it.
  if ((reg->state.fetch_sub(1, std::memory_order_acq_rel) & kRefs) == 1) push(drops, reg);
}

void reopen_suspended(Domain& domain, Registration* reg) {
  reg->rest().is_suspended = false;
  // One step, so that no put ends it in between. Release: as in open_with().
  reg->state.fetch_add(kOpen - 1, std::memory_order_release);
  if (reg->rest().kind != Kind::kHeap) {
    reopen(domain, reg, reg->rest().was_sticky);
    return;
  }
  publish(domain, domain.sticky, reg, {0, 0});
  publish(domain, domain.counted, reg, {0, 0});
}

void reopen(Domain& domain, Registration* reg, bool was_sticky) {
  reg->state.fetch_or(kOpen, std::memory_order_release);
  publish(domain, domain.counted, reg, {0, 0});
  if (was_sticky) {
    if (domain.is_bounded()) domain.sticky_taken.take(reg->length());
    begin_sticky(domain, reg);
    publish(domain, domain.sticky, reg, {0, 0});
  } else {
    list(domain, reg);
  }
}

namespace {

// The first of each stripe's order, so that the first of all is found without 33 ways down.
class Firsts {
 public:
  explicit Firsts(Domain& domain) : domain_(domain) {
    for (std::size_t i = 0; i <= kStripes; ++i) of_[i] = domain.stripes[i].by_stamp.first();
  }
  Registration* first() {
    at_ = 0;
    for (std::size_t i = 1; i <= kStripes; ++i)
      if (of_[i] != nullptr && (of_[at_] == nullptr || StampOrder::is_before(of_[i], of_[at_])))
        at_ = i;
    return of_[at_];
  }
  // After a change of what first() returned.
  void look_again() { of_[at_] = domain_.stripes[at_].by_stamp.first(); }

 private:
  Domain& domain_;
  Registration* of_[kStripes + 1];
  std::size_t at_ = 0;
};

}  // namespace

Registration* pick_victims(Domain& domain, std::uint64_t bytes, std::uint64_t count,
                           std::uint64_t looks) {
  Registration* victims = nullptr;
  Firsts firsts(domain);
  std::uint64_t freed_bytes = 0, freed_count = 0;
  // The order is by the stamp that a registration had when it was listed, which is at most its
  // stamp now. So the first whose two stamps agree is the least recently put of all; one whose
  // stamps differ is listed anew. One in use is set apart, and its put lists it again. So each look
  // that takes nothing has a hit since the listing to its account.
  while (freed_bytes < bytes || freed_count < count) {
    Registration* reg = firsts.first();
    if (reg == nullptr || looks == 0) break;
    if (set_apart(reg)) {
      take_from_order(domain, reg);
      firsts.look_again();
      --looks;
      continue;
    }
    bool is_current = reg->stamp.load(std::memory_order_relaxed) == reg->rest().listed_stamp;
    if (!is_current || !close_idle(reg)) {
      take_from_order(domain, reg);
      list(domain, reg);
      firsts.look_again();
      --looks;
      continue;
    }
    withdraw(domain, reg);
    firsts.look_again();
    freed_bytes += reg->length();
    ++freed_count;
    push(&victims, reg);
  }
  return victims;
}

Unmovable unmovable(Domain& domain) {
  reclaim_sticky(domain, UINT64_MAX);
  Totals totals = domain_totals(domain);
  Unmovable sum{totals.reserved_bytes, totals.reserved_count};
  auto add = [&](Registration* reg) {
    if (reg->is_open() && !reg->rest().is_sticky && reg->refs() == 0) return true;
    sum.bytes += reg->length();
    ++sum.count;
    return true;
  };
  visit_all(domain, add);
  return sum;
}

namespace {

// Whether this is a thread of ours, and registrars may be gone.
bool is_late() {
  return exit_has_begun() && (is_helper_thread || is_in_page_event());
}

// Leaves drops to the next thread that calls into the domain, or to one that waits for them.
void leave(Domain& domain, Registration* list) {
  defer_list(domain, list);
  // Release: pairs with the acquire in wait_for_drops(), which then finds them deferred.
  domain.drops.fetch_add(1, std::memory_order_release);
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&domain.drops), 1);
}

}  // namespace

std::uint64_t drop_list(Domain& domain, Registration* list, Reason reason) {
  DropScope scope;
  std::uint64_t gone = 0;
  while (list != nullptr) {
    if (is_late()) {
      leave(domain, list);
      break;
    }
    Registration* next = list->next();
    if (drop_one(domain, list, reason)) ++gone;
    list = next;
  }
  return gone;
}

void defer(Domain& domain, Registration* reg) {
  Registration* first = domain.deferred.load(std::memory_order_relaxed);
  do {
    reg->next() = first;
    // Release: pairs with the acquire in take_deferred().
  } while (!domain.deferred.compare_exchange_weak(first, reg, std::memory_order_release,
                                                  std::memory_order_relaxed));
}

void defer_list(Domain& domain, Registration* list) {
  while (list != nullptr) {
    Registration* next = list->next();
    defer(domain, list);
    list = next;
  }
}

Registration* take_deferred(Domain& domain) {
  // What this thread knows of was pushed before this look.
  if (domain.deferred.load(std::memory_order_relaxed) == nullptr) return nullptr;
  return domain.deferred.exchange(nullptr, std::memory_order_acquire);
}

void drain_deferred(Domain& domain) {
  drop_list(domain, take_deferred(domain), Reason::kPurged);
}

void wait_for_drops(Domain& domain) {
  for (;;) {
    std::uint32_t seen = domain.drops.load(std::memory_order_acquire);
    // Each time: once exit() has begun, a thread of ours defers what it has not dropped.
    drain_deferred(domain);
    {
      WholeGuard guard(domain);
      Totals totals = domain_totals(domain);
      if (totals.count == totals.quarantined_count) return;
    }
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&domain.drops), seen, -1);
  }
}

}  // namespace rdmalloc::regcache
