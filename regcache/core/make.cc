// A miss: look again under the lock, plan a range, have it registered, publish.
#include "regcache/core/make.h"

#include <errno.h>

#include <utility>

#include "alloc/for_regcache.h"
#include "regcache/core/drop.h"
#include "regcache/core/history.h"
#include "regcache/core/page_frame_check.h"
#include "regcache/core/put_clock.h"
#include "regcache/core/room.h"
#include "regcache/core/rooms.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

// A registration to be made.
struct Plan {
  std::uintptr_t low, high;
  std::uint32_t access;
  Kind kind;
  bool is_owned;
  bool is_of_one_block;  // in a slab, and no wider than the pages that the block lies on
  bool is_watched = false;
  std::uintptr_t block_low = 0, block_high = 0;  // of a block that is a span of its own

  std::size_t length() const { return high - low; }
};

// make()'s other answer, beside kNoRoom, where a narrower range may work: a purge has part of it.
constexpr int kInPurge = 1;
static_assert(kInPurge != kNoRoom && kInPurge != kPasses);

// The error that the caller of the cache gets instead.
int error_of_call(int error) {
  if (error == kPasses) return -EEXIST;
  return error == kInPurge ? -EAGAIN : error == kNoRoom ? -ENOMEM : error;
}

// Whether the request on foreign memory may be served: 0, or -EPERM by RDMALLOC_FOREIGN. What an
// owner vouches for (rdmalloc_adopt) is cached like owned memory; everything else foreign is
// registered for each use (I6), refused, or watched (rooms.h).
int foreign_allowed(State& all, const Request& request, bool* is_adopted) {
  *is_adopted = all.adoptions.hold(request.low, request.high);
  return *is_adopted || options().foreign != ForeignMode::kAdopted ? 0 : -EPERM;
}

// ---- look-up under the lock ----

// An open registration over the whole request with all rights asked. Under the lock.
// *lacks_room: one can't be sticky; a look under all locks may make room.
Registration* find_covering(Domain& domain, const Request& request, const RangeGuard& guard,
                            bool* lacks_room) {
  Registration* found = nullptr;
  auto can_be_sticky = [&](const Registration* reg) {
    bool can = reg->rest().is_sticky || reg->rest().kind == Kind::kHeap ||
               has_sticky_room(domain, reg->length(), guard.is_whole());
    *lacks_room |= !can;
    return can;
  };
  auto look = [&](Registration* reg) {
    if (reg->rest().kind != Kind::kPerUse && reg->is_open() &&
        reg->covers(request.low, request.high) &&
        (request.sees_watched || !reg->rest().is_watched) &&
        (request.access & ~reg->access()) == 0 && (!request.is_uncounted || can_be_sticky(reg)))
      found = reg;
    return found == nullptr;
  };
  visit_overlapping(domain, request.low, request.low + 1, look);
  return found;
}

// Under the lock. -ENOMEM when the sticky share is full; a hint unless all locks are held.
int make_sticky(Domain& domain, Registration* reg, const Request& request) {
  SliceRange asked = domain.slices_of(request.low, request.high);
  if (reg->rest().is_sticky) {
    publish(domain, domain.sticky, reg, asked);
    return 0;
  }
  if (!take_sticky_room(domain, reg->length())) return -ENOMEM;
  begin_sticky(domain, reg);
  publish(domain, domain.sticky, reg, asked);
  return 0;
}

// Gives the caller an open registration. Under the lock. -EAGAIN: no more holders can be counted.
int hand_out(Domain& domain, const Request& request, Registration* found, std::uint64_t change,
             Registration** reg, rdmalloc_key* key) {
  page_frames_check(domain, found, request.low, request.high);
  if (request.is_uncounted) {
    // A heap's registration is held until the heap's end and needs no stickiness.
    bool is_heaps = found->rest().kind == Kind::kHeap;
    int error = is_heaps ? 0 : make_sticky(domain, found, request);
    if (error == 0) *key = found->head.key;
    if (error == 0 && !is_heaps && domain.notes_keys())
      found->rest().block = domain.block_of(request.block_low, request.block_high);
    return error;
  }
  if (!acquire(found, change)) return -EAGAIN;
  // The next look-up finds it without the lock.
  publish(domain, domain.counted, found, domain.slices_of(request.low, request.high));
  *reg = found;
  return 0;
}

// ---- plans ----

