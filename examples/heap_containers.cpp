// SPDX-License-Identifier: BSD-3-Clause
//
// Containers in a heap: a budget for what a request may hold, and no destructor of theirs at its
// end.
//
//     c++ -std=c++20 heap_containers.cpp $(pkg-config --cflags --libs rdmalloc)
#include <cstdio>
#include <map>
#include <memory_resource>
#include <new>
#include <rdmalloc/rdmalloc.hpp>
#include <string>

int main() {
  rdmalloc_heap_attr attr = {};
  attr.budget_bytes = 1 << 20;
  auto made = rdmalloc::heap::create(attr);
  if (!made) {
    std::fprintf(stderr, "rdmalloc::heap: %s\n", made.error().message().c_str());
    return 1;
  }
  rdmalloc::heap heap = std::move(*made);
  rdmalloc::heap_resource resource(heap);

  // The map itself lies in the heap, too: it goes with it, undestroyed.
  using Words = std::pmr::map<int, std::pmr::string>;
  auto place = heap.allocate(sizeof(Words), alignof(Words));
  if (!place) return 1;
  auto* words = new (*place) Words(&resource);
  try {
    for (int i = 0;; i++) (*words)[i] = std::string(200, 'x');
  } catch (const std::bad_alloc&) {
    std::printf("full with %zu words\n", words->size());
  }

  auto counters = heap.counters();
  if (!counters) return 1;
  std::printf("%llu blocks, %llu of %llu bytes\n",
              static_cast<unsigned long long>(counters->live_blocks),
              static_cast<unsigned long long>(counters->span_bytes),
              static_cast<unsigned long long>(counters->budget_bytes));
  return heap.destroy() ? 1 : 0;
}
