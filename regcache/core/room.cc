#include "regcache/core/room.h"

#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/callbacks.h"
#include "regcache/core/drop.h"
#include "regcache/core/page_frame_check.h"
#include "regcache/core/put_clock.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

// Takes room for one more registration, if there is. Under the lock.
bool take_room(Domain& domain, std::size_t length) {
  if (!domain.is_bounded()) return true;
  bool is_taken = true;
  // A resume registers again what the checkpoint took, even if quarantined ranges have filled the
  // limits meanwhile.
  if (may_register_early())
    domain.taken.take(length);
  else
    is_taken = domain.taken.try_take(length, domain.max_bytes, domain.max_count);
  if (domain.taken.count.load(std::memory_order_relaxed) > domain.max_count / 2) put_clock_start();
  return is_taken;
}

// Under the lock. The room is taken.
void begin_reservation(Domain& domain, Registration* reg) {
  Stripe& stripe = domain.stripe_of_reg(reg);
  stripe.totals.reserved_bytes += reg->length();
  ++stripe.totals.reserved_count;
  std::atomic<std::uint64_t>& count = state()->generation;
  // A wide one is looked for under the lock of one stripe too, which may not write the wide one's.
  std::uint64_t generation = &stripe == &domain.wide()
                                 ? count.fetch_add(1, std::memory_order_relaxed) + 1
                                 : stripe.generations.take(count);
  std::atomic_ref(reg->head.key.generation).store(generation, std::memory_order_release);
  reg->next() = stripe.in_flight;
  stripe.in_flight = reg;
}

// What sticky registrations may take of a limit at most. A quarter, and at least one registration,
// is left to counted ones, which must go on working when uncounted keys are refused.
std::uint64_t sticky_share(std::uint64_t limit) {
  return limit == UINT64_MAX ? limit : limit - (limit / 4 + (limit % 4 != 0));
}

}  // namespace

int check_open(const Domain& domain) {
  Phase phase = domain.phase.load(std::memory_order_relaxed);
  if (phase == Phase::kIsOpen) return 0;
  if (domain.has_failed()) return -ENODEV;
  if (phase != Phase::kIsChanging && phase != Phase::kIsQuiesced) return -EINVAL;
  return may_register_early() ? 0 : -EAGAIN;
}

int reserve_room(Domain& domain, Registration* reg) {
  std::size_t length = reg->length();
  if (length > domain.max_bytes) return kNoRoom;
  // Looks at what is in use in turns, between which other threads get the lock.
  constexpr std::uint64_t kLooks = 256;
  // Each round evicts what is missing; other threads may take that room, but not for ever.
  std::uint64_t rounds = 16;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    {
      RangeGuard guard(domain, reg);
      if (int error = check_open(domain)) return error;
      if (take_room(domain, length)) {
        begin_reservation(domain, reg);
        return 0;
      }
    }
    Registration* victims = nullptr;
    {
      WholeGuard guard(domain);
      if (int error = check_open(domain)) return error;
      if (take_room(domain, length)) {
        begin_reservation(domain, reg);
        return 0;
      }
      std::uint64_t bytes = domain.taken.bytes.load(std::memory_order_relaxed);
      std::uint64_t count = domain.taken.count.load(std::memory_order_relaxed);
      std::uint64_t room = domain.max_bytes > bytes ? domain.max_bytes - bytes : 0;
      std::uint64_t missing_bytes = length > room ? length - room : 0;
      std::uint64_t missing_count = count >= domain.max_count ? count - domain.max_count + 1 : 0;
      // Do not evict if it is known that the eviction will not be enough.
      Totals totals = domain_totals(domain);
      auto may_suffice = [&] {
        return missing_bytes <= totals.listed_bytes && missing_count <= totals.listed_count;
      };
      auto reclaims = [&] {
        bool is_some = reclaim_sticky(domain, kStickyLooks) != 0;
        totals = domain_totals(domain);
        return is_some;
      };
      if (!may_suffice() && (!reclaims() || !may_suffice())) return kNoRoom;
      if (round == 0) rounds += 2 * totals.listed_count / kLooks;
      victims = pick_victims(domain, missing_bytes, missing_count, kLooks);
    }
    drop_list(domain, victims, Reason::kEvicted);
  }
  return kNoRoom;
}