// The widest registration that serves a local request on the span [base, base+length): the whole
// span, or the piece that the request lies in if the span is longer than one registration may be.
// False if there is none: the request crosses pieces.
bool plan_wide(const Domain& domain, const Request& request, const rdmalloc_range& span,
               Plan* plan) {
  auto base = reinterpret_cast<std::uintptr_t>(span.base);
  plan->low = round_down(base, domain.unit);
  plan->high = round_up(base + span.length, domain.unit);
  if (plan->length() > domain.largest) {
    std::size_t unit = domain.unit > RDMALLOC_SLICE_BYTES ? domain.unit : RDMALLOC_SLICE_BYTES;
    std::size_t piece = round_down(domain.largest, unit);
    if (piece == 0) return false;
    plan->low += (request.low - plan->low) / piece * piece;
    if (plan->high - plan->low > piece) plan->high = plan->low + piece;
  }
  return request.high <= plan->high && domain.holds(plan->low) && domain.holds(plan->high - 1) &&
         plan->length() <= domain.max_bytes;
}

// Only pages of a slab without a live block are purged, so a plan for those of the caller's block
// looks at them alone. One for several looks at the words: between them may lie a free one.
bool keeps_to_block(const Domain& domain, const Request& request, const rdmalloc_range& span) {
  if ((span.flags & RDMALLOC_RANGE_SLAB) == 0 || domain.unit > os::page_bytes()) return false;
  auto base = reinterpret_cast<std::uintptr_t>(span.base);
  std::size_t block = span.block_bytes;
  return (request.low - base) / block == (request.high - 1 - base) / block;
}

// Exactly the pages asked for.
void plan_pages(const Domain& domain, const Request& request, Plan* plan) {
  plan->low = round_down(request.low, domain.unit);
  plan->high = round_up(request.high, domain.unit);
}

// Whether the plan takes in no page but those asked for. What lies beside foreign memory may
// be unmapped. An end in the last page of all rounds up to 0.
bool keeps_to_pages(const Plan& plan, const Request& request) {
  return plan.high > plan.low && plan.low >= round_down(request.low, os::page_bytes()) &&
         plan.high <= round_up(request.high, os::page_bytes());
}

// Exactly the bytes asked for (I13). If the registrar knows pages only: the pages, which the block
// must fill. -EACCES if a neighbour would be exposed.
int plan_remote(const Domain& domain, const Request& request, const rdmalloc_range* span,
                Plan* plan) {
  if ((domain.ops.flags & RDMALLOC_REGISTRAR_EXACT_ACCESS) == 0) return -EACCES;
  plan->low = request.low;
  plan->high = request.high;
  if (domain.ops.granularity > 1) plan_pages(domain, request, plan);
  if (span == nullptr) return plan->low == request.low && plan->high == request.high ? 0 : -EACCES;
  auto base = reinterpret_cast<std::uintptr_t>(span->base);
  std::size_t block = span->block_bytes;
  std::uintptr_t block_low = base + (request.low - base) / block * block;
  return plan->low >= block_low && plan->high <= block_low + block ? 0 : -EACCES;
}

// ---- making one ----

// Idle ones that a wider one covers, which would pin pages twice. Under the lock; a list to drop.
Registration* take_superseded(Domain& domain, const Registration* wider) {
  Registration* superseded = nullptr;
  auto look = [&](Registration* reg) {
    if (reg != wider && reg->rest().kind == Kind::kCached && !reg->rest().is_sticky &&
        wider->covers(reg->base(), reg->end()) && (reg->access() & ~wider->access()) == 0)
      close_for_drop(domain, reg, &superseded);
    return true;
  };
  visit_overlapping(domain, wider->base(), wider->end(), look);
  return superseded;
}

void enter(Domain& domain, Registration* reg) {
  note(Event::kRegistered, reg->base(), reg->end(), domain.ops.name, reg->head.key.generation);
  reg->rest().by_range.left = nullptr;
  reg->rest().by_range.right = nullptr;
  Stripe& stripe = domain.stripe_of_reg(reg);
  stripe.by_range.insert(reg);
  ++stripe.totals.count;
  stripe.totals.bytes += reg->length();
}

// Fills a heap's slots, over whatever earlier owners of its slices have left there.
void publish_heaps(Domain& domain, Registration* reg) {
  SliceRange all = domain.slices_of(reg->base(), reg->end());
  publish(domain, domain.sticky, reg, all);
  publish(domain, domain.counted, reg, all);
}

// Closed and without holders: the caller drops it, and it is in the tree until it is gone (I3).
void enter_closed(Domain& domain, Registration* reg, Registration** drops) {
  enter(domain, reg);
  reg->state.store(0, std::memory_order_relaxed);
  reg->next() = nullptr;
  *drops = reg;
}

