// How much memory this process may have.
#pragma once

#include <cstdint>

namespace rdmalloc::os {

// Bytes of physical memory, or the smaller limit of the cgroup the process is in (v2). Cold; reads
// /proc and /sys by raw system calls.
std::uint64_t memory_limit_bytes();

// RLIMIT_AS less what is mapped already; UINT64_MAX when there is no limit.
std::uint64_t address_space_left_bytes();

// Whether the first thread has ended and no other but the caller is left. False without /proc.
bool is_only_thread_left();

}  // namespace rdmalloc::os
