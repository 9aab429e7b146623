// When free memory goes back before its time, because the kernel is short of memory.
//
// Two signs. Stalls (PSI): tasks wait for memory, so whatever is free goes. A cgroup's limit that
// is near: as much goes as makes an eighth of the limit free again, for what comes next is the
// kernel's own reclaim, in the middle of page faults, or its killer.
//
// Looked at by the purge thread at its ticks, so only while there is something to give. The limits
// themselves may be others than they were when the first thread was made: they are taken note of
// (pages/limits.h), and one that is lower takes everything once. The files
// are opened each time, on a thread with descriptors of its own (core/file_thread.h): one of the
// program's that is kept open is closed by daemons, and inherits a stranger's file.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstdint>

#include "alloc/os/memory.h"

namespace rdmalloc {

// Free memory is to come down to `keep_bytes`; UINT64_MAX: no demand.
struct PressureDemand {
  std::uint64_t keep_bytes;
  enum rdmalloc_purge_reason reason;
};

// What was seen last. Belongs to the holder of the purge turn.
class PressureWatch {
 public:
  // Looks, unless it did so just now or there is too little to give to be worth it.
  PressureDemand look(std::int64_t now_ms, std::uint64_t dirty_bytes);
  // What follows from a state that was seen at `now_ms`, when `dirty_bytes` could be given.
  PressureDemand judge(const os::MemoryState& state, std::int64_t now_ms,
                       std::uint64_t dirty_bytes);

 private:
  std::int64_t looked_ms_ = 0;  // 0: never
  std::int64_t limits_ms_ = 0;  // of the last look at limits only
  std::uint64_t stalled_us_ = 0;
};

}  // namespace rdmalloc