// Puts a registration that was just made into the cache and hands it out. If another thread has
// made one meanwhile, hands out that thread's. Under the lock. `*drops` gets what has to be
// dropped.
int settle_made(Domain& domain, const RangeGuard& guard, const Request& request, const Plan& plan,
                Registration* made, Registration** reg, rdmalloc_key* key, Registration** drops) {
  end_reservation(domain, made);
  made->stamp.store(ticks(), std::memory_order_relaxed);
  if (domain.is_lost.load(std::memory_order_relaxed)) {
    // While register_ ran.
    enter_closed(domain, made, drops);
    return -ENODEV;
  }
  if (!plan.is_owned) ++guard.counters().foreign;
  // Asked again, under the lock: rdmalloc_disown() first forgets the range and then, under the
  // lock, looks for its registrations.
  bool is_disowned = !plan.is_owned && plan.kind == Kind::kCached && !made->rest().is_watched &&
                     !state()->adoptions.hold(request.low, request.high);
  if (plan.kind == Kind::kHeap) {
    enter(domain, made);
    open_with(made, 1);
    publish_heaps(domain, made);
    *drops = take_superseded(domain, made);
    *reg = made;
    return 0;
  }
  bool is_per_use =
      plan.kind == Kind::kPerUse || is_disowned || (made->rest().is_stale && !request.is_uncounted);
  if (is_per_use) {
    made->rest().kind = Kind::kPerUse;
    enter(domain, made);
    made->state.store(1, std::memory_order_release);
    *reg = made;
    return 0;
  }
  bool lacks_room = false;
  Registration* winner =
      made->rest().is_stale ? nullptr : find_covering(domain, request, guard, &lacks_room);
  // Room for one more sticky one may be made under all locks only: the next attempt finds the
  // registration, and takes them.
  auto or_again = [&](int error) {
    return error == -ENOMEM && !guard.is_whole() ? -EAGAIN : error;
  };
  if (winner != nullptr || made->rest().is_stale) {
    enter_closed(domain, made, drops);
    return winner == nullptr ? -EAGAIN : or_again(hand_out(domain, request, winner, 1, reg, key));
  }
  enter(domain, made);
  publish(domain, domain.counted, made, domain.slices_of(made->base(), made->end()));
  *drops = take_superseded(domain, made);
  if (!request.is_uncounted) {
    // Apart from its beginning, so that it is never in the order before its first put.
    open_with(made, kApart | 1);
    *reg = made;
    return 0;
  }
  open_with(made, 0);
  list(domain, made);
  return or_again(hand_out(domain, request, made, 1, reg, key));
}

// Quarantines what the registrar could neither make nor undo. It is in the tree before its words
// are idle, so that no purge takes its pages (I3). False if the device is gone, and with it the
// danger.
bool keep_half_made(Domain& domain, Registration* made, Asked& asked) {
  Invalidation* completed = nullptr;
  {
    RangeGuard guard(domain, made);
    if (domain.is_lost.load(std::memory_order_relaxed)) {
      asked.registrations = 0;
      return false;
    }
    count(guard.counters(), asked);
    end_reservation(domain, made);
    enter(domain, made);
    made->state.store(0, std::memory_order_relaxed);
    quarantine(domain, made);
    completed = completed_by_end_of(made);
  }
  warn_quarantined(domain, made, -ENOTRECOVERABLE);
  state()->invalidations.complete(completed);
  return true;
}

// Gives back the record of a registration that was not made.
void give_up(Domain& domain, Registration* made, const Asked& asked) {
  State& all = *state();
  Invalidation* completed = nullptr;
  {
    RangeGuard guard(domain, made);
    count(guard.counters(), asked);
    end_reservation(domain, made);
    if (domain.is_bounded()) domain.taken.give(made->length());
    completed = completed_by_end_of(made);
  }
  if (made->rest().is_watched) watcher.end(all, made->base(), made->end());
  all.registrations.give(made);
  all.invalidations.complete(completed);
}

