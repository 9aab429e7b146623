#include "regcache/core/at_exit.h"

#include <stdlib.h>

#include <atomic>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/core/loaded_library.h"

namespace rdmalloc {
namespace {

// For a purge under way, in which a registrar may be at work. Bounded: the caller of exit() may
// hold what that waits for.
constexpr int kWaitMs = 1000;

constinit std::atomic<bool> has_begun{false};
constinit std::atomic<std::uint64_t> registered_after{0};  // loads of libraries
// Stands for all loads where they can't be counted.
constexpr std::uint64_t kUncounted = UINT64_MAX;

void begin_exit() {
  // Release: pairs with the acquire in exit_has_begun().
  if (!has_begun.exchange(true, std::memory_order_release)) purge_hold(INT64_MAX, kWaitMs);
}

}  // namespace

void hold_at_exit() {
  // A child of fork can't ask what was loaded since, and so registers it once more, and no more:
  // each takes 32 bytes of libc's. What the child loads after that, and itself registers at exit,
  // ends before our handler.
  std::uint64_t now = is_walk_safe() ? loads_so_far().loaded + 1 : kUncounted;
  // Relaxed: two at once register it twice, which does no harm.
  if (registered_after.exchange(now, std::memory_order_relaxed) == now) return;
  if (!os::should_fail(os::Site::kExitHandler) && atexit(begin_exit) == 0) return;
  registered_after.store(0, std::memory_order_relaxed);
  report_warning("libc takes no exit handler",
                 "purges go on while fabrics are taken apart; RDMALLOC_PURGE=manual has none");
}

bool exit_has_begun() {
  return has_begun.load(std::memory_order_acquire);
}

}  // namespace rdmalloc
