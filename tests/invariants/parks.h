// SPDX-License-Identifier: BSD-3-Clause
//
// Opening parks (alloc/pages/parked.h), which takes threads that meet.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <atomic>
#include <thread>

#include "tests/support/counters.h"

namespace rdmalloc_test {

// Two threads at the caller's place do nothing but allocate and free, until one of them had a block
// from a park. Where they are dealt to nodes, those whose pages are another node's would park none.
inline void open_parks() {
  constexpr size_t kBytes = 300000;
  std::atomic<bool> is_ending{false};
  uint64_t place = counter("thread.place");
  auto meet = [&] {
    rdmalloc_ctl("thread.place", nullptr, nullptr, &place, sizeof place);
    while (!is_ending)
      for (int i = 0; i < 100; i++) rdmalloc_free(rdmalloc_malloc(kBytes));
  };
  uint64_t hits = counter("stats.park_hits");
  std::thread one(meet), other(meet);
  wait_until([&] { return counter("stats.park_hits") != hits; });
  is_ending = true;
  one.join();
  other.join();
}

}  // namespace rdmalloc_test
