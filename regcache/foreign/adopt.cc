// rdmalloc_adopt and rdmalloc_disown: foreign memory that an owner vouches for.
#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/history.h"
#include "regcache/core/state.h"
#include "regcache/core/stripes.h"

namespace rdmalloc::regcache {
namespace {

// Whether a registration, in any domain, has anything of the range.
bool is_registered(State& all, std::uintptr_t low, std::uintptr_t high) {
  auto stop = [](Registration*) { return false; };
  for (Domain& domain : all.domains) {
    if (domain.phase.load(std::memory_order_acquire) == Phase::kUnused) continue;
    // What is held of a device that is gone reaches no page.
    if (domain.is_lost.load(std::memory_order_acquire)) continue;
    RangeGuard guard(domain, low, high);
    if (!visit_overlapping(domain, low, high, stop) || !visit_in_flight(domain, low, high, stop))
      return true;
  }
  return false;
}

int check_range(const void* addr, size_t length) {
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  if (length == 0 || low == 0 || low + length < low) return -EINVAL;
  return is_in_page_event() ? -EDEADLK : 0;
}

}  // namespace
}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_adopt(const void* addr, size_t length) {
  if (int error = check_range(addr, length)) return error;
  State* all = nullptr;
  if (int error = state_prepare(&all)) return error;
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  std::uintptr_t arena = survivors.arena_base.load(std::memory_order_relaxed);
  std::size_t arena_length = survivors.arena_length.load(std::memory_order_relaxed);
  if (low < arena + arena_length && low + length > arena) return -EFAULT;
  note(Event::kAdopted, low, low + length);
  return all->adoptions.add(survivors.adoptions, low, low + length);
}

extern "C" RDMALLOC_API int rdmalloc_disown(const void* addr, size_t length) {
  if (int error = check_range(addr, length)) return error;
  State* all = ready_state();
  if (all == nullptr) return -ENOENT;
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  note(Event::kDisowned, low, low + length);
  // In this order: see settle_made().
  if (int error = all->adoptions.remove(survivors.adoptions, low, low + length)) return error;
  rdmalloc_invalidate(nullptr, addr, length, nullptr, nullptr);
  return is_registered(*all, low, low + length) ? -EBUSY : 0;
}
