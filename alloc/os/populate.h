// Backing memory before it is registered: a page that the registrar has to fault in costs it far
// more than one that is there.
#pragma once

#include <errno.h>

#include <atomic>

#include "alloc/os/os.h"

namespace rdmalloc::os {

// Backs whole pages for writing; their bytes stay as they are, also when a thread writes them
// meanwhile. 0, -EFAULT or -ENOMEM. Calls madvise: never inside malloc or free (I1).
inline int populate_pages(std::uintptr_t base, std::size_t length) {
  int error = populate(base, length);
  if (error != -EINVAL) return error;
  // A kernel before 5.14.
  for (std::uintptr_t page = base; page < base + length; page += page_bytes())
    std::atomic_ref<char>(*reinterpret_cast<char*>(page)).fetch_add(0, std::memory_order_relaxed);
  return 0;
}

// The same for memory that is not ours. It may be read-only, which only the kernel can tell; then
// its pages are left to the registrar, and on a kernel before 5.14 always.
inline int populate_foreign(std::uintptr_t base, std::size_t length) {
  int error = populate(base, length);
  return error == -EINVAL ? 0 : error;
}

}  // namespace rdmalloc::os
