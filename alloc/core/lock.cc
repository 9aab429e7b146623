#include "alloc/core/lock.h"

#include "alloc/core/fork.h"
#include "alloc/core/report.h"

namespace rdmalloc {

namespace {
// Relaxed: each number is given once, and orders nothing.
constinit std::atomic<std::uint32_t> last_thread_id{0};
}  // namespace

namespace detail {
constinit thread_local std::uint32_t this_thread_id = 0;
std::uint32_t make_thread_id() {
  std::uint32_t id = 0;
  while (id == 0) id = (last_thread_id.fetch_add(1, std::memory_order_relaxed) + 1) & kMostThreadId;
  return this_thread_id = id;
}
#if RDMALLOC_CHECKED
constinit thread_local int locks_held = 0;
void lock_violation(const char* what) {
  report_fatal("I2 violated: an rdmalloc lock is held on the way into foreign code", what);
}
void check_recovered() {
  if (fork_word != nullptr && fork_word->load(std::memory_order_relaxed) == 0)
    report_fatal("I11 violated: a lock is taken in a fork child before its recovery",
                 "core/fork.h");
}
#endif
}  // namespace detail

void Lock::lock_contended() {
  // A short spin first: the sections under our locks are a few hundred ns, a futex round is 2-5 us.
  for (int spin = 0; spin < 100; ++spin) {
    std::uint32_t expected = 0;
    if (word_.load(std::memory_order_relaxed) == 0 &&
        word_.compare_exchange_weak(expected, thread_id(), std::memory_order_acquire,
                                    std::memory_order_relaxed))
      return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  // From here on we may have slept, so other sleepers must be woken by our unlock: take the
  // lock with the waiters bit set.
  for (;;) {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    if (seen == 0) {
      if (word_.compare_exchange_weak(seen, thread_id() | kWaiters, std::memory_order_acquire,
                                      std::memory_order_relaxed))
        return;
      continue;
    }
    if ((seen & kWaiters) == 0 &&
        !word_.compare_exchange_weak(seen, seen | kWaiters, std::memory_order_relaxed))
      continue;
    os::futex_wait(address(), seen | kWaiters, -1);
  }
}

}  // namespace rdmalloc
