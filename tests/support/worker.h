// SPDX-License-Identifier: BSD-3-Clause
//
// For tests of what threads hold: one that does as it is told, and blocks by the dozen.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <algorithm>
#include <functional>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

namespace rdmalloc_test {

// A thread that does one thing after the other, as it is told, and waits in between.
class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  ~Worker() {
    run({});
    thread_.join();
  }
  // Returns when it is done.
  void run(std::function<void()> task) {
    begin(std::move(task));
    is_done_.acquire();
  }
  void begin(std::function<void()> task) {
    task_ = std::move(task);
    is_wanted_.release();
  }
  void wait() { is_done_.acquire(); }

 private:
  void work() {
    for (bool ends = false; !ends;) {
      is_wanted_.acquire();
      ends = !task_;
      if (!ends) task_();
      is_done_.release();
    }
  }
  std::function<void()> task_;
  std::binary_semaphore is_wanted_{0}, is_done_{0};
  std::thread thread_;
};

// So many threads, one after the other.
template <class Task>
void run_on_new_threads(int count, Task task) {
  while (count-- > 0) {
    Worker worker;
    worker.run(task);
  }
}

inline std::vector<void*> allocate(size_t count, size_t bytes) {
  std::vector<void*> blocks;
  for (size_t i = 0; i < count; i++) blocks.push_back(rdmalloc_malloc(bytes));
  return blocks;
}
inline void release(std::vector<void*>& blocks) {
  for (void* block : blocks) rdmalloc_free(block);
  blocks.clear();
}
inline bool has_duplicates(std::vector<void*> blocks) {
  std::sort(blocks.begin(), blocks.end());
  return std::adjacent_find(blocks.begin(), blocks.end()) != blocks.end();
}

}  // namespace rdmalloc_test
