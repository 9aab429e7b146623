#include "regcache/pools/pool_plan.h"

#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/check_domains.h"
#include "regcache/core/drop.h"
#include "regcache/core/room.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

constexpr std::size_t kDefaultBytes[kSides] = {std::size_t{8} << 10, std::size_t{132} << 10};
constexpr std::uint32_t kDefaultCount[kSides] = {8192, 1024};
constexpr std::uint64_t kNoPieces = std::uint64_t{1} << 62;  // longer than any pool

constexpr const char* kWho = "rdmalloc_pool_create";

int settle_sizes(const rdmalloc_pool_attr& attr, bool warns, PoolPlan* plan) {
  constexpr std::uint32_t kAll = RDMALLOC_ACCESS_LOCAL | RDMALLOC_ACCESS_REMOTE;
  if (attr.flags != 0)
    return refuse(warns, -EINVAL,
                  because().text("`flags` is ").number(attr.flags).text("; allowed: 0"));
  if ((attr.access & ~kAll) != 0)
    return refuse(warns, -EINVAL,
                  because()
                      .text("`access` is ")
                      .number(attr.access)
                      .text(", with rights that are not known; allowed: those of "
                            "RDMALLOC_ACCESS_LOCAL and RDMALLOC_ACCESS_REMOTE, together ")
                      .number(kAll));
  const std::size_t bytes[kSides] = {attr.small_bytes, attr.large_bytes};
  const std::uint32_t count[kSides] = {attr.small_count, attr.large_count};
  for (Side side : {kSmall, kLarge}) {
    std::size_t asked = bytes[side] != 0 ? bytes[side] : kDefaultBytes[side];
    if (asked > kLongestBuffer)
      return refuse(warns, -EMSGSIZE,
                    because()
                        .text("a buffer of ")
                        .number(asked)
                        .text(" bytes; allowed: up to ")
                        .number(kLongestBuffer));
    plan->length[side] = round_up(asked, os::page_bytes());
    plan->count[side] = count[side] != 0 ? count[side] : kDefaultCount[side];
    if (count[side] == RDMALLOC_POOL_NONE) plan->count[side] = 0;
  }
  if (plan->total() == 0)
    return refuse(warns, -EINVAL,
                  because().text("small_count and large_count are RDMALLOC_POOL_NONE; set one"));
  bool has_both = plan->count[kSmall] != 0 && plan->count[kLarge] != 0;
  if (has_both && plan->length[kLarge] < plan->length[kSmall])
    return refuse(warns, -EINVAL,
                  because()
                      .text("large_bytes is ")
                      .number(plan->length[kLarge])
                      .text(", and small_bytes ")
                      .number(plan->length[kSmall])
                      .text("; large buffers are at least as long"));
  plan->access = attr.access != 0 ? attr.access : RDMALLOC_ACCESS_LOCAL;
  plan->is_remote = (plan->access & RDMALLOC_ACCESS_REMOTE) != 0;
  plan->budget_bytes = attr.budget_bytes != 0 ? attr.budget_bytes : UINT64_MAX;
  return 0;
}

// The longest buffer there is any of.
std::uint64_t longest(const PoolPlan& plan) {
  return plan.count[kLarge] != 0 ? plan.length[kLarge] : plan.length[kSmall];
}

int warn_too_long(const PoolPlan& plan, const Domain& domain, bool warns) {
  return refuse(warns, -EMSGSIZE,
                because()
                    .text("a buffer of ")
                    .number(longest(plan))
                    .text(" bytes is longer than one registration of ")
                    .value(domain.ops.name)
                    .text(" may be; ")
                    .number(round_down(domain.largest, os::page_bytes()))
                    .text(" bytes would fit"));
}

