#include "regcache/core/byte_ranges.h"

#include <errno.h>

namespace rdmalloc::regcache {

ByteRange* ByteRanges::first_ending_from(std::uintptr_t address) {
  ByteRange* first = nullptr;
  for (ByteRange* range = tree_.root(); range != nullptr;) {
    ++steps_;
    bool is_behind = range->high >= address;
    if (is_behind) first = range;
    range = is_behind ? range->links.left : range->links.right;
  }
  return first;
}

void ByteRanges::enter(ByteRange* range, std::uintptr_t low, std::uintptr_t high) {
  *range = {low, high, {}};
  tree_.insert(range);
  ++count_;
}

void ByteRanges::take_out(ByteRange* range) {
  tree_.erase(range);
  --count_;
}

bool ByteRanges::hold(std::uintptr_t low, std::uintptr_t high) {
  LockGuard guard(lock_);
  // Neighbours are joined, so a range is in one or in none.
  const ByteRange* range = first_ending_from(high);
  return range != nullptr && range->low <= low;
}

bool ByteRanges::find_first(std::uintptr_t low, std::uintptr_t high, Range* found) {
  LockGuard guard(lock_);
  const ByteRange* range = first_ending_from(low + 1);
  if (range == nullptr || range->low >= high) return false;
  *found = {range->low, range->high};
  return true;
}

void ByteRanges::clear() {
  LockGuard guard(lock_);
  while (ByteRange* range = tree_.root()) {
    take_out(range);
    pool_.give(range);
  }
}

std::size_t ByteRanges::count() {
  LockGuard guard(lock_);
  return count_;
}

std::uint64_t ByteRanges::steps() {
  LockGuard guard(lock_);
  return steps_;
}

int ByteRanges::add(PoolMemory& memory, std::uintptr_t low, std::uintptr_t high) {
  LockGuard guard(lock_);
  ByteRange* joined = pool_.take(memory);
  if (joined == nullptr) return -ENOMEM;
  for (;;) {
    ByteRange* range = first_ending_from(low);
    if (range == nullptr || range->low > high) break;
    if (range->low < low) low = range->low;
    if (range->high > high) high = range->high;
    take_out(range);
    pool_.give(range);
  }
  enter(joined, low, high);
  return 0;
}

int ByteRanges::remove(PoolMemory& memory, std::uintptr_t low, std::uintptr_t high) {
  LockGuard guard(lock_);
  ByteRange* range = first_ending_from(low + 1);
  if (range == nullptr || range->low >= high) return -ENOENT;
  // One that reaches beyond both ends becomes two, and no other is touched then.
  ByteRange* rest = range->low < low && range->high > high ? pool_.take(memory) : nullptr;
  if (range->low < low && range->high > high && rest == nullptr) return -ENOMEM;
  do {
    std::uintptr_t old_low = range->low, old_high = range->high;
    take_out(range);
    if (old_high > high) {
      enter(rest != nullptr ? rest : range, high, old_high);
      if (rest == nullptr) return 0;
    }
    if (old_low < low)
      enter(range, old_low, low);
    else
      pool_.give(range);
    range = first_ending_from(low + 1);
  } while (range != nullptr && range->low < high);
  return 0;
}

}  // namespace rdmalloc::regcache
