#include "regcache/core/record_window.h"

#include "alloc/for_regcache.h"
#include "regcache/core/wiped_on_fork.h"

namespace rdmalloc::regcache {
namespace {

constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

}  // namespace

bool RecordWindow::reserve() {
  // Of limited addresses (RLIMIT_AS) few: the program wants the rest.
  std::uint64_t most = os::address_space_left_bytes() / 16;
  std::uintptr_t base = 0;
  for (std::size_t length = kMostBytes; length >= kLeastBytes; length /= 2) {
    if (length > most && length > kLeastBytes) continue;
    std::size_t alignment = length < kChunkBytes ? length : kChunkBytes;
    if (os::reserve(0, length + alignment, &base) != 0) continue;
    base = round_up(base, alignment);
    end_.store(base + length, std::memory_order_relaxed);
    next_.store(base, std::memory_order_relaxed);
    // Last: a child forked before this store reserves one of its own.
    base_.store(base, std::memory_order_release);
    return true;
  }
  return false;
}

bool RecordWindow::take(std::size_t* length, std::uintptr_t* base) {
  if (base_.load(std::memory_order_relaxed) == 0 && !reserve()) return false;
  std::uintptr_t next = round_up(next_.load(std::memory_order_relaxed),
                                 *length < kChunkBytes ? *length : kChunkBytes);
  std::uintptr_t end = end_.load(std::memory_order_relaxed);
  if (next >= end) return false;
  if (*length > end - next) *length = end - next;
  if (commit_wiped_on_fork(next, *length) != 0) return false;
  next_.store(next + *length, std::memory_order_relaxed);
  *base = next;
  return true;
}

}  // namespace rdmalloc::regcache