void end_reservation(Domain& domain, Registration* reg) {
  Stripe& stripe = domain.stripe_of_reg(reg);
  stripe.totals.reserved_bytes -= reg->length();
  --stripe.totals.reserved_count;
  Registration** link = &stripe.in_flight;
  while (*link != reg) link = &(*link)->next();
  *link = reg->next();
}

bool has_sticky_room(Domain& domain, std::size_t length, bool is_whole) {
  if (!domain.is_bounded()) return true;
  std::uint64_t bytes = sticky_share(domain.max_bytes);
  const Budget& taken = domain.sticky_taken;
  auto fits = [&] {
    return taken.count.load(std::memory_order_relaxed) < sticky_share(domain.max_count) &&
           length <= bytes && taken.bytes.load(std::memory_order_relaxed) <= bytes - length;
  };
  // Half: a call that is refused comes here for a wide registration and for a narrow one, and looks
  // again once what its thread keeps is free (end_unused_keys).
  return fits() || (is_whole && reclaim_sticky(domain, kStickyLooks / 2) != 0 && fits());
}

bool take_sticky_room(Domain& domain, std::size_t length) {
  return !domain.is_bounded() ||
         domain.sticky_taken.try_take(length, sticky_share(domain.max_bytes),
                                      sticky_share(domain.max_count));
}

// ---- RLIMIT_MEMLOCK ----

namespace {

constexpr std::uint32_t kCharged = RDMALLOC_REGISTRAR_PINS | RDMALLOC_REGISTRAR_LOCKS;

// Evicts idle registrations of `victim` until `domain` has room. Whether it has now.
bool evict_from(Domain& victim, const Domain& domain, std::size_t length) {
  MemlockRoom room = memlock_room(domain);
  if (length <= room.left) return true;
  Registration* victims = nullptr;
  {
    WholeGuard guard(victim);
    if (victim.phase.load(std::memory_order_relaxed) != Phase::kIsOpen) return false;
    reclaim_sticky(victim, kStickyLooks);
    victims = pick_victims(victim, length - room.left, 0);
  }
  if (victims == nullptr) return false;
  drop_list(victim, victims, Reason::kEvicted);
  return length <= memlock_room(domain).left;
}

void warn(Domain& domain, std::size_t length, const MemlockRoom& room) {
  if (domain.has_warned_of_memlock.exchange(true, std::memory_order_relaxed)) return;
  Message()
      .text("warning: RLIMIT_MEMLOCK is ")
      .number(room.limit)
      .text(" bytes and leaves ")
      .number(room.left)
      .text(" for ")
      .value(domain.ops.name)
      .text(", which wants ")
      .number(length)
      .text(": raise it (ulimit -l), or grant CAP_IPC_LOCK")
      .warn();
}

}  // namespace

MemlockRoom memlock_room(const Domain& domain) {
  if ((domain.ops.flags & kCharged) == 0) return {};
  os::LockedMemory memory = os::locked_memory();
  if (memory.limit_bytes == UINT64_MAX) return {};
  std::uint64_t used =
      (domain.ops.flags & RDMALLOC_REGISTRAR_PINS) != 0 ? memory.pinned_bytes : memory.locked_bytes;
  return {memory.limit_bytes, memory.limit_bytes > used ? memory.limit_bytes - used : 0};
}

bool make_memlock_room(Domain& domain, std::size_t length) {
  MemlockRoom room = memlock_room(domain);
  if (room.limit != UINT64_MAX) put_clock_start();
  if (length <= room.left) return true;
  // The domain's own first: the others' users have not asked for anything.
  if (length <= room.limit) {
    if (evict_from(domain, domain, length)) return true;
    for (std::size_t i = 0; i < kMostDomains; ++i) {
      Domain& other = state()->domains[i];
      // Acquire: pairs with open's release.
      if (&other == &domain || other.phase.load(std::memory_order_acquire) != Phase::kIsOpen ||
          !other.is_any_thread() || (other.ops.flags & domain.ops.flags & kCharged) == 0)
        continue;
      if (evict_from(other, domain, length)) return true;
    }
    room = memlock_room(domain);
  }
  {
    WholeGuard guard(domain);
    ++domain.wide().counters.memlock_refusals;
  }
  warn(domain, length, room);
  return false;
}

