#include "regcache/core/memlock.h"

#include "alloc/for_regcache.h"
#include "regcache/core/drop.h"
#include "regcache/core/put_clock.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
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
  if (domain.has_warned_of_memlock.exchange(true, std::memory_order_relaxed) || options().quiet)
    return;
  Message()
      .text("warning: RLIMIT_MEMLOCK is ")
      .number(room.limit)
      .text(" bytes and leaves ")
      .number(room.left)
      .text(" for ")
      .text(domain.ops.name)
      .text(", which wants ")
      .number(length)
      .text(": raise it (ulimit -l), or grant CAP_IPC_LOCK")
      .print();
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

}  // namespace rdmalloc::regcache
