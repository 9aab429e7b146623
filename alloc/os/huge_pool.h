// The kernel's pools of huge pages (hugetlb): what an administrator has set aside.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alloc/os/path.h"

namespace rdmalloc::os {

struct HugePool {
  std::uint64_t pages = 0;  // there are
  std::uint64_t free = 0;   // and not reserved
};

// The pool of pages of that size; of one NUMA node, or of all where `node` is negative. False: the
// kernel has none, or does not tell. Reads files of /sys; any thread.
bool huge_pool(std::size_t page_bytes, int node, HugePool* pool);

// One of the pool's files, as "nr_hugepages", which its number of pages is written to.
Path huge_pool_file(std::size_t page_bytes, int node, const char* file);

}  // namespace rdmalloc::os
