#include "regcache/notifiers/watching.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <atomic>

#include "alloc/for_regcache.h"

namespace rdmalloc {
namespace {

// opal/memoryhooks/memory.h: OPAL_MEMORY_FREE_SUPPORT, _MUNMAP_SUPPORT and _CHUNK_SUPPORT; what its
// patcher claims for itself, and what OPAL's caches ask for before they keep a registration.
constexpr int kOpalAllSupport = 7;
// ucm/api/ucm.h: UCM_EVENT_VM_UNMAPPED.
constexpr int kUcmUnmapped = 1 << 17;

RDMALLOC_AT_START constinit std::atomic<bool (*)()> can_watch{nullptr};

// The libraries read them the same way.
const char* setting(const char* name) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  return getenv(name);
}

bool opal_hooks_are_off() {
  // A list of components: those wanted, or behind ^ those unwanted.
  const char* list = setting("OMPI_MCA_memory");
  if (list == nullptr || *list == 0) return false;
  return (*list == '^') == (strstr(list, "patcher") != nullptr);
}
bool ucx_hooks_are_off() {
  const char* mode = setting("UCX_MEM_MMAP_HOOK_MODE");
  return mode != nullptr && strcasecmp(mode, "none") == 0;
}

}  // namespace

bool can_watch_foreign() {
  auto* ask = can_watch.load(std::memory_order_relaxed);
  return ask != nullptr && ask();
}
void set_can_watch_foreign(bool (*ask)()) {
  can_watch.store(ask, std::memory_order_relaxed);
}

const ForeignWatch opal_watch = {opal_hooks_are_off, "opal_mem_hooks_set_support", kOpalAllSupport};
const ForeignWatch ucm_watch = {ucx_hooks_are_off, "ucm_set_external_event", kUcmUnmapped};

}  // namespace rdmalloc
