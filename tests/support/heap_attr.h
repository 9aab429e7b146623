// SPDX-License-Identifier: BSD-3-Clause
//
// Attributes of heaps of the user; what is not named has its default.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstddef>
#include <cstdint>

namespace rdmalloc_test {

inline rdmalloc_heap_attr heap_attr(size_t budget_bytes = 0, uint32_t page_size = 0) {
  rdmalloc_heap_attr attr = {};
  attr.size = sizeof attr;
  attr.budget_bytes = budget_bytes;
  attr.page_size = page_size;
  return attr;
}

// Of a heap registered with one domain, at *domain.
inline rdmalloc_heap_attr registered_heap_attr(rdmalloc_domain* const* domain, size_t budget_bytes,
                                               uint32_t access = 0, uint32_t page_size = 0) {
  rdmalloc_heap_attr attr = heap_attr(budget_bytes, page_size);
  attr.domains = domain;
  attr.domain_count = 1;
  attr.access = access;
  return attr;
}

}  // namespace rdmalloc_test
