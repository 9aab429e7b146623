// rdmalloc_reg_get, _put and the slow half of _key: the hit path first.
#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/drop.h"
#include "regcache/core/find_foreign.h"
#include "regcache/core/history.h"
#include "regcache/core/make.h"
#include "regcache/core/page_frame_check.h"
#include "regcache/core/put_clock.h"
#include "regcache/core/rooms.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

constexpr std::uint32_t kAllAccess = RDMALLOC_ACCESS_LOCAL | RDMALLOC_ACCESS_REMOTE;

// A get that is no hit on owned memory. Its caller jumps here, so that a hit saves no registers.
[[gnu::noinline]] int get_slow(Domain* domain, const void* addr, std::size_t length,
                               std::uint32_t access, rdmalloc_reg** out) {
  if (int error = domain_check(domain)) return error;
  bool may_register = (access & RDMALLOC_NO_REGISTER) == 0;
  access &= ~RDMALLOC_NO_REGISTER;
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  if (low == 0 || length == 0 || low + length < low || access == 0 || (access & ~kAllAccess) != 0)
    return -EINVAL;
  Request request{low, low + length, access, false};
  Registration* reg = nullptr;
  int error = find_or_make(*domain, request, may_register, &reg, nullptr);
  if (error == 0) *out = reinterpret_cast<rdmalloc_reg*>(reg);
  return error;
}

void take_back(Registration* reg, std::uint64_t change);

// Carries the hits' topmost bit over to the domain's counter. The record was put already, so this
// holds it again first; the counts are right whatever the record has become meanwhile.
void fold_hits(Registration* reg) {
  if (!acquire(reg, 1)) return;  // closed: the thread that drops it adds all its hits up
  if ((reg->state.fetch_and(~kFold, std::memory_order_relaxed) & kFold) != 0) {
    Domain& domain = state()->domains[reg->domain_index()];
    RangeGuard guard(domain, reg);
    domain.stripe_of_reg(reg).counters.hits += kFold >> kHitShift;
  }
  take_back(reg, 1);
}

// Enters the registration in the LRU order, if no other thread has since. As above: held again
// first, and the record may be another by now, which is the same to us.
void enter_order(Registration* reg) {
  if (!acquire(reg, 1)) return;  // closed: its drop needs no order
  Domain& domain = state()->domains[reg->domain_index()];
  {
    RangeGuard guard(domain, reg);
    list_apart(domain, reg);
  }
  take_back(reg, 1);
}

// The rest of a put: drops a closed registration after its last put, lists one that is apart, and
// carries the hits' topmost bit over.
[[gnu::noinline]] void put_slow(Registration* reg, std::uint64_t now) {
  if ((now & kRefs) == kRefs) {
    // The put was one too many: undo it. All ones: the record was zero, because it is a parent
    // process's (I11) or has ended.
    reg->state.fetch_add(1, std::memory_order_relaxed);
    if (now != UINT64_MAX)
      report_warning("rdmalloc_reg_put", "called once more often than rdmalloc_reg_get; ignored");
    return;
  }
  if ((now & kFold) != 0) fold_hits(reg);
  if ((now & (kOpen | kApart | kRefs)) == (kOpen | kApart)) enter_order(reg);
  // Only here does the record belong to this thread, which has put the last reference to a closed
  // registration. With other holders it may have become another by now.
  if ((now & (kOpen | kRefs)) == 0) {
    reg->next() = nullptr;
    drop_list(state()->domains[reg->domain_index()], reg, Reason::kAsked);
  }
}

inline void put(Registration* reg) {
  // Before the last reference is gone: afterwards the record may be another's.
  if (put_clock_runs.load(std::memory_order_relaxed)) [[unlikely]]
    reg->stamp.store(ticks(), std::memory_order_relaxed);
  // Release: what this thread did with the registration comes before its end. Acquire: if this put
  // ends it.
  std::uint64_t now = reg->state.fetch_sub(1, std::memory_order_acq_rel) - 1;
  if ((now & (kOpen | kApart | kFold)) != kOpen) [[unlikely]]
    put_slow(reg, now);
}

// Ends a reference that acquire(reg, change) took for nothing.
void take_back(Registration* reg, std::uint64_t change) {
  std::uint64_t now = reg->state.fetch_sub(change, std::memory_order_acq_rel) - change;
  if ((now & (kOpen | kApart | kFold)) != kOpen) put_slow(reg, now);
}

// Takes a reference to a record that was found without one. False, with none taken, if the
// registration has ended or become another.
bool take_found(Domain* domain, Registration* reg, std::uintptr_t low, std::size_t length,
                std::uint32_t access) {
  if (!acquire(reg, 1 + kHit)) return false;
  // Only with the reference is what the record says true.
  if (reg->covers(low, low + length) && (access & ~reg->access()) == 0 &&
      reg->domain_index() == domain->index &&
      (!watch_was_used.load(std::memory_order_relaxed) || !reg->rest().is_watched ||
       (watcher.is_settled() && reg->is_open()))) {
    page_frames_check(*domain, reg, low, low + length);
    return true;
  }
  take_back(reg, 1 + kHit);
  return false;
}