// The record may have been in a tree before, or a hint, and a reader may still follow a link to it:
// without a reference it reads base, length and domain, and the key. Release: pairs
// with the acquire of rdmalloc_reg_key(), which then finds the slot changed that led it here.
void fill_in(Registration* made, const Domain& domain, const Plan& plan) {
  Extent extent = Extent::of(plan.length(), domain.index, plan.access);
  std::atomic_ref(made->head.base).store(plan.low, std::memory_order_release);
  std::atomic_ref(made->head.extent).store(extent.word, std::memory_order_release);
  made->rest().frames = 0;
  store_key(made->head.key, {});
  made->rest().kind = plan.kind;
  made->rest().is_sticky = made->rest().is_listed = made->rest().is_awaited = false;
  made->rest().is_quarantined = made->rest().is_stale = false;
  made->rest().is_suspended = made->rest().was_sticky = false;
  made->rest().is_watched = plan.is_watched;
  made->rest().block = domain.block_of(plan.block_low, plan.block_high);
}

// Has the pages of a record in flight watched before they are pinned; if that fails, makes it a
// registration for one use.
void begin_watching(Domain& domain, Registration* made) {
  if (watcher.begin(made->base(), made->end())) return;
  {
    RangeGuard guard(domain, made);
    made->rest().is_watched = false;
  }
  watcher.end(*state(), made->base(), made->end());
}

// Registers what the plan says for the request. 0, or an error with nothing left behind.
int make(Domain& domain, const Request& request, const Plan& plan, Registration** reg,
         rdmalloc_key* key) {
  State& all = *state();
  Registration* made = all.registrations.take(survivors.registrations);
  if (made == nullptr) return -ENOMEM;
  fill_in(made, domain, plan);
  int error = reserve_room(domain, made);
  if (error != 0) {
    all.registrations.give(made);
    return error;
  }
  if (plan.is_watched) begin_watching(domain, made);
  SliceRange slices = plan.is_owned ? domain.slices_of(plan.low, plan.high) : SliceRange{0, 0};
  bool is_counted = all.words.try_begin_registering(slices);
  if (!is_counted) slices = {0, 0};
  Asked asked;
  error = is_counted || (plan.is_of_one_block && !all.part_in_purge.touches(plan.low, plan.high))
              ? ask_twice(domain, made, plan.block_low, plan.block_high, asked)
              : kInPurge;
  if (error == -ENOTRECOVERABLE && keep_half_made(domain, made, asked)) {
    all.words.end_registering(slices);
    return error;
  }
  if (error != 0) {
    all.words.end_registering(slices);
    give_up(domain, made, asked);
    if (error != kPasses || !request.is_uncounted) return error;
    // What serves instead may be sticky by now, and take no more room, or be gone.
    RangeGuard guard(domain, 0, UINTPTR_MAX);
    bool lacks_room = false;
    bool is_none = find_covering(domain, request, guard, &lacks_room) == nullptr;
    return is_none && lacks_room ? -ENOMEM : kPasses;
  }
  Registration* drops = nullptr;
  {
    RangeGuard guard(domain, made);
    count(guard.counters(), asked);
    error = settle_made(domain, guard, request, plan, made, reg, key, &drops);
  }
  all.words.end_registering(slices);
  drop_list(domain, drops, Reason::kAsked);
  return error;
}

// Ends, after a refusal, the stickiness of what was in use only because this thread or its depot
// kept it. Whether there was any.
bool end_unused_keys(Domain& domain) {
  flush_blocks_with_keys(domain);
  WholeGuard guard(domain);
  return domain_totals(domain).sticky_count != 0 && reclaim_sticky(domain, kStickyLooks) != 0;
}

// Whether the plan's registration may give the request what it wants.
bool may_serve(Domain& domain, const Request& request, const Plan& plan) {
  if (!request.is_uncounted || has_sticky_room(domain, plan.length(), false)) return true;
  WholeGuard guard(domain);
  return has_sticky_room(domain, plan.length(), true);
}

// Makes a registration for a local request on owned memory.
int make_local(Domain& domain, const Request& request, const rdmalloc_range& span,
               Registration** reg, rdmalloc_key* key) {
  Plan plan{0, 0, domain.access | request.access, Kind::kCached, true, false};
  plan.block_low = request.block_low;
  plan.block_high = request.block_high;
  Plan wide = plan;
  plan.is_of_one_block = keeps_to_block(domain, request, span);
  plan_pages(domain, request, &plan);
  if (plan_wide(domain, request, span, &wide) &&
      !(plan.is_of_one_block && is_held_within(domain, wide.low, wide.high))) {
    int error = kNoRoom;
    drop_outgrown(domain, wide.low, wide.high, wide.block_low, wide.block_high);
    if (may_serve(domain, request, wide)) error = make(domain, request, wide, reg, key);
    // Try less only for a limit, of ours or RLIMIT_MEMLOCK (which the kernel knows better); for a
    // neighbour in purge, in the slab or within the registrar's granularity; or for one in the slab
    // that is registered by itself, where none may overlap.
    if (error == -ENOMEM && memlock_room(domain).limit != UINT64_MAX) error = kNoRoom;
    bool is_met = error == -EEXIST && domain.notes_keys() && plan.is_of_one_block;
    if ((error == kNoRoom || is_met) && plan.length() == wide.length()) return error;
    if ((error <= 0 && !is_met) || error == kPasses) return error;
  }
  if (plan.length() > domain.largest) return -EMSGSIZE;
  if (!may_serve(domain, request, plan)) return kNoRoom;
  return make(domain, request, plan, reg, key);
}

