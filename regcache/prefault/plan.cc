#include "regcache/prefault/plan.h"

#include <errno.h>

#include <algorithm>

#include "alloc/for_regcache.h"
#include "regcache/core/drop.h"
#include "regcache/core/room.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

int check_request(const PrefaultRequest& request) {
  if (request.domains == nullptr || request.domain_count == 0 ||
      request.domain_count > kMostDomains ||
      (request.ranges == nullptr && request.range_count != 0))
    return -EINVAL;
  for (std::size_t i = 0; i < request.domain_count; ++i)
    if (int error = domain_check(domain_of(request.domains[i]))) return error;
  for (std::size_t i = 0; i < request.range_count; ++i) {
    auto low = reinterpret_cast<std::uintptr_t>(request.ranges[i].iov_base);
    std::size_t length = request.ranges[i].iov_len;
    // Room for rounding up to pages, and to any unit of a registrar's, without an overflow.
    if (length == 0 || low == 0 || low + length < low || low + length > UINTPTR_MAX / 2)
      return -EINVAL;
  }
  return 0;
}

// Calls fn(domain, piece) for each registration that serves a part of a range; the same one may be
// named again by the next range.
template <class Fn>
int each_piece(const PrefaultRequest& request, Fn fn) {
  for (std::size_t i = 0; i < request.domain_count; ++i) {
    Domain& domain = *domain_of(request.domains[i]);
    for (std::size_t j = 0; j < request.range_count; ++j) {
      auto low = reinterpret_cast<std::uintptr_t>(request.ranges[j].iov_base);
      std::uintptr_t high = low + request.ranges[j].iov_len;
      while (low < high) {
        Piece piece;
        if (int error = first_piece(domain, low, high, &piece)) return error;
        fn(domain, piece);
        low = piece.high;
      }
    }
  }
  return 0;
}

bool is_for_caller(const Unit& unit) {
  return !unit.domain->is_any_thread();
}

// Sorts the units, and makes one of those that one registration serves.
void settle_units(PrefaultPlan& plan) {
  Unit* end = plan.units + plan.unit_count;
  std::sort(plan.units, end, [](const Unit& a, const Unit& b) {
    if (is_for_caller(a) != is_for_caller(b)) return is_for_caller(a);
    if (a.piece.made_low != b.piece.made_low) return a.piece.made_low < b.piece.made_low;
    return a.domain < b.domain;
  });
  Unit* kept = plan.units;
  for (Unit* unit = plan.units; unit != end; ++unit) {
    if (kept != plan.units && kept[-1].domain == unit->domain &&
        kept[-1].piece.made_low == unit->piece.made_low &&
        kept[-1].piece.made_high == unit->piece.made_high) {
      kept[-1].piece.low = std::min(kept[-1].piece.low, unit->piece.low);
      kept[-1].piece.high = std::max(kept[-1].piece.high, unit->piece.high);
    } else {
      *kept++ = *unit;
    }
  }
  plan.unit_count = static_cast<std::size_t>(kept - plan.units);
  plan.callers_count = 0;
  while (plan.callers_count < plan.unit_count && is_for_caller(plan.units[plan.callers_count]))
    ++plan.callers_count;
}

int make_units(const PrefaultRequest& request, PrefaultPlan* plan) {
  std::size_t room = 0;
  if (int error = each_piece(request, [&](Domain&, const Piece&) { ++room; })) return error;
  plan->unit_count = plan->callers_count = 0;
  plan->units = nullptr;
  if (room == 0) return 0;
  int saved = errno;
  plan->units = static_cast<Unit*>(rdmalloc_calloc(room, sizeof(Unit)));
  errno = saved;
  if (plan->units == nullptr) return -ENOMEM;
  int error = each_piece(request, [&](Domain& domain, const Piece& piece) {
    // Adopted memory may have changed since it was counted; what is more now is not promised.
    if (plan->unit_count < room) plan->units[plan->unit_count++] = {piece, &domain, nullptr};
  });
  if (error != 0) discard_plan(*plan);
  if (error == 0) settle_units(*plan);
  return error;
}

int refuse(const char* who, const char* what, std::uint64_t asked, std::uint64_t left) {
  Message()
      .text("warning: rdmalloc_reg_prefault: ")
      .number(asked)
      .text(what)
      .text(" asked; ")
      .value(who)
      .text(" leaves ")
      .number(left)
      .warn();
  return -ENOMEM;
}

// Whether a registration that no eviction takes serves the piece already. Under the lock.
bool is_there_to_stay(Domain& domain, const Piece& piece) {
  auto look = [&](Registration* reg) {
    return !(reg->rest().kind != Kind::kPerUse && reg->is_open() &&
             reg->covers(piece.low, piece.high) && (domain.access & ~reg->access()) == 0 &&
             (reg->rest().is_sticky || reg->refs() != 0));
  };
  return !visit_overlapping(domain, piece.low, piece.low + 1, look);
}

int check_room(Domain& domain, const PrefaultPlan& plan) {
  MemlockRoom memlock = memlock_room(domain);
  if (domain.max_bytes == UINT64_MAX && domain.max_count == UINT64_MAX &&
      memlock.limit == UINT64_MAX)
    return 0;
  std::uint64_t bytes = 0, count = 0, idle = 0;
  Unmovable held{};
  flush_blocks_with_keys(domain);
  {
    WholeGuard guard(domain);
    held = unmovable(domain);
    Totals totals = domain_totals(domain);
    idle = totals.bytes + totals.reserved_bytes - held.bytes;
    for (const Unit* unit = plan.units; unit != plan.units + plan.unit_count; ++unit) {
      if (unit->domain != &domain || is_there_to_stay(domain, unit->piece)) continue;
      bytes += unit->piece.made_high - unit->piece.made_low;
      ++count;
    }
  }
  std::uint64_t bytes_left = domain.max_bytes > held.bytes ? domain.max_bytes - held.bytes : 0;
  std::uint64_t count_left = domain.max_count > held.count ? domain.max_count - held.count : 0;
  if (bytes > bytes_left) return refuse(domain.ops.name, " bytes to register", bytes, bytes_left);
  if (count > count_left) return refuse(domain.ops.name, " registrations", count, count_left);
  // What other domains want of it shows when the kernel refuses.
  if (memlock.limit != UINT64_MAX && bytes > memlock.left + idle)
    return refuse("RLIMIT_MEMLOCK", " bytes to register", bytes, memlock.left + idle);
  return 0;
}

}  // namespace

PageRange pages_of(const iovec& range) {
  std::uintptr_t page = os::page_bytes();
  auto low = reinterpret_cast<std::uintptr_t>(range.iov_base);
  return {round_down(low, page), round_up(low + range.iov_len, page)};
}

int plan_prefault(const PrefaultRequest& request, PrefaultPlan* plan) {
  *plan = {};
  if (int error = check_request(request)) return error;
  for (std::size_t i = 0; i < request.range_count; ++i) {
    PageRange pages = pages_of(request.ranges[i]);
    plan->bytes += pages.high - pages.low;
  }
  std::uint64_t most = os::memory_limit_bytes();
  if (plan->bytes > most) return refuse("the memory there is", " bytes", plan->bytes, most);
  if (int error = make_units(request, plan)) return error;
  for (std::size_t i = 0; i < request.domain_count; ++i) {
    int error = check_room(*domain_of(request.domains[i]), *plan);
    if (error == 0) continue;
    discard_plan(*plan);
    return error;
  }
  return 0;
}

void discard_plan(PrefaultPlan& plan) {
  rdmalloc_free(plan.units);
  plan.units = nullptr;
}

}  // namespace rdmalloc::regcache