int warn_not_exact(const Domain& domain, bool warns) {
  return refuse(warns, -EACCES,
                because()
                    .text("remote rights, and the registrar of ")
                    .value(domain.ops.name)
                    .text(" can't open exactly one buffer: its unit is ")
                    .number(domain.unit)
                    .text(" bytes; ask for RDMALLOC_ACCESS_LOCAL, or for buffers of whole units if "
                          "it has RDMALLOC_REGISTRAR_EXACT_ACCESS"));
}

// What one domain asks of the plan.
int heed(const Domain& domain, bool warns, PoolPlan* plan) {
  if (domain.unit > plan->alignment) plan->alignment = domain.unit;
  if (domain.largest < longest(*plan)) return warn_too_long(*plan, domain, warns);
  if (!plan->is_remote) {
    // As the cache cuts a span that is longer (make.cc), if it can.
    std::uint64_t unit =
        domain.largest < RDMALLOC_SLICE_BYTES ? os::page_bytes() : RDMALLOC_SLICE_BYTES;
    if (domain.unit > unit) unit = domain.unit;
    std::uint64_t piece = round_down(domain.largest, unit);
    if (piece < plan->piece_bytes) plan->piece_bytes = piece;
    return plan->piece_bytes >= longest(*plan) ? 0 : warn_too_long(*plan, domain, warns);
  }
  if ((domain.ops.flags & RDMALLOC_REGISTRAR_EXACT_ACCESS) == 0)
    return warn_not_exact(domain, warns);
  // A key must not open the buffer beside (I13).
  if (domain.ops.granularity > 1)
    for (Side side : {kSmall, kLarge})
      if (plan->count[side] != 0 && plan->length[side] % domain.unit != 0)
        return warn_not_exact(domain, warns);
  return 0;
}

void tighten(std::uint64_t* limit, const char** by, std::uint64_t value, const char* who) {
  if (value >= *limit) return;
  *limit = value;
  *by = who;
}

std::uint64_t used_bytes() {
  std::uint64_t value = 0;
  std::size_t size = sizeof value;
  return rdmalloc_ctl("stats.used_bytes", &value, &size, nullptr, 0) == 0 ? value : 0;
}

void heed_limits(Domain& domain, const PoolPlan& plan, PoolRoom* room) {
  MemlockRoom memlock = memlock_room(domain);
  if (!domain.is_bounded() && memlock.limit == UINT64_MAX) return;
  flush_blocks_with_keys(domain);
  WholeGuard guard(domain);
  auto [bytes, count] = unmovable(domain);
  if (memlock.limit != UINT64_MAX) {
    Totals totals = domain_totals(domain);
    std::uint64_t idle = totals.bytes + totals.reserved_bytes - bytes;
    tighten(&room->bytes, &room->bytes_by, round_down(memlock.left + idle, RDMALLOC_SLICE_BYTES),
            "RLIMIT_MEMLOCK");
  }
  if (domain.max_bytes != UINT64_MAX) {
    std::uint64_t left = domain.max_bytes > bytes ? domain.max_bytes - bytes : 0;
    // The cache registers whole spans, and spans are whole slices.
    std::uint64_t unit = domain.unit > RDMALLOC_SLICE_BYTES ? domain.unit : RDMALLOC_SLICE_BYTES;
    if (!plan.is_remote) left = round_down(left, unit);
    tighten(&room->bytes, &room->bytes_by, left, domain.ops.name);
  }
  if (domain.max_count != UINT64_MAX)
    tighten(&room->registrations, &room->registrations_by,
            domain.max_count > count ? domain.max_count - count : 0, domain.ops.name);
}

bool fits(const PoolPlan& plan, const PoolRoom& room) {
  PoolLayout layout(plan);
  for (Side side : {kSmall, kLarge}) layout.skip(side, plan.count[side]);
  return layout.end() <= room.bytes && layout.pieces() <= room.registrations;
}

}  // namespace

int refuse(bool warns, int error, const Message& why) {
  if (warns) why.warn();
  return error;
}

Message because() {
  return Message().text("warning: ").text(kWho).text(": ");
}

