#include "regcache/core/at_exit.h"

#include <link.h>
#include <stdlib.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/core/report.h"
#include "alloc/os/fault.h"
#include "alloc/pages/purge.h"

namespace rdmalloc {
namespace {

// For a purge under way, in which a registrar may be at work. Bounded: the caller of exit() may
// hold what that waits for.
constexpr int kWaitMs = 1000;

constinit std::atomic<bool> has_begun{false};
constinit std::atomic<unsigned long long> registered_after{0};  // loads of libraries

void begin_exit() {
  // Release: pairs with the acquire in exit_has_begun().
  if (!has_begun.exchange(true, std::memory_order_release)) purge_hold(INT64_MAX, kWaitMs);
}

// How many libraries were ever loaded: more than 0.
unsigned long long loads() {
  unsigned long long count = 1;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* arg) {
        *static_cast<unsigned long long*>(arg) = info->dlpi_adds;
        return 1;
      },
      &count);
  return count != 0 ? count : 1;
}

}  // namespace

void hold_at_exit() {
  unsigned long long now = loads();
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
