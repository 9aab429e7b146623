// Whether this is the child of a fork (I11), for every room: what is done about it, and how it is
// known, is in process/fork.h.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/core/lock.h"
#include "alloc/core/order_for_fork.h"

namespace rdmalloc {

namespace detail {
// Points at a word that is 1 here and 0 in a fork child until it begins to recover. NULL before
// the initialisation.
extern std::atomic<std::uint32_t>* fork_word;
// In process/fork.cc, above all rooms that it repairs; bound by the linker.
void fork_recover();

// The process that the word speaks of, by the kernel's id, where the page is not wiped: set at
// initialisation and by each recovery. Relaxed: written before the recovery publishes its end.
inline constinit std::atomic<int> known_process{0};
// Its first thread, as far as known. Relaxed: a number.
inline constinit std::atomic<std::uint32_t> first_thread{0};
}  // namespace detail

// To be called at the head of every slow path that may touch shared structures, and after foreign
// code was called in the midst of one. A signal handler that forks there leaves a child that must
// not go on with the call it interrupted: a lock of it may be held for ever.
inline void fork_check() {
  std::atomic<std::uint32_t>* word = detail::fork_word;
  // Acquire: pairs with the release at the end of fork_recover() on another thread of the child.
  if (word != nullptr && word->load(std::memory_order_acquire) != 1) [[unlikely]]
    detail::fork_recover();
}

// What else a child's recovery is to make right: counts of threads that its parent alone has.
// Called before any thread of the child comes out of fork_check(); is_forker: on the thread that
// called fork, which has a thread_local share in those counts.
inline constinit std::atomic<void (*)(bool is_forker)> count_after_fork{nullptr};

// Whether the caller is the first thread of the process, as far as that is known without a system
// call: since the initialisation, or the recovery in a child.
inline bool is_known_first_thread() {
  return thread_id() == detail::first_thread.load(std::memory_order_relaxed);
}

// Whether the process that calls is the one whose memory this is, and not a child of vfork(), which
// has its parent's, or of clone(CLONE_VM). After fork_check(); a system call.
inline bool memory_is_own() {
  return detail::known_process.load(std::memory_order_relaxed) == os::process_id();
}
// Whether it is another's that is there still. Where such a child was the first to allocate, it is
// the one known, and the memory its parent's once it is gone.
inline bool memory_is_anothers() {
  return !memory_is_own() &&
         os::process_exists(detail::known_process.load(std::memory_order_relaxed));
}

}  // namespace rdmalloc
