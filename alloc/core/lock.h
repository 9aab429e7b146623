// The one lock of rdmalloc: a futex word that knows its owner.
//
//   0                   free
//   number              held, no thread waits
//   number | kWaiters   held, a thread may be in futex_wait
//
// No lock is held while foreign code runs (I2): checked builds count the locks a thread holds, and
// assert_no_lock_held() guards every call out. So a lock that is held in a fork child belongs to a
// call that does not go on there, and tells which structure must be rebuilt (docs/design.md).
// Constant-initialised, never destroyed, usable before any constructor.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/os/os.h"

namespace rdmalloc {

namespace detail {
extern constinit thread_local std::uint32_t this_thread_id;  // 0 until first asked
std::uint32_t make_thread_id();
#if RDMALLOC_CHECKED
extern constinit thread_local int locks_held;
[[noreturn]] void lock_violation(const char* what);
// Aborts in a fork child that has not recovered: the lock may be that of a thread that is not
// there.
void check_recovered();
#endif
}  // namespace detail

// What the calling thread is known by: a number below kMostThreadId that no other thread has, nor
// any of this process's parents and children, and that stays the thread's own in a child that it
// forks. Not the kernel's id, which is another in the child, and may there be that of a thread
// which vanished: in a container the main thread is 1, and so is a child with a pid namespace of
// its own.
inline std::uint32_t thread_id() {
  if (detail::this_thread_id == 0) [[unlikely]]
    return detail::make_thread_id();
  return detail::this_thread_id;
}
// Numbers begin again behind this. A purge turn that a fork found with the billionth thread before
// the one that forked would then be taken for its own.
inline constexpr std::uint32_t kMostThreadId = (1u << 30) - 1;

// The thread that called fork, in the child: the only one there.
struct Forker {
  std::uint32_t id;
};

class Lock {
 public:
  constexpr Lock() = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() {
    std::uint32_t expected = 0;
    // Acquire: pairs with the release in unlock() of the thread that held it before.
    if (!word_.compare_exchange_strong(expected, thread_id(), std::memory_order_acquire,
                                       std::memory_order_relaxed)) [[unlikely]]
      lock_contended();
    note_held(+1);
  }
  bool try_lock() {
    std::uint32_t expected = 0;
    if (!word_.compare_exchange_strong(expected, thread_id(), std::memory_order_acquire,
                                       std::memory_order_relaxed))
      return false;
    note_held(+1);
    return true;
  }
  void unlock() {
    note_held(-1);
    // Release: pairs with the acquire of the next lock().
    if (word_.exchange(0, std::memory_order_release) & kWaiters) [[unlikely]]
      os::futex_wake(address(), 1);
  }
  // Whether it was held a moment ago: a hint.
  bool is_taken() const { return word_.load(std::memory_order_relaxed) != 0; }
  // For a fork child that recovers, where each lock that is held was taken before the fork.
  bool is_orphaned() const { return word_.load(std::memory_order_relaxed) != 0; }
  // There: frees it.
  void reset() { word_.store(0, std::memory_order_relaxed); }
  // There: what it guards is to be made anew, whether or not it was held.
  void orphan() { word_.store(thread_id(), std::memory_order_relaxed); }
  // There: takes it. Between the two it is never free: a child of this child, forked while the
  // structure is being made anew, must see that too.
  void take_over() {
    word_.store(thread_id(), std::memory_order_relaxed);
    note_held(+1);
  }

 private:
  static constexpr std::uint32_t kWaiters = 0x80000000u;
  static_assert(kMostThreadId < kWaiters);

  void lock_contended();
  const std::uint32_t* address() const { return reinterpret_cast<const std::uint32_t*>(&word_); }
  static void note_held([[maybe_unused]] int change) {
#if RDMALLOC_CHECKED
    detail::locks_held += change;
    if (change > 0) detail::check_recovered();
#endif
  }

  std::atomic<std::uint32_t> word_{0};
};

class LockGuard {
 public:
  explicit LockGuard(Lock& lock) : lock_(lock) { lock_.lock(); }
  // Of a lock that this thread holds already.
  struct Held {};
  LockGuard(Lock& lock, Held) : lock_(lock) {}
  ~LockGuard() { lock_.unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  Lock& lock_;
};

// A seq_cst fence of a thread that unlocks a Lock before the loads which are to come after what is
// stored here, or has unlocked one since those stores: on x86 the exchange in unlock() is one, and
// neither GCC nor Clang moves a load before an exchange. A signal fence behind it would say so, and
// makes three functions save registers that they don't need.
inline void fence_beside_unlock() {
#if defined(__x86_64__)
  std::atomic_signal_fence(std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// To be called before any registrar, notifier, observer or other foreign code (I2).
inline void assert_no_lock_held([[maybe_unused]] const char* where) {
#if RDMALLOC_CHECKED
  if (detail::locks_held != 0) detail::lock_violation(where);
#endif
}

}  // namespace rdmalloc
