#include "regcache/core/wiped_on_fork.h"

#include <errno.h>
#include <pthread.h>

#include <atomic>

#include "alloc/for_regcache.h"

namespace rdmalloc::regcache {
namespace {

// Each map_wiped_on_fork() is used once per process for each table and pool chunk, so their number
// is bounded (pool.h: chunks double up to 16 MiB, which is 131,072 registrations).
struct Mapping {
  std::uintptr_t base;
  std::size_t length;
  bool is_wiped_by_kernel;
};
constexpr std::size_t kMostMappings = 1024;
constinit Mapping mappings[kMostMappings] = {};
constinit std::atomic<std::uint32_t> mappings_reserved{0};
constinit std::atomic<bool> has_handler{false};
// A checkpoint may be taken, or was: what the kernel had promised may be forgotten.
constinit std::atomic<bool> is_promise_doubtful{false};

template <class Fn>
void each_mapping(Fn fn) {
  std::uint32_t count = mappings_reserved.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count && i < kMostMappings; ++i)
    // Acquire: pairs with the release in note_mapping().
    if (std::atomic_ref<std::size_t>(mappings[i].length).load(std::memory_order_acquire) != 0)
      fn(mappings[i]);
}

// Dropping the pages of a private mapping drops the copies. Where a filter refuses that, others are
// mapped there.
void wipe(const Mapping& mapping) {
  if (os::decommit(mapping.base, mapping.length) != 0 &&
      os::reserve_over(mapping.base, mapping.length) == 0)
    os::commit(mapping.base, mapping.length);
}

// In the child, which has one thread.
void wipe_in_child() {
  bool all = is_promise_doubtful.load(std::memory_order_relaxed);
  each_mapping([all](const Mapping& mapping) {
    if (all || !mapping.is_wiped_by_kernel) wipe(mapping);
  });
  if (all) wipe_on_fork_ask_again();
}

int add_handler() {
  if (has_handler.exchange(true, std::memory_order_relaxed)) return 0;
  if (!os::should_fail(os::Site::kForkHandler) &&
      pthread_atfork(nullptr, nullptr, wipe_in_child) == 0)
    return 0;
  has_handler.store(false, std::memory_order_relaxed);
  return -ENOMEM;
}

int note_mapping(std::uintptr_t base, std::size_t length, bool is_wiped_by_kernel) {
  if (int error = is_wiped_by_kernel ? 0 : add_handler()) return error;
  std::uint32_t mine = mappings_reserved.fetch_add(1, std::memory_order_relaxed);
  if (mine >= kMostMappings) return -ENOMEM;
  // `length` last: a fork between the stores sees no half entry.
  mappings[mine].base = base;
  mappings[mine].is_wiped_by_kernel = is_wiped_by_kernel;
  std::atomic_ref<std::size_t>(mappings[mine].length).store(length, std::memory_order_release);
  return 0;
}

}  // namespace

int wipe_on_fork_doubt_kernel() {
  if (int error = add_handler()) return error;
  is_promise_doubtful.store(true, std::memory_order_relaxed);
  return 0;
}

void wipe_on_fork_ask_again() {
  bool is_kept = true;
  each_mapping([&is_kept](const Mapping& mapping) {
    if (mapping.is_wiped_by_kernel) is_kept &= os::wipe_on_fork(mapping.base, mapping.length) == 0;
  });
  if (is_kept) is_promise_doubtful.store(false, std::memory_order_relaxed);
}

int map_wiped_on_fork(std::size_t length, std::uintptr_t* base) {
  if (int error = os::map_metadata(length, base)) return error;
  int error = note_mapping(*base, length, os::wipe_on_fork(*base, length) == 0);
  if (error != 0) os::unreserve(*base, length);
  return error;
}

int map_wiped_once(std::atomic<std::uintptr_t>& place, std::size_t length) {
  if (place.load(std::memory_order_acquire) != 0) return 0;
  std::uintptr_t base = 0;
  length = round_up(length, os::page_bytes());
  if (int error = map_wiped_on_fork(length, &base)) return error;
  std::uintptr_t expected = 0;
  // Release: pairs with the acquires of threads that use it. A thread that loses the race gives its
  // mapping back.
  if (!place.compare_exchange_strong(expected, base, std::memory_order_acq_rel))
    unmap_wiped_on_fork(base, length);
  return 0;
}

void unmap_wiped_on_fork(std::uintptr_t base, std::size_t length) {
  each_mapping([base](Mapping& mapping) {
    if (mapping.base == base)
      std::atomic_ref<std::size_t>(mapping.length).store(0, std::memory_order_relaxed);
  });
  os::unreserve(base, length);
}

int commit_wiped_on_fork(std::uintptr_t base, std::size_t length) {
  if (int error = os::commit(base, length)) return error;
  if ((base | length) % kChunkBytes == 0 && arena_may_be_huge()) os::advise_huge(base, length);
  return note_mapping(base, length, os::wipe_on_fork(base, length) == 0);
}

}  // namespace rdmalloc::regcache
