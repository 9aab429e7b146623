#include "regcache/core/child_empty.h"

#include <errno.h>
#include <pthread.h>

#include <atomic>

#include "alloc/os/os.h"
#include "alloc/pages/arena.h"

namespace rdmalloc::regcache {
namespace {

// Mappings that the kernel does not wipe. Each map_child_empty() is used once per process for each
// table and pool chunk, so their number is bounded (pool.h: chunks double).
struct Unwiped {
  std::uintptr_t base;
  std::size_t length;
};
constexpr std::size_t kMostUnwiped = 256;
constinit Unwiped unwiped[kMostUnwiped] = {};
constinit std::atomic<std::uint32_t> unwiped_reserved{0};

// In the child, which has one thread. Dropping the pages of a private mapping drops the copies.
void wipe_in_child() {
  std::uint32_t count = unwiped_reserved.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count && i < kMostUnwiped; ++i)
    if (unwiped[i].length != 0) os::decommit(unwiped[i].base, unwiped[i].length);
}

int wipe_by_handler(std::uintptr_t base, std::size_t length) {
  std::uint32_t mine = unwiped_reserved.fetch_add(1, std::memory_order_relaxed);
  if (mine >= kMostUnwiped) return -ENOMEM;
  if (mine == 0 && pthread_atfork(nullptr, nullptr, wipe_in_child) != 0) return -ENOMEM;
  // `length` last: a fork between the two stores sees no half entry.
  unwiped[mine].base = base;
  std::atomic_ref<std::size_t>(unwiped[mine].length).store(length, std::memory_order_release);
  return 0;
}

}  // namespace

int map_child_empty(std::size_t length, std::uintptr_t* base) {
  if (int error = os::map_metadata(length, base)) return error;
  if (os::wipe_on_fork(*base, length) == 0) return 0;
  int error = wipe_by_handler(*base, length);
  if (error != 0) os::unreserve(*base, length);
  return error;
}

int map_child_empty_dense(std::size_t length, std::uintptr_t* base) {
  if (length < kChunkBytes || !arena_may_be_huge()) return map_child_empty(length, base);
  std::uintptr_t mapped = 0;
  if (int error = map_child_empty(length + kChunkBytes, &mapped)) return error;
  // All of it, so that it stays one mapping; refused by a kernel that has none.
  os::advise_huge(mapped, length + kChunkBytes);
  *base = (mapped + kChunkBytes - 1) & ~(kChunkBytes - 1);
  return 0;
}

}  // namespace rdmalloc::regcache
