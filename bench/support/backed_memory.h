// Free memory that the host of a virtual machine backs.
//
// With free page reporting, or a balloon, a guest's memory that has lain free for some seconds is
// the host's again, and who touches it next waits for the host page by page: 64 MiB of huge pages
// take 150 ms in place of 3 (docs/host-memory.md). The kernel gives what was freed last first. So a
// run that needs new memory takes one of two times by what happened to be free, and which it is has
// nothing to do with its allocator.
#pragma once

#include <cstddef>

namespace rdmalloc::bench {

// Writes to so many bytes in a process that ends, by huge pages where the kernel grants them: they
// are what the next process gets. At most a quarter of what is available. Returns the bytes; 0 when
// there is no memory or no process.
std::size_t back_free_memory(std::size_t bytes);

}  // namespace rdmalloc::bench
