// How much memory spans may take: as set, and as the kernel's files say, which are read when the
// first thread is made, and again while the purge thread has something to watch over.
//
//   RDMALLOC_LIMIT       spans in use never take more; free ones go back early enough
//   RDMALLOC_DIRTY_MAX   the ceiling of free ones: without it a quarter of the machine's memory or
//                        of the cgroup's, memory.high or memory.max; 512 MiB at most, or 32 for
//                        each shard
//   a small cgroup       as RDMALLOC_LIMIT, but no allocation fails for it: where spans in use take
//                        more than its half, caches are emptied first (page_heap_set_room)
#pragma once

#include <cstdint>

#include "alloc/os/memory.h"

namespace rdmalloc {

// Free memory of so much is worth a look into files: small programs, which may live under a seccomp
// filter that knows no openat, stay below. A quarter of a container of 32 MiB.
inline constexpr std::uint64_t kLookUpFromBytes = std::uint64_t{8} << 20;

// What was set. At initialisation.
void limits_init();

// What the kernel's files say. Not from malloc.
void limits_take(const os::MemoryLimits& kernels);
bool limits_are_known();
// What they say of cgroups later on, once the first is known; where some could not be read the
// limit may be lower than before, but is no higher. Returns whether it is less, by an eighth at
// least. With the purge turn.
bool limits_note_cgroup(std::uint64_t cgroup_bytes, bool is_all_read);

// There is another shard: what was not set goes with their number. Any thread, in malloc too.
void limits_note_shards();

std::uint64_t limits_dirty_max_bytes();
void limits_set_dirty_max_bytes(std::uint64_t bytes);

}  // namespace rdmalloc
