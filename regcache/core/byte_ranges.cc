#include "regcache/core/byte_ranges.h"

#include <errno.h>

#include <cstring>

#include "alloc/os/os.h"

namespace rdmalloc::regcache {

std::size_t ByteRanges::first_ending_from(std::uintptr_t address) const {
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

bool ByteRanges::hold(std::uintptr_t low, std::uintptr_t high) {
  LockGuard guard(lock_);
  std::size_t at = first_ending_from(high);
  // Neighbours are joined, so a range is in one or in none.
  return at != count_ && ranges_[at].low <= low;
}

bool ByteRanges::find_first(std::uintptr_t low, std::uintptr_t high, Range* found) {
  LockGuard guard(lock_);
  std::size_t at = first_ending_from(low + 1);
  if (at == count_ || ranges_[at].low >= high) return false;
  *found = ranges_[at];
  return true;
}

void ByteRanges::clear() {
  LockGuard guard(lock_);
  count_ = 0;
}

std::size_t ByteRanges::count() {
  LockGuard guard(lock_);
  return count_;
}

// One more, for the cut or the new one.
bool ByteRanges::make_room() {
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
void ByteRanges::replace(std::size_t first, std::size_t end, const Range* by, std::size_t count) {
  std::memmove(ranges_ + first + count, ranges_ + end, (count_ - end) * sizeof(Range));
  std::memcpy(ranges_ + first, by, count * sizeof(Range));
  count_ = count_ - (end - first) + count;
}

int ByteRanges::add(std::uintptr_t low, std::uintptr_t high) {
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

int ByteRanges::remove(std::uintptr_t low, std::uintptr_t high) {
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

}  // namespace rdmalloc::regcache