// ---- the registrar ----

void count(Counters& counters, const Asked& asked) {
  counters.register_ns_total += asked.ns_total;
  if (asked.ns_worst > counters.register_ns_worst) counters.register_ns_worst = asked.ns_worst;
  counters.registrations += asked.registrations;
  counters.refusals += asked.refusals;
}

namespace {

// One call of register_, timed and counted.
int ask_and_count(Domain& domain, Registration* reg, Asked& asked) {
  assert_no_lock_held("register");
  rdmalloc_key key = {};
  std::int64_t begin_ns = os::monotonic_ns();
  int error = os::should_fail(os::Site::kRegister)       ? -ENOMEM
              : os::should_fail(os::Site::kRegisterUndo) ? -ENOTRECOVERABLE
                                                         : 0;
  if (error == 0) {
    CallbackScope callback;
    error = domain.ops.register_(domain.context, reinterpret_cast<void*>(reg->base()),
                                 reg->length(), reg->access() & ~RDMALLOC_NO_REGISTER, &key);
  }
  store_registrars_part(reg->head.key, key);
  auto took_ns = static_cast<std::uint64_t>(os::monotonic_ns() - begin_ns);
  if (error == 0) page_frames_registered(domain, reg);
  asked.ns_total += took_ns;
  if (took_ns > asked.ns_worst) asked.ns_worst = took_ns;
  ++(error == 0 || error == -ENOTRECOVERABLE ? asked.registrations : asked.refusals);
  return error_of_answer(error);
}

// The same; an answer of -ENODEV loses the domain.
int ask_registrar(Domain& domain, Registration* reg, Asked& asked) {
  int error = ask_and_count(domain, reg, asked);
  if (error == -ENODEV) lose_domain(domain);
  return error;
}

// The registrar has no memory left, and no idle registration is left to evict: asks the purge
// thread to give all free memory back to the kernel. This thread may be in a fabric's call and does
// not.
void ask_for_purge(Domain& domain) {
  int saved = errno;
  purge_request_all();
  errno = saved;
  WholeGuard guard(domain);
  ++domain.wide().counters.purge_requests;
}

// What overlaps a registration that was refused by a registrar without overlaps.
struct InTheWay {
  Registration* idle = nullptr;  // closed here, as a list to drop
  bool passes = false;           // another thread is making or dropping some of it
  bool stays = false;            // some of it is held, sticky, or quarantined
  bool serves = false;           // some of it does for the request: newer than the look-up, or
                                 // without room among the sticky
};

// Of the very same range a registrar without overlaps may take another (DPDK).
bool is_of_range(const Registration* reg, std::uintptr_t low, std::uintptr_t high) {
  return reg->base() == low && reg->end() == high;
}

// Whether the next look-up finds `reg` instead of what `wanted` was to be. Under the lock.
bool does_for(const Registration* reg, const Registration* wanted) {
  return wanted->rest().kind == Kind::kCached && reg->rest().kind != Kind::kPerUse &&
         reg->is_open() && reg->covers(wanted->base(), wanted->end()) &&
         (wanted->access() & ~reg->access()) == 0 &&
         (wanted->rest().is_watched || !reg->rest().is_watched);
}

// Under the lock. Where something stays, all does: what is idle would be dropped for nothing, by
// each get for what the ones before it made.
InTheWay close_in_the_way(Domain& domain, const Registration* wanted, std::uintptr_t block_low,
                          std::uintptr_t block_high) {
  InTheWay there;
  auto may_close = [&](const Registration* reg) {
    const RegistrationRest& rest = reg->rest();
    return rest.kind == Kind::kCached && reg->is_open() && reg->refs() == 0 &&
           (!rest.is_sticky || is_outgrown(domain, reg, block_low, block_high));
  };
  auto look_what_stays = [&](Registration* reg) {
    bool is_busy = reg->is_open() || reg->refs() != 0 || reg->rest().is_quarantined;
    there.stays |= is_busy && !may_close(reg) && !does_for(reg, wanted) &&
                   !is_of_range(reg, wanted->base(), wanted->end());
    return !there.stays;
  };
  visit_overlapping(domain, wanted->base(), wanted->end(), look_what_stays);
  if (there.stays) return there;
  auto look = [&](Registration* reg) {
    const RegistrationRest& rest = reg->rest();
    if (may_close(reg) && close_for_drop(domain, reg, &there.idle)) return true;
    bool is_busy = reg->is_open() || reg->refs() != 0 || rest.is_quarantined;
    (does_for(reg, wanted) ? there.serves : is_busy ? there.stays : there.passes) = true;
    return true;
  };
  visit_overlapping(domain, wanted->base(), wanted->end(), look);
  visit_in_flight(domain, wanted->base(), wanted->end(), [&](const Registration* reg) {
    there.passes |= reg != wanted;
    return true;
  });
  return there;
}

// After -EEXIST: drops what is idle and in the way, and asks once more. kPasses where other threads
// are making or dropping what is in the way: no thread waits for another's registrar (I3).
int ask_without_overlaps(Domain& domain, Registration* reg, std::uintptr_t block_low,
                         std::uintptr_t block_high, Asked& asked) {
  bool passed = false;
  for (bool is_last = false;; is_last = true) {
    InTheWay there;
    {
      WholeGuard guard(domain);
      reclaim_sticky(domain, kStickyLooks);
      there = close_in_the_way(domain, reg, block_low, block_high);
    }
    bool is_some_dropped = there.idle != nullptr;
    drop_list(domain, there.idle, Reason::kEvicted);
    if (there.serves) return kPasses;
    if (there.stays && !is_some_dropped) return -EEXIST;
    passed |= there.passes;
    if (is_last) return passed || is_some_dropped ? kPasses : -EEXIST;
    // Also where nothing is in the way any more: another thread may have dropped it since.
    int error = ask_registrar(domain, reg, asked);
    if (error != -EEXIST) return error;
  }
}

}  // namespace