// A get whose slot led to a record that had become another's by the time this thread held it.
[[gnu::noinline]] int get_after_wrong_record(Domain* domain, const void* addr, std::size_t length,
                                             std::uint32_t access, rdmalloc_reg** out,
                                             Registration* wrong) {
  take_back(wrong, 1 + kHit);
  return get_slow(domain, addr, length, access, out);
}

// A hit on adopted memory, or NULL.
Registration* find_adopted(Domain* domain, std::uintptr_t low, std::size_t length,
                           std::uint32_t access) {
  if (length == 0 || low + length < low || (access << 1) == 0) return nullptr;
  if (domain->hints == nullptr) return nullptr;  // a parent process's domain (I11)
  Slot& hint = domain->hints[hint_of(low)];
  // Acquire: pairs with the release below, so that the record is filled in.
  Registration* reg = domain->record_of(hint.load(std::memory_order_acquire));
  if (reg != nullptr && seems_to_cover(*domain, reg, low, low + length) &&
      take_found(domain, reg, low, length, access))
    return reg;
  reg = find_foreign(*domain, low, low + length);
  if (reg == nullptr || !take_found(domain, reg, low, length, access)) return nullptr;
  hint.store(domain->number_of(reg), std::memory_order_release);
  return reg;
}
[[gnu::noinline]] int get_foreign(Domain* domain, const void* addr, std::size_t length,
                                  std::uint32_t access, rdmalloc_reg** out) {
  Registration* reg = find_adopted(domain, reinterpret_cast<std::uintptr_t>(addr), length, access);
  if (reg == nullptr) return get_slow(domain, addr, length, access, out);
  *out = reinterpret_cast<rdmalloc_reg*>(reg);
  return 0;
}

}  // namespace
}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_reg_get(rdmalloc_domain* handle, const void* addr,
                                             size_t length, uint32_t access, rdmalloc_reg** out) {
  note_caller(__builtin_return_address(0));
  if (handle == nullptr || out == nullptr) [[unlikely]]
    return -EINVAL;
  Domain* domain = domain_of(handle);
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  std::uintptr_t offset = low - domain->head.arena_base;
  if (offset >= domain->head.arena_length) [[unlikely]]
    return get_foreign(domain, addr, length, access, out);
  Registration* reg = domain->record_of(
      domain->counted[offset >> RDMALLOC_SLICE_SHIFT].load(std::memory_order_acquire));
  if (reg == nullptr || !acquire(reg, 1 + kHit)) [[unlikely]]
    return get_slow(domain, addr, length, access, out);
  // Held until the put. But the slot was read before the reference was taken, and the record may
  // have become another's in between, so everything is checked again.
  std::uintptr_t inside = low - reg->base();
  Extent extent = reg->extent();
  if (inside >= extent.length() || length - 1 >= extent.length() - inside ||
      (access & ~extent.access()) != 0 || (access << 1) == 0 ||
      extent.domain_index() != domain->index) [[unlikely]]
    return get_after_wrong_record(domain, addr, length, access, out, reg);
  page_frames_check(*domain, reg, low, low + length);
  *out = reinterpret_cast<rdmalloc_reg*>(reg);
  return 0;
}

extern "C" RDMALLOC_API void rdmalloc_reg_put(rdmalloc_reg* handle) {
  if (handle != nullptr) put(registration_of(handle));
}

extern "C" RDMALLOC_API int rdmalloc_reg_key_slow(rdmalloc_domain* handle, const void* addr,
                                                  size_t length, uint32_t access,
                                                  rdmalloc_key* key) {
  note_caller(__builtin_return_address(0));
  if (key == nullptr) return -EINVAL;
  *key = {};
  Domain* domain = domain_of(handle);
  if (int error = domain_check(domain)) return error;
  bool may_register = (access & RDMALLOC_NO_REGISTER) == 0;
  access &= ~RDMALLOC_NO_REGISTER;
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  if (length == 0 || low + length < low || access == 0 || (access & ~kAllAccess) != 0)
    return -EINVAL;
  Request request{low, low + length, access, true};
  // An uncounted remote key would outlive the block it was asked for (I13), but in a heap made for
  // it, where it belongs to the heap.
  if ((access & RDMALLOC_ACCESS_REMOTE) != 0) return find_heap_key(*domain, request, key);
  int error = -EAGAIN;
  // Again if an invalidation of the range ended while this thread registered it.
  for (int attempt = 0; attempt < 4 && error == -EAGAIN; ++attempt)
    error = find_or_make(*domain, request, may_register, nullptr, key);
  return error;
}
