#include "alloc/pages/limits.h"

#include "alloc/core/options.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/segments.h"

namespace rdmalloc {
namespace {

constexpr std::uint64_t kMostDirtyBytes = std::uint64_t{512} << 20;
// With all of the limit, four threads that change sizes (take_back_cgroup) had 76 MiB resident at
// the most at a limit of 32, with a quarter 48, with a 16th no less.
constexpr std::uint64_t kLimitShare = 4;

// In a cgroup of more, what caches may hold is less than a tenth.
constexpr std::uint64_t kSmallCgroupBytes = std::uint64_t{1} << 30;
// Of a small cgroup, spans in use and free ones have all but an eighth, which is for what else the
// program has, and for what threads take while the purge thread wakes.
constexpr std::uint64_t kOthersShare = 8;
constexpr std::uint64_t kRoomShare = 2;

// Relaxed: what two threads read at first is the same, and later on one has the purge turn.
constinit std::atomic<bool> are_known{false};
constinit std::atomic<std::uint64_t> known_machine{UINT64_MAX}, known_cgroup{UINT64_MAX};

std::uint64_t least_of(std::uint64_t a, std::uint64_t b) {
  return a < b ? a : b;
}

std::uint64_t default_dirty_max_bytes(const os::MemoryLimits& kernels) {
  return least_of(least_of(kernels.bytes, kernels.cgroup_bytes) / 4, kMostDirtyBytes);
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

}  // namespace

void limits_init() {
  const Options& settings = options();
  dirty_limits.backed_bytes.store(settings.limit_bytes, std::memory_order_relaxed);
  if (settings.dirty_max_bytes != 0 || settings.limit_bytes != UINT64_MAX)
    fit_segments(settings.dirty_max_bytes != 0 ? settings.dirty_max_bytes : kMostDirtyBytes);
  dirty_limits.max_bytes.store(
      settings.dirty_max_bytes != 0 ? settings.dirty_max_bytes : kNotLookedUp,
      std::memory_order_relaxed);
  if (settings.limit_bytes != UINT64_MAX) page_heap_set_limit(settings.limit_bytes);
  // Programs in a sandbox that kills for reading files later on (docs/settings.md).
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
  // Only from there: a program may have set it.
  std::uint64_t bytes = kNotLookedUp;
  if (limits_are_known())
    bytes = default_dirty_max_bytes(known_with(known_cgroup.load(std::memory_order_relaxed)));
  if (dirty_limits.max_bytes.compare_exchange_strong(bytes, default_dirty_max_bytes(kernels),
                                                     std::memory_order_relaxed))
    bytes = default_dirty_max_bytes(kernels);
  fit_segments(bytes);
  known_machine.store(kernels.machine_bytes, std::memory_order_relaxed);
  known_cgroup.store(kernels.cgroup_bytes, std::memory_order_relaxed);
  are_known.store(true, std::memory_order_relaxed);
}

bool limits_note_cgroup(std::uint64_t cgroup_bytes) {
  std::uint64_t before = known_cgroup.load(std::memory_order_relaxed);
  if (!limits_are_known() || cgroup_bytes == before) return false;
  limits_take(known_with(cgroup_bytes));
  return cgroup_bytes < before - before / 8;
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
  dirty_limits.max_bytes.store(bytes, std::memory_order_relaxed);
  fit_segments(bytes);
}

}  // namespace rdmalloc
