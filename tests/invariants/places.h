// SPDX-License-Identifier: BSD-3-Clause
//
// Threads of tests on a made-up topology (RDMALLOC_TOPOLOGY) say at which place they run.
#pragma once

#include <rdmalloc/rdmalloc.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

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

// Blocks, written to by the caller: their pages are its node's.
inline std::vector<void*> allocate(size_t count, size_t bytes) {
  std::vector<void*> blocks(count);
  for (void*& block : blocks) {
    block = rdmalloc_malloc(bytes);
    memset(block, 1, bytes);
  }
  return blocks;
}
inline void release(const std::vector<void*>& blocks) {
  for (void* block : blocks) rdmalloc_free(block);
}

// A thread that stays at its place and does nothing, so that its shard is not a dead one.
class Resident {
 public:
  explicit Resident(uint64_t place) {
    thread_ = std::thread([this, place] {
      go_to(place);
      rdmalloc_free(rdmalloc_malloc(64));
      is_there_ = true;
      while (!is_ending_) usleep(1000);
    });
    while (!is_there_) usleep(1000);
  }
  ~Resident() {
    is_ending_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> is_there_{false}, is_ending_{false};
  std::thread thread_;
};

}  // namespace rdmalloc_test