// Fills *span for the request's memory, if it is owned. -EFAULT when it is neither inside one span
// in use nor foreign.
int find_span(const Domain& domain, const Request& request, rdmalloc_range* span) {
  *span = {};
  span->size = sizeof *span;
  if (!domain.holds(request.low)) return domain.holds(request.high - 1) ? -EFAULT : 0;
  if (rdmalloc_range_of(reinterpret_cast<void*>(request.low), span) != 0) return -EFAULT;
  auto base = reinterpret_cast<std::uintptr_t>(span->base);
  return request.high > base + span->length ? -EFAULT : 0;
}

}  // namespace

int find_heap_key(Domain& domain, const Request& request, rdmalloc_key* key) {
  RangeGuard guard(domain, request.low, request.high);
  bool lacks_room = false;
  Registration* found = find_covering(domain, request, guard, &lacks_room);
  if (found == nullptr || found->rest().kind != Kind::kHeap) {
    int error = check_open(domain);
    return error == -EAGAIN ? error : -EACCES;
  }
  page_frames_check(domain, found, request.low, request.high);
  // A registration with fewer rights, made since, may have taken the slots.
  publish_heaps(domain, found);
  *key = found->head.key;
  return 0;
}

void reopen_heaps(Domain& domain, Registration* reg) {
  if (domain.has_failed()) {
    // Closed for good; only held again.
    reg->state.fetch_add(1, std::memory_order_release);
    return;
  }
  reg->state.fetch_add(kOpen + 1, std::memory_order_release);
  publish_heaps(domain, reg);
}

int make_heaps(Domain& domain, std::uintptr_t base, std::size_t length, std::uint32_t access,
               Registration** reg) {
  if (!domain.is_any_thread()) drain_deferred(domain);
  Request request{base, base + length, access, false};
  Plan plan{base, base + length, access, Kind::kHeap, true, false};
  int error = error_of_call(make(domain, request, plan, reg, nullptr));
  if (error == -ENOMEM && end_unused_keys(domain))
    error = error_of_call(make(domain, request, plan, reg, nullptr));
  return error;
}

int first_piece(const Domain& domain, std::uintptr_t low, std::uintptr_t high, Piece* piece) {
  Request request{low, high, domain.access, false};
  rdmalloc_range span;
  if (int error = find_span(domain, request, &span)) return error;
  *piece = {low, high, 0, 0};
  Plan plan{0, 0, domain.access, Kind::kCached, domain.holds(low), false};
  request.high = low + 1;
  if (plan.is_owned && plan_wide(domain, request, span, &plan)) {
    if (plan.high < high) piece->high = plan.high;
  } else {
    bool is_adopted = false;
    if (!plan.is_owned) {
      request.high = high;
      if (int error = foreign_allowed(*state(), request, &is_adopted)) return error;
      if (!is_adopted) return -EPERM;
    }
    std::uint64_t most = domain.largest < domain.max_bytes ? domain.largest : domain.max_bytes;
    most = round_down(most, domain.unit);
    if (most == 0) return -EMSGSIZE;
    if (high - round_down(low, domain.unit) > most)
      piece->high = round_down(low, domain.unit) + most;
    request.high = piece->high;
    plan_pages(domain, request, &plan);
  }
  piece->made_low = plan.low;
  piece->made_high = plan.high;
  return 0;
}

