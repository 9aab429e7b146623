// Memory that reads as zero in a child of fork, which is how a child gets an empty cache (I11): the
// kernel wipes it (MADV_WIPEONFORK, Linux 4.14), or, where it can't, a fork handler of ours does.
//
// Everything the cache knows lies in such memory: tables, words, records, the state itself. Zero is
// everywhere the value that means "nothing": no slot filled, no lock held, no domain open. What
// must survive in the child is only where the mappings are, so that it uses them again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rdmalloc::regcache {

// Maps `length` zeroed bytes, lazily backed, never given back. 0 or -ENOMEM. Any thread.
int map_wiped_on_fork(std::size_t length, std::uintptr_t* base);
// Maps whole pages like that, unless `place` has the address of such already, and stores it there.
// Any threads at once. 0 or -ENOMEM.
int map_wiped_once(std::atomic<std::uintptr_t>& place, std::size_t length);
// Undoes map_wiped_on_fork(), for a mapping whose address no other thread has.
void unmap_wiped_on_fork(std::uintptr_t base, std::size_t length);
// The same at `base`, in an os::reserve() of the caller's; on huge pages where base and length are
// multiples of one, so that 100,000 records cost no miss of the TLB each.
int commit_wiped_on_fork(std::uintptr_t base, std::size_t length);

// A checkpoint forgets MADV_WIPEONFORK (CRIU 4.1.1). From the first on, until the second, a handler
// of ours wipes all of it in a child, whatever the kernel does. 0 or -ENOMEM.
int wipe_on_fork_doubt_kernel();
// Asks the kernel again for each mapping.
void wipe_on_fork_ask_again();

}  // namespace rdmalloc::regcache
