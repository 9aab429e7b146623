// The one lock of rdmalloc: a futex word that knows its owner.
//
//   0                free
//   tid              held, nobody waits
//   tid | kWaiters   held, somebody may be in futex_wait
//
// No lock is held while foreign code runs (I2): checked builds count the locks a thread holds, and
// assert_no_lock_held() guards every call out. The owner's id serves fork: a lock found held by a
// thread that does not exist in the child tells which structure must be rebuilt (docs/design.md).
// Constant-initialised, never destroyed, usable before any constructor.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/os/os.h"

namespace rdmalloc {

namespace detail {
extern constinit thread_local std::uint32_t this_thread_id;  // 0 until first asked
// What alloc/fork.cc has to do before a wait, once there is an arena; locks are below it. Relaxed:
// a function.
extern constinit std::atomic<void (*)()> before_lock_wait;
#if RDMALLOC_CHECKED
extern constinit thread_local int locks_held;
[[noreturn]] void lock_violation(const char* what);
#endif
}  // namespace detail

// gettid, cached.
inline std::uint32_t thread_id() {
  if (detail::this_thread_id == 0) [[unlikely]]
    detail::this_thread_id = static_cast<std::uint32_t>(os::thread_id());
  return detail::this_thread_id;
}
// In the child of a fork. It never becomes 0: a signal handler may have forked between the two
// loads of thread_id().
inline void renew_thread_id() {
  detail::this_thread_id = static_cast<std::uint32_t>(os::thread_id());
}

// The ids by which a thread's locks may be known: that of now, and those from before forks that
// nothing has made good yet. A signal handler's child that forks at once, and again, has several.
class ThreadNames {
 public:
  constexpr ThreadNames() = default;
  // 0, an id that was never asked for, names no lock.
  constexpr explicit ThreadNames(std::uint32_t id) : ids_{id} {}

  bool has(std::uint32_t id) const {
    if (id == 0) return false;
    for (std::uint32_t known : ids_)
      if (known == id) return true;
    return false;
  }
  // Of more than fit, the first and the latest remain: between them only locks can have been taken
  // that a handler's children took between forks of theirs.
  void add(std::uint32_t id) {
    if (has(id)) return;
    for (std::uint32_t& known : ids_) {
      if (known != 0) continue;
      known = id;
      return;
    }
    for (int i = 1; i + 1 < kMost; ++i) ids_[i] = ids_[i + 1];
    ids_[kMost - 1] = id;
  }

 private:
  static constexpr int kMost = 4;
  std::uint32_t ids_[kMost] = {};
};

// The thread that called fork: what it was called in the parent (nothing: not known), and the id
// it has in the child.
struct Forker {
  ThreadNames was;
  std::uint32_t is;

  bool is_called(std::uint32_t id) const { return id == is || was.has(id); }
};

class Lock {
 public:
  constexpr Lock() = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() {
    std::uint32_t expected = 0;
    // Acquire: pairs with the release in unlock() of whoever held it before.
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
  // The id of the thread that holds it, 0 when free: a hint, but exact in a fork child.
  std::uint32_t owner() const { return word_.load(std::memory_order_relaxed) & ~kWaiters; }
  // Frees a lock held by `dead_owner`, a thread that exists no more, unless somebody else did
  // already.
  void reset_from(std::uint32_t dead_owner) {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    if ((seen & ~kWaiters) == dead_owner)
      word_.compare_exchange_strong(seen, 0, std::memory_order_relaxed);
  }
  // For a fork child only: whether it is held by a thread that is not there. Not by the one that
  // forked, in a signal handler in the midst of malloc: that one will go on, and release it. It is
  // held in its new name from now on, by which the children of this child will know it.
  bool is_orphaned(const Forker& forker) {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    std::uint32_t owner = seen & ~kWaiters;
    if (owner == 0 || owner == forker.is) return false;
    if (!forker.is_called(owner)) return true;
    // By exchange: perhaps it is not this thread that makes the child whole.
    word_.compare_exchange_strong(seen, forker.is | (seen & kWaiters), std::memory_order_relaxed);
    return false;
  }
  // For a fork child only: frees a lock whose owner exists no more.
  void reset() { word_.store(0, std::memory_order_relaxed); }
  // For a fork child only: takes a lock whose owner exists no more. Between the two it is never
  // free: a child of this child, forked while the structure is being made anew, must see that too.
  void take_over() {
    word_.store(thread_id(), std::memory_order_relaxed);
    note_held(+1);
  }

 private:
  static constexpr std::uint32_t kWaiters = 0x80000000u;  // thread ids are below 2^22 (pid_max)

  void lock_contended();
  const std::uint32_t* address() const { return reinterpret_cast<const std::uint32_t*>(&word_); }
  static void note_held([[maybe_unused]] int change) {
#if RDMALLOC_CHECKED
    detail::locks_held += change;
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

// To be called before any registrar, notifier, observer or other foreign code (I2).
inline void assert_no_lock_held([[maybe_unused]] const char* where) {
#if RDMALLOC_CHECKED
  if (detail::locks_held != 0) detail::lock_violation(where);
#endif
}

}  // namespace rdmalloc
