// How much memory this process may have.
#pragma once

#include <cstdint>

namespace rdmalloc::os {

// Bytes of physical memory; 1 GiB where the kernel does not tell. One system call.
std::uint64_t physical_memory_bytes();

// What this process may have. Reads /proc and /sys by raw system calls each time.
struct MemoryLimits {
  std::uint64_t bytes;         // the machine's memory, or the least memory.max of the cgroups
  std::uint64_t cgroup_bytes;  // the least memory.max or memory.high of those; UINT64_MAX: none
  std::uint64_t machine_bytes;
};
MemoryLimits memory_limits();
// The first of these as it was when it was first asked for: initialisation asks for several
// settings, and at each start of a program. Cold.
std::uint64_t memory_limit_bytes();

// How short of memory the kernel is, as it tells this process.
struct MemoryState {
  // Time in which a task of the process's cgroup, or of the machine where that does not tell,
  // waited for memory: microseconds since it was made ("some" of PSI, the kernel's
  // Documentation/accounting/psi.rst). 0 when the kernel does not tell.
  std::uint64_t stalled_us = 0;
  // Of the cgroups the process is in, the one nearest to its limit, memory.high or memory.max:
  // that limit, and what anonymous memory and shared memory leave of it. Page cache is not counted,
  // for the kernel drops that by itself. UINT64_MAX without any limit.
  std::uint64_t limit_bytes = UINT64_MAX;
  std::uint64_t left_bytes = UINT64_MAX;
  std::uint64_t cgroup_bytes = UINT64_MAX;  // as in MemoryLimits
  // Whether the files of cgroups could be read: not so in a chroot without /proc or /sys, or where
  // the process may open no file.
  bool is_cgroup_known = false;
};
// Opens, reads and closes some files: 20 to 100 us. Any thread.
MemoryState memory_state();

// RLIMIT_AS, in force and the highest that it may be raised to; UINT64_MAX: no limit.
struct AddressLimit {
  std::uint64_t bytes = UINT64_MAX;
  std::uint64_t most_bytes = UINT64_MAX;
};
AddressLimit address_limit();
// RLIMIT_AS less what is mapped already; UINT64_MAX when there is no limit. Reads /proc where there
// is.
std::uint64_t address_space_left_bytes();

// RLIMIT_MEMLOCK, and what this process has that counts against it.
struct LockedMemory {
  std::uint64_t limit_bytes = UINT64_MAX;  // UINT64_MAX: none, or CAP_IPC_LOCK, which it is not for
  std::uint64_t locked_bytes = 0;          // by mlock(2): VmLck
  std::uint64_t pinned_bytes = 0;          // by devices and io_urings: VmPin
};
// Two system calls; where there is a limit it reads /proc/self/status as well: some 20 us.
LockedMemory locked_memory();

// Once the first thread has ended: how many are left beside `ours`, the caller among them. Negative
// before, and without /proc.
std::int64_t threads_left_beside(std::uint32_t ours);
// Whether that can be found out: /proc is there, and is this process's.
bool can_count_threads();

}  // namespace rdmalloc::os