namespace {

// look_up()'s answer where nothing serves the request.
constexpr int kNotThere = 1;

// Whether a key of `found` would be in the way of the rest of its block, which is longer by now.
// Under the lock.
bool is_in_the_way(const Domain& domain, const Request& request, const rdmalloc_range& span,
                   const Registration* found) {
  Plan wide{};
  return request.is_uncounted && domain.notes_keys() && found->rest().kind == Kind::kCached &&
         is_outgrown(domain, found, request.block_low, request.block_high) &&
         plan_wide(domain, request, span, &wide) && !found->covers(wide.low, wide.high);
}

// Hands out what is registered. *outgrown: closed here, for the caller to drop before it makes the
// block's registration. In one look, so that no get holds it then.
int look_up(Domain& domain, const Request& request, const rdmalloc_range& span, bool may_register,
            std::uint64_t* misses, Registration** reg, rdmalloc_key* key, Registration** outgrown) {
  RangeGuard guard(domain, request.low, request.high);
  for (;;) {
    bool lacks_room = false;
    if (Registration* found = find_covering(domain, request, guard, &lacks_room)) {
      if (is_in_the_way(domain, request, span, found) && found->refs() == 0) {
        if (!may_register) break;  // nor may it be dropped
        if (close_for_drop(domain, found, outgrown)) continue;
        // Held since: its key is right too, and is noted.
      }
      int error = hand_out(domain, request, found, 1 + kHit, reg, key);
      if (error != -ENOMEM || guard.is_whole()) return error;
      lacks_room = true;
    }
    if (!lacks_room || guard.is_whole()) break;
    guard.become_whole();
  }
  guard.counters().misses += std::exchange(*misses, 0);
  return kNotThere;
}

int find_or_make_once(Domain& domain, const Request& asked, bool may_register,
                      std::uint64_t* misses, Registration** reg, rdmalloc_key* key) {
  Request request = asked;
  bool is_owned = domain.holds(request.low);
  bool is_remote = (request.access & RDMALLOC_ACCESS_REMOTE) != 0;
  rdmalloc_range span;
  if (int error = find_span(domain, request, &span)) return error;
  if (!is_owned && request.is_uncounted) return -EFAULT;
  if ((span.flags & RDMALLOC_RANGE_LARGE) != 0) {
    request.block_low = reinterpret_cast<std::uintptr_t>(span.base);
    request.block_high = request.block_low + span.length;
  }
  bool is_adopted = false;
  if (!is_owned) {
    if (int error = foreign_allowed(*state(), request, &is_adopted)) return error;
    if (!is_adopted && !is_remote && options().foreign == ForeignMode::kWatch)
      request.sees_watched = watcher.catch_up(*state());
  }
  // A purge, or an event of watched memory, may have left drops for a thread of the user, which
  // this one is. Watched registrations are dropped before their addresses are registered anew.
  if (!domain.is_any_thread() || request.sees_watched) drain_deferred(domain);
  // A registration with remote rights is found only in a heap that was made for it.
  if (is_owned || request.sees_watched || (is_adopted && !is_remote)) {
    Registration* outgrown = nullptr;
    int error = look_up(domain, request, span, may_register, misses, reg, key, &outgrown);
    drop_list(domain, outgrown, Reason::kAsked);
    if (error != kNotThere) return error;
  } else if (may_register) {
    RangeGuard guard(domain, request.low, request.high);
    guard.counters().misses += std::exchange(*misses, 0);
  }
  if (!may_register) return -ENOENT;
  Plan plan{0, 0, request.access, Kind::kPerUse, is_owned, keeps_to_block(domain, request, span)};
  if (is_owned && !is_remote) return make_local(domain, request, span, reg, key);
  if (is_remote) {
    if (int error = plan_remote(domain, request, is_owned ? &span : nullptr, &plan)) return error;
  } else {
    if (is_adopted || request.sees_watched) plan.kind = Kind::kCached;
    plan.is_watched = request.sees_watched;
    plan_pages(domain, request, &plan);
    if (!keeps_to_pages(plan, request)) return -EINVAL;
  }
  // With the arena in it, which is not foreign: no purge would see it while it is made.
  std::uintptr_t arena = domain.head.arena_base;
  if (!is_owned && plan.low < arena && plan.high > arena) return -EFAULT;
  if (plan.length() > domain.largest) return -EMSGSIZE;
  return make(domain, request, plan, reg, key);
}

}  // namespace

int find_or_make(Domain& domain, const Request& request, bool may_register, Registration** reg,
                 rdmalloc_key* key) {
  std::uint64_t misses = may_register;  // yet to be counted: once, however often it is tried
  auto once = [&] { return find_or_make_once(domain, request, may_register, &misses, reg, key); };
  int error = kPasses;
  for (int tries = 0; tries < 4 && error == kPasses; ++tries) error = once();
  if (error_of_call(error) == -ENOMEM && end_unused_keys(domain)) error = once();
  return error_of_call(error);
}

}  // namespace rdmalloc::regcache
