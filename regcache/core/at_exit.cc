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

void begin_exit() {
  // Release: pairs with the acquire in exit_has_begun().
  if (!has_begun.exchange(true, std::memory_order_release)) purge_hold(INT64_MAX, kWaitMs);
}

}  // namespace

void hold_at_exit() {
  // A child of fork can't ask what was loaded since, and so registers it each time.
  bool is_known = is_walk_safe();
  std::uint64_t now = is_known ? loads_so_far().loaded + 1 : 0;
  // Relaxed: two at once register it twice, which does no harm.
  if (registered_after.exchange(now, std::memory_order_relaxed) == now && is_known) return;
  if (!os::should_fail(os::Site::kExitHandler) && atexit(begin_exit) == 0) return;
  registered_after.store(0, std::memory_order_relaxed);
  report_warning("libc takes no exit handler",
                 "purges go on while fabrics are taken apart; RDMALLOC_PURGE=manual has none");
}

bool exit_has_begun() {
  return has_begun.load(std::memory_order_acquire);
}

}  // namespace rdmalloc
