// The one seam between rdmalloc and the kernel. Nothing else in alloc/ or regcache/ makes a memory
// system call, and all of these are raw: they go past libc's symbols, which fabric libraries patch
// (I1, I8). The one exception, decommitting through libc's own madvise so that installed hooks hear
// of it (docs/design.md, tier T0), is a function of its own, called with the purge turn only.
//
// None allocates, and all leave errno alone. Each that can fail returns 0 or a negative errno, and
// is a named fault site: RDMALLOC_FAULT=site:n makes its n-th call fail (fault.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc::os {

// Kernel page size in bytes, from the auxiliary vector.
std::size_t page_bytes();

// Reserves `length` bytes of address space, PROT_NONE, private, anonymous, not counted against
// overcommit. `hint` (may be 0) asks for an address without insisting. Sets *base.
int reserve(std::uintptr_t hint, std::size_t length, std::uintptr_t* base);
// Reserves exactly there or not at all.
int reserve_at(std::uintptr_t base, std::size_t length);
// Unmaps what was mapped here and no thread uses: what is left of a reservation, a stack, a table.
int unreserve(std::uintptr_t base, std::size_t length);
// Makes reserved pages readable and writable (mprotect, which no library hooks).
int commit(std::uintptr_t base, std::size_t length);
// Ends that for pages never used. Under strict overcommit they stay charged, and are not once more
// when they are committed again.
int revoke(std::uintptr_t base, std::size_t length);
// Makes part of a reservation readable: zero, without a page behind it, and without any charge.
int make_readable(std::uintptr_t base, std::size_t length);
// Maps zeroed, readable and writable pages for metadata; lazily backed.
int map_metadata(std::size_t length, std::uintptr_t* base);
// Pages that read as zero in a child of fork (MADV_WIPEONFORK); -EINVAL on kernels before 4.14.
int wipe_on_fork(std::uintptr_t base, std::size_t length);
// MADV_HUGEPAGE on pages never used.
int advise_huge(std::uintptr_t base, std::size_t length);
// MADV_NOHUGEPAGE on pages never used: no transparent huge pages, whatever the kernel's setting is.
// -EINVAL on kernels that have none.
int advise_small(std::uintptr_t base, std::size_t length);
// How many of these pages are resident (mincore(2)).
int count_resident(std::uintptr_t base, std::size_t length, std::size_t* pages);
// Gives the pages back: MADV_DONTNEED, raw. Of the arena with the purge turn only.
int decommit(std::uintptr_t base, std::size_t length);
// The same through libc's symbol, so that hooks of other libraries hear of it.
int decommit_hooked(std::uintptr_t base, std::size_t length);

// Backs the pages for writing, without a change to their bytes (MADV_POPULATE_WRITE, Linux 5.14).
// -EINVAL on kernels before, -EFAULT or -ENOMEM where there is nothing to write or no memory.
int populate(std::uintptr_t base, std::size_t length);

// Maps a page for reading, without memory behind it where there is none (MADV_POPULATE_READ, Linux
// 5.14). -EINVAL on kernels before.
int populate_for_reading(std::uintptr_t page);

// Has the pages come from one NUMA node only, and moves those that are there already (mbind,
// MPOL_BIND). -EINVAL: there is no such node, or it has no memory; -EIO: a page is pinned
// elsewhere.
int bind_to_node(std::uintptr_t base, std::size_t length, unsigned node);
// Ends that: the process's own policy holds again.
int unbind(std::uintptr_t base, std::size_t length);

// ---- pages of another size in the place of those that are there. With the purge turn. ----

// Maps zeroed pages of the kernel's pool of `page_bytes` (2 MiB, 1 GiB) at an address of its own
// choice: reserved in the pool, so that touching one can't fail for want of it, and not inherited
// by children of fork until they are moved. -ENOMEM: the pool has too few. -ENOTSUP: the kernel has
// no such pool, or can't move its pages (before Linux 5.16).
int map_huge(std::size_t length, std::size_t page_bytes, std::uintptr_t* base);
// Moves them to where something is mapped, which goes; children inherit them from here on. After a
// failure those that were not moved are unmapped; the others are at their new place.
int move_huge(std::uintptr_t from, std::size_t length, std::uintptr_t to);
// How much one call maps and moves; tests make it less. Linux has what it moved of a pool's pages
// in an `int` (move_hugetlb_page_tables(), seen in 6.18): of 4 GiB that is 0, and it refuses them.
extern std::size_t huge_piece_bytes;
// Takes all pages away, of whatever size, and leaves addresses as reserve() does. commit() is next.
int reserve_over(std::uintptr_t base, std::size_t length);

// futex(2), private. wait returns -EAGAIN, -EINTR or -ETIMEDOUT; timeout_ns < 0 waits for ever.
int futex_wait(const std::uint32_t* word, std::uint32_t expected, std::int64_t timeout_ns);
int futex_wake(const std::uint32_t* word, int count);

// Returns after every thread of the process has passed a full memory barrier, or slept:
// membarrier(2), which the first call registers for. -ENOSYS before Linux 4.14; what a filter says.
int barrier_of_all_threads();

// CLOCK_MONOTONIC in nanoseconds; CLOCK_MONOTONIC_COARSE in milliseconds (cheap, 1-4 ms steps).
std::int64_t monotonic_ns();
std::int64_t coarse_ms();
// Both without libc from here on, where that can be. It asks libc where, whose functions a program
// may have in front of it: while no lock is held.
void clock_learn();

int thread_id();
// Whether the calling thread is the process's first: main's, or the one that forked it.
bool is_first_thread();
// Whether this process has a thread of that id.
bool thread_exists(std::uint32_t id);
void sleep_ns(std::int64_t ns);
// Ends real-time scheduling (SCHED_FIFO, SCHED_RR) of the calling thread, which any thread may.
void leave_real_time();
// How many processors the calling thread may run on (its affinity); at least 1.
unsigned processors_allowed();
// The id of the process, which is that of its first thread.
int process_id();
// False only where the kernel says that there is none of that id.
bool process_exists(int id);
// Whether the process's first thread is one that libc started or forked: libc gives the kernel a
// list of robust mutexes for each (set_robust_list), and clone(2) passes none on. True where the
// kernel does not tell, false once that thread has ended.
bool is_first_thread_of_libc();
// What uname(2) calls this machine, zero-terminated.
inline constexpr std::size_t kMostHostBytes = 65;
void host_name(char (&name)[kMostHostBytes]);
// Writes to `fd`, restarting after EINTR and short writes. Without a signal: -EPIPE or
// -EFBIG at most.
int write_all(int fd, const char* bytes, std::size_t length);
[[noreturn]] void abort_process();

}  // namespace rdmalloc::os
