// SPDX-License-Identifier: BSD-3-Clause
//
// Threads of tests on a made-up topology (RDMALLOC_TOPOLOGY) say at which place they run.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "tests/support/counters.h"

namespace rdmalloc_test {

inline void go_to(uint64_t place) {
  set("thread.place", place);
}

// Runs it on a thread of its own at that place, to its end.
inline void run_at(uint64_t place, const std::function<void()>& what) {
  std::thread([&] {
    go_to(place);
    what();
  }).join();
}

}  // namespace rdmalloc_test