std::uint64_t PoolLayout::left_in_piece() const {
  return plan_.piece_bytes - end_ % plan_.piece_bytes;
}

std::uint64_t PoolLayout::next(Side side) {
  if (left_in_piece() < plan_.length[side]) end_ += left_in_piece();
  std::uint64_t offset = end_;
  end_ += plan_.length[side];
  ++placed_;
  return offset;
}

void PoolLayout::skip(Side side, std::uint64_t count) {
  std::uint64_t here = left_in_piece() / plan_.length[side];
  if (here > count) here = count;
  end_ += here * plan_.length[side];
  placed_ += count;
  count -= here;
  if (count == 0) return;
  if (end_ % plan_.piece_bytes != 0) end_ += left_in_piece();
  std::uint64_t in_piece = plan_.piece_bytes / plan_.length[side];
  // The last of them may fill its piece.
  std::uint64_t whole = (count - 1) / in_piece;
  end_ += whole * plan_.piece_bytes + (count - whole * in_piece) * plan_.length[side];
}

std::uint64_t PoolLayout::pieces() const {
  if (placed_ == 0) return 0;
  return plan_.is_remote ? placed_ : (end_ - 1) / plan_.piece_bytes + 1;
}

int plan_pool(rdmalloc_domain* const* domains, std::size_t domain_count,
              const rdmalloc_pool_attr* given, bool warns, PoolPlan* plan) {
  rdmalloc_pool_attr attr = {};
  if (int error = given != nullptr ? read_struct(given, &attr) : 0)
    return refuse(warns, error,
                  because()
                      .text("`size` is ")
                      .number(given->size)
                      .text("; allowed: sizeof(struct rdmalloc_pool_attr), and what this library "
                            "does not know of it must be 0"));
  if (int error = check_domains(warns ? kWho : nullptr, domains, domain_count)) return error;
  if (int error = settle_sizes(attr, warns, plan)) return error;
  plan->alignment = os::page_bytes();
  plan->piece_bytes = kNoPieces;
  for (std::size_t i = 0; i < domain_count; ++i)
    if (int error = heed(*domain_of(domains[i]), warns, plan)) return error;
  return 0;
}

PoolRoom room_for(const PoolPlan& plan, rdmalloc_domain* const* domains, std::size_t domain_count) {
  PoolRoom room{UINT64_MAX, UINT64_MAX, "", ""};
  tighten(&room.bytes, &room.bytes_by, plan.budget_bytes, "budget_bytes");
  std::uint64_t used = used_bytes();
  auto left_of = [used](std::uint64_t all) {
    return all > used ? round_down(all - used, RDMALLOC_SLICE_BYTES) : 0;
  };
  tighten(&room.bytes, &room.bytes_by, left_of(arena.extent()), "RDMALLOC_ARENA");
  if (std::uint64_t limit = options().limit_bytes; limit != UINT64_MAX)
    tighten(&room.bytes, &room.bytes_by, left_of(limit), "RDMALLOC_LIMIT");
  for (std::size_t i = 0; i < domain_count; ++i) heed_limits(*domain_of(domains[i]), plan, &room);
  return room;
}

void fit_pool(const PoolPlan& plan, const PoolRoom& room, PoolPlan* fitting) {
  // The counts of step s of `most`: below 2^64, since both are below 2^32.
  std::uint64_t most =
      plan.count[kSmall] > plan.count[kLarge] ? plan.count[kSmall] : plan.count[kLarge];
  auto scale_to = [&](std::uint64_t step) {
    for (Side side : {kSmall, kLarge}) fitting->count[side] = plan.count[side] * step / most;
  };
  *fitting = plan;
  std::uint64_t low = 0, high = most;  // `low` fits
  while (low < high) {
    std::uint64_t middle = low + (high - low + 1) / 2;
    scale_to(middle);
    if (fits(*fitting, room))
      low = middle;
    else
      high = middle - 1;
  }
  scale_to(low);
}

}  // namespace rdmalloc::regcache
