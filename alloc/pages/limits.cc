#include "alloc/pages/limits.h"

#include "alloc/core/options.h"
#include "alloc/core/shard.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/segments.h"

namespace rdmalloc {
namespace {

constexpr std::uint64_t kMostDirtyBytes = std::uint64_t{512} << 20;
// Of many shards so much for each, where that is more: what a shard keeps from the others
// (segments.h) is a share of the ceiling. 64 threads that free 2 MiB four times and allocate it
// again moved 4.1 lines for each of them with 512 MiB, 0.006 now.
constexpr std::uint64_t kMostDirtyBytesOfShard = std::uint64_t{32} << 20;
// With all of the limit, four threads that change sizes (take_back_cgroup) had 76 MiB resident at
// the most at a limit of 32, with a quarter 48, with a 16th no less.
constexpr std::uint64_t kLimitShare = 4;

// In a cgroup of more, what caches may hold is less than a tenth.
constexpr std::uint64_t kSmallCgroupBytes = std::uint64_t{1} << 30;
// Of a small cgroup, spans in use and free ones have all but an eighth, which is for what else the
// program has, and for what threads take while the purge thread wakes. The room of those in use is
// half of it (page_heap_set_room).
constexpr std::uint64_t kOthersShare = 8;
constexpr std::uint64_t kRoomShare = 2;

// Relaxed: what two threads read at first is the same, and later on one has the purge turn.
constinit std::atomic<bool> are_known{false};
constinit std::atomic<std::uint64_t> known_machine{UINT64_MAX}, known_cgroup{UINT64_MAX};
// Relaxed: ordered by dirty_limits.max_bytes, which is stored after it with release.
constinit std::atomic<bool> is_set{false};

std::uint64_t least_of(std::uint64_t a, std::uint64_t b) {
  return a < b ? a : b;
}

std::uint64_t default_dirty_max_bytes(const os::MemoryLimits& kernels) {
  std::uint64_t most = shard_count() * kMostDirtyBytesOfShard;
  if (most < kMostDirtyBytes) most = kMostDirtyBytes;
  return least_of(least_of(kernels.bytes, kernels.cgroup_bytes) / 4, most);
}
os::MemoryLimits known_with(std::uint64_t cgroup_bytes) {
  std::uint64_t machine = known_machine.load(std::memory_order_relaxed);
  return {machine, cgroup_bytes, machine};
}

// What shards keep from each other is a share of the ceiling, and of the limit.
void fit_segments(std::uint64_t ceiling_bytes) {
  std::uint64_t backed = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  segments_fit(least_of(ceiling_bytes, backed / kLimitShare));
}

void set_dirty_max(std::uint64_t bytes) {
  is_set.store(true, std::memory_order_relaxed);
  dirty_limits.max_bytes.store(bytes, std::memory_order_release);
}

// The ceiling is the default, unless it was set.
void take_default(const os::MemoryLimits& kernels) {
  // Acquire: what set_dirty_max() stored comes after its flag; what it stores later makes the
  // exchange fail, or takes its place.
  std::uint64_t bytes = dirty_limits.max_bytes.load(std::memory_order_acquire), next = bytes;
  do {
    if (is_set.load(std::memory_order_relaxed)) return fit_segments(bytes);
    next = default_dirty_max_bytes(kernels);
  } while (!dirty_limits.max_bytes.compare_exchange_weak(bytes, next, std::memory_order_acquire));
  fit_segments(next);
}

}  // namespace

void limits_init() {
  const Options& settings = options();
  dirty_limits.backed_bytes.store(settings.limit_bytes, std::memory_order_relaxed);
  if (settings.dirty_max_bytes != 0 || settings.limit_bytes != UINT64_MAX)
    fit_segments(settings.dirty_max_bytes != 0 ? settings.dirty_max_bytes : kMostDirtyBytes);
  if (settings.dirty_max_bytes != 0) set_dirty_max(settings.dirty_max_bytes);
  if (settings.limit_bytes != UINT64_MAX) page_heap_set_limit(settings.limit_bytes);
  // For programs in a sandbox that ends them if files are read later on (docs/settings.md).
  if (!settings.watch_pressure) limits_take(os::memory_limits());
}

void limits_take(const os::MemoryLimits& kernels) {
  if (options().limit_bytes == UINT64_MAX) {
    bool is_small = kernels.cgroup_bytes < kSmallCgroupBytes;
    dirty_limits.backed_bytes.store(
        is_small ? kernels.cgroup_bytes - kernels.cgroup_bytes / kOthersShare : UINT64_MAX,
        std::memory_order_relaxed);
    if (is_small || page_heap_room_is_set())
      page_heap_set_room(is_small ? kernels.cgroup_bytes / kRoomShare : UINT64_MAX);
  }
  take_default(kernels);
  known_machine.store(kernels.machine_bytes, std::memory_order_relaxed);
  known_cgroup.store(kernels.cgroup_bytes, std::memory_order_relaxed);
  are_known.store(true, std::memory_order_relaxed);
}

bool limits_note_cgroup(std::uint64_t cgroup_bytes, bool is_all_read) {
  std::uint64_t before = known_cgroup.load(std::memory_order_relaxed);
  if (!limits_are_known() || cgroup_bytes == before) return false;
  if (!is_all_read && cgroup_bytes > before) return false;
  limits_take(known_with(cgroup_bytes));
  return cgroup_bytes < before - before / 8;
}

void limits_note_shards() {
  if (limits_are_known()) take_default(known_with(known_cgroup.load(std::memory_order_relaxed)));
}

bool limits_are_known() {
  return are_known.load(std::memory_order_relaxed);
}

std::uint64_t limits_dirty_max_bytes() {
  std::uint64_t bytes = dirty_limits.max_bytes.load(std::memory_order_relaxed);
  return bytes == kNotLookedUp ? default_dirty_max_bytes(os::memory_limits()) : bytes;
}

void limits_set_dirty_max_bytes(std::uint64_t bytes) {
  if (bytes == kNotLookedUp) --bytes;
  set_dirty_max(bytes);
  fit_segments(bytes);
}

}  // namespace rdmalloc