bool is_outgrown(const Domain& domain, const Registration* reg, std::uintptr_t block_low,
                 std::uintptr_t block_high) {
  if (reg->base() < block_low || reg->end() > block_high) return false;
  BlockSlices now = domain.block_of(block_low, block_high), then = reg->rest().block;
  // Where keys are not noted, what is known is which block it was made for, if any.
  return domain.notes_keys() ? now != then : then.end != 0 && then.end != now.end;
}

void drop_outgrown(Domain& domain, std::uintptr_t low, std::uintptr_t high,
                   std::uintptr_t block_low, std::uintptr_t block_high) {
  if (!domain.notes_keys() || block_high == 0) return;
  Registration* outgrown = nullptr;
  auto look = [&](Registration* reg) {
    if (reg->rest().kind == Kind::kCached && is_outgrown(domain, reg, block_low, block_high))
      close_for_drop(domain, reg, &outgrown);
    return true;
  };
  {
    RangeGuard guard(domain, low, high);
    visit_overlapping(domain, low, high, look);
  }
  drop_list(domain, outgrown, Reason::kAsked);
}

bool is_held_within(Domain& domain, std::uintptr_t low, std::uintptr_t high) {
  if (!domain.notes_keys()) return false;
  auto passes = [&](Registration* reg) {
    return (reg->refs() == 0 && !reg->rest().is_quarantined) || is_of_range(reg, low, high);
  };
  RangeGuard guard(domain, low, high);
  return !visit_overlapping(domain, low, high, passes);
}

int ask_twice(Domain& domain, Registration* reg, std::uintptr_t block_low,
              std::uintptr_t block_high, Asked& asked) {
  if (!make_memlock_room(domain, reg->length())) return kNoRoom;
  int error = ask_registrar(domain, reg, asked);
  if (error != -ENOMEM && error != -ENOSPC && error != -EEXIST) return error;
  put_clock_start();
  if (error == -EEXIST) {
    error = ask_without_overlaps(domain, reg, block_low, block_high, asked);
  } else {
    Registration* victims = nullptr;
    {
      WholeGuard guard(domain);
      reclaim_sticky(domain, kStickyLooks);
      victims = pick_victims(domain, reg->length(), 1);
    }
    if (victims != nullptr) {
      drop_list(domain, victims, Reason::kEvicted);
      error = ask_registrar(domain, reg, asked);
    }
  }
  if (error == -ENOMEM) ask_for_purge(domain);
  return error;
}

}  // namespace rdmalloc::regcache
