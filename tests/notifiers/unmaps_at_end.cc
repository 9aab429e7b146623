// SPDX-License-Identifier: BSD-3-Clause
//
// For foreign_preloaded: a library that unmaps something from its destructor, so inside dlclose().
#include <stddef.h>
#include <sys/mman.h>

extern "C" {
void* to_unmap_at_end = nullptr;
size_t to_unmap_at_end_bytes = 0;
}

namespace {
__attribute__((destructor)) void unmap() {
  if (to_unmap_at_end != nullptr) munmap(to_unmap_at_end, to_unmap_at_end_bytes);
}
}  // namespace
