// Order between stores that the child of a fork must not see the other way round
// (alloc/process/fork.h).
#pragma once

#include <atomic>

namespace rdmalloc {

inline void order_for_fork() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace rdmalloc
