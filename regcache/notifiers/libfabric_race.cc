#include "regcache/notifiers/libfabric_race.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/notifiers/closes.h"
#include "regcache/notifiers/notifiers.h"

namespace rdmalloc {
namespace {

// fi_version() answers (major << 16) | minor, in every release; the patch level is not told.
using VersionFunction = std::uint32_t (*)();
constexpr std::uint32_t kRacing = (2u << 16u) | 6u;

// No purge happens on a thread of ours, or libfabric keeps no registrations that one could concern.
bool never_applies() {
  if (!has_purge_thread(options().purge) || options().notify == NotifyMode::kOff) return true;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): as libfabric reads it
  const char* count = getenv("FI_MR_CACHE_MAX_COUNT");
  return count != nullptr && strcmp(count, "0") == 0;
}

}  // namespace

void libfabric_race_warn() {
  static constinit std::atomic<bool> is_said{false};
  if (is_said.load(std::memory_order_relaxed) || never_applies()) return;
  LookedAtLibrary fabric(kFabricFunction);
  auto version = reinterpret_cast<VersionFunction>(fabric.symbol(kFabricFunction));
  if (version == nullptr || version() != kRacing || is_said.exchange(true)) return;
  report_warning(
      "libfabric 2.6 is loaded, and its registration cache may crash or hang when another "
      "thread tells it of a purge",
      "set RDMALLOC_PURGE=off or FI_MR_CACHE_MAX_COUNT=0, or use another release of it");
}

}  // namespace rdmalloc
