// Which core each of the program's threads is on.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace rdmalloc::bench {

// QEMU gives a new thread the number after the highest one. A core is free again once its thread
// has ended.
class Places {
 public:
  explicit Places(unsigned cores) : is_taken_(cores), core_of_(kMostThreads, kNone) {}

  // Of the calling thread.
  unsigned core_of(unsigned thread) {
    if (thread < kMostThreads && core_of_[thread] != kNone) return core_of_[thread];
    return take(thread);
  }
  void leave(unsigned thread) {
    const std::lock_guard lock(mutex_);
    is_taken_[core_of_[thread]] = false;
    core_of_[thread] = kNone;
  }

 private:
  static constexpr unsigned kMostThreads = 1 << 20;
  static constexpr unsigned kNone = ~0u;

  unsigned take(unsigned thread) {
    const std::lock_guard lock(mutex_);
    const auto free = std::find(is_taken_.begin(), is_taken_.end(), false);
    if (free == is_taken_.end() || thread >= kMostThreads) {
      std::fprintf(stderr, "coherence: more than %zu threads at a time; cores=N allows more\n",
                   is_taken_.size());
      std::_Exit(1);
    }
    *free = true;
    return core_of_[thread] = static_cast<unsigned>(free - is_taken_.begin());
  }

  std::mutex mutex_;
  std::vector<bool> is_taken_;
  std::vector<unsigned> core_of_;  // each thread looks at its own
};

}  // namespace rdmalloc::bench
