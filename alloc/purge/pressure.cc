#include "alloc/purge/pressure.h"

#include "alloc/core/file_thread.h"
#include "alloc/pages/dirty.h"
#include "alloc/pages/limits.h"
#include "alloc/pages/page_heap.h"

namespace rdmalloc {
namespace {

// Less than this is not worth opening files for; of a limit or a small cgroup an eighth, so much as
// limits are looked up for.
constexpr std::uint64_t kLeastBytes = std::uint64_t{32} << 20;
constexpr std::int64_t kShortestLookMs = 100;
// Where there is less to give, it is about limits that may have changed.
constexpr std::int64_t kLimitsMs = 1000;
// Memory is short when tasks wait for it in more than a fiftieth of the time.
constexpr std::uint64_t kStallShare = 50;
// What is to be left of a cgroup's limit.
constexpr std::uint64_t kLimitShare = 8;

constexpr PressureDemand kNone = {UINT64_MAX, RDMALLOC_PURGE_DECAY};

std::uint64_t least_bytes() {
  std::uint64_t least = dirty_limits.backed_bytes.load(std::memory_order_relaxed) / kLimitShare;
  if (least < kLookUpFromBytes) return kLookUpFromBytes;
  return least < kLeastBytes ? least : kLeastBytes;
}

}  // namespace

PressureDemand PressureWatch::look(std::int64_t now_ms, std::uint64_t dirty_bytes) {
  bool is_worth_it = dirty_bytes >= least_bytes();
  if (is_worth_it) {
    if (looked_ms_ != 0 && now_ms - looked_ms_ < kShortestLookMs) return kNone;
  } else {
    bool has_limits =
        limits_are_known() && (dirty_bytes >= kLookUpFromBytes || page_heap_room_is_set());
    if (!has_limits || now_ms - limits_ms_ < kLimitsMs) return kNone;
  }
  limits_ms_ = now_ms;
  os::MemoryState state;
  int error = file_thread_run(
      [](void* out) { *static_cast<os::MemoryState*>(out) = os::memory_state(); }, &state);
  if (error != 0) return kNone;
  if (limits_note_cgroup(state.cgroup_bytes, state.is_cgroup_known))
    return {0, RDMALLOC_PURGE_LIMIT};
  return is_worth_it ? judge(state, now_ms, dirty_bytes) : kNone;
}

PressureDemand PressureWatch::judge(const os::MemoryState& state, std::int64_t now_ms,
                                    std::uint64_t dirty_bytes) {
  // The total of another cgroup, after the process was moved, may be less: then nothing is known.
  bool has_before = looked_ms_ != 0 && state.stalled_us >= stalled_us_;
  std::uint64_t stalled_us = has_before ? state.stalled_us - stalled_us_ : 0;
  auto elapsed_us = static_cast<std::uint64_t>(now_ms - looked_ms_) * 1000;
  looked_ms_ = now_ms;
  // Where the kernel does not tell, the next total is no sum since then.
  stalled_us_ = state.stalled_us != 0 ? state.stalled_us : UINT64_MAX;
  if (stalled_us > elapsed_us / kStallShare) return {0, RDMALLOC_PURGE_PRESSURE};
  if (state.limit_bytes == UINT64_MAX) return kNone;
  std::uint64_t wanted = state.limit_bytes / kLimitShare;
  if (state.left_bytes >= wanted) return kNone;
  std::uint64_t missing = wanted - state.left_bytes;
  return {dirty_bytes > missing ? dirty_bytes - missing : 0, RDMALLOC_PURGE_LIMIT};
}

}  // namespace rdmalloc
