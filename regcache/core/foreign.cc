#include "regcache/core/foreign.h"

#include <errno.h>

#include <cstring>

#include "alloc/api/options.h"
#include "alloc/os/os.h"
#include "regcache/core/history.h"
#include "regcache/core/make.h"
#include "regcache/core/state.h"

namespace rdmalloc::regcache {

std::size_t Adoptions::first_ending_from(std::uintptr_t address) const {
  std::size_t low = 0, high = count_;
  while (low < high) {
    std::size_t middle = (low + high) / 2;
    if (ranges_[middle].high < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

bool Adoptions::hold(std::uintptr_t low, std::uintptr_t high) {
  LockGuard guard(lock_);
  std::size_t at = first_ending_from(high);
  // Neighbours are joined, so a range is in one or in none.
  return at != count_ && ranges_[at].low <= low;
}

// One more, for the cut or the new one.
bool Adoptions::make_room() {
  if (count_ < room_) return true;
  std::size_t room = room_ == 0 ? os::page_bytes() / sizeof(Range) : 2 * room_;
  std::uintptr_t base = 0;
  if (os::map_metadata(room * sizeof(Range), &base) != 0) return false;
  auto* wider = reinterpret_cast<Range*>(base);
  if (count_ != 0) std::memcpy(wider, ranges_, count_ * sizeof(Range));
  if (room_ != 0) os::unreserve(reinterpret_cast<std::uintptr_t>(ranges_), room_ * sizeof(Range));
  ranges_ = wider;
  room_ = room;
  return true;
}

// Puts `count` ranges in the place of [first, end).
void Adoptions::replace(std::size_t first, std::size_t end, const Range* by, std::size_t count) {
  std::memmove(ranges_ + first + count, ranges_ + end, (count_ - end) * sizeof(Range));
  std::memcpy(ranges_ + first, by, count * sizeof(Range));
  count_ = count_ - (end - first) + count;
}

int Adoptions::add(std::uintptr_t low, std::uintptr_t high) {
  LockGuard guard(lock_);
  if (!make_room()) return -ENOMEM;
  std::size_t first = first_ending_from(low);
  std::size_t end = first;
  Range joined{low, high};
  for (; end != count_ && ranges_[end].low <= high; ++end) {
    if (ranges_[end].low < joined.low) joined.low = ranges_[end].low;
    if (ranges_[end].high > joined.high) joined.high = ranges_[end].high;
  }
  replace(first, end, &joined, 1);
  return 0;
}

int Adoptions::remove(std::uintptr_t low, std::uintptr_t high) {
  LockGuard guard(lock_);
  std::size_t first = first_ending_from(low + 1);
  std::size_t end = first;
  Range rest[2];
  std::size_t count = 0;
  for (; end != count_ && ranges_[end].low < high; ++end) {
    if (ranges_[end].low < low) rest[count++] = {ranges_[end].low, low};
    if (ranges_[end].high > high) rest[count++] = {high, ranges_[end].high};
  }
  if (first == end) return -ENOENT;
  if (count > end - first && !make_room()) return -ENOMEM;
  replace(first, end, rest, count);
  return 0;
}

int foreign_allowed(State& all, const Request& request, bool* is_adopted) {
  ForeignMode mode = options().foreign;
  if (mode == ForeignMode::kRefuse) return -EPERM;
  *is_adopted = all.adoptions.hold(request.low, request.high);
  return *is_adopted || mode == ForeignMode::kPerUse ? 0 : -EPERM;
}

namespace {

// Whether a registration, in any domain, has anything of the range.
bool is_registered(State& all, std::uintptr_t low, std::uintptr_t high) {
  auto stop = [](Registration*) { return false; };
  for (Domain& domain : all.domains) {
    if (domain.phase.load(std::memory_order_acquire) == Phase::kUnused) continue;
    // What is held of a device that is gone reaches no page.
    if (domain.is_lost.load(std::memory_order_acquire)) continue;
    LockGuard guard(domain.lock);
    if (!visit_overlapping(domain.by_range.root(), low, high, stop)) return true;
    for (Registration* reg = domain.in_flight; reg != nullptr; reg = reg->next())
      if (reg->base() < high && reg->end() > low) return true;
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
  if (rdmalloc::options().foreign == rdmalloc::ForeignMode::kRefuse) return -EPERM;
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  std::uintptr_t arena = survivors.arena_base.load(std::memory_order_relaxed);
  std::size_t arena_length = survivors.arena_length.load(std::memory_order_relaxed);
  if (low < arena + arena_length && low + length > arena) return -EFAULT;
  note(Event::kAdopted, low, low + length);
  return all->adoptions.add(low, low + length);
}

extern "C" RDMALLOC_API int rdmalloc_disown(const void* addr, size_t length) {
  if (int error = check_range(addr, length)) return error;
  State* all = state();
  if (all == nullptr || !all->is_ready()) return -ENOENT;
  auto low = reinterpret_cast<std::uintptr_t>(addr);
  note(Event::kDisowned, low, low + length);
  // In this order: see settle_made().
  if (int error = all->adoptions.remove(low, low + length)) return error;
  rdmalloc_invalidate(nullptr, addr, length, nullptr, nullptr);
  return is_registered(*all, low, low + length) ? -EBUSY : 0;
}
