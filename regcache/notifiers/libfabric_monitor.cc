#include "regcache/notifiers/libfabric_monitor.h"

#include <errno.h>
#include <rdmalloc/rdmalloc.h>
#include <stdlib.h>

#if __has_include(<rdma/fi_ext.h>)
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#endif

#include <atomic>

#include "alloc/for_regcache.h"
#include "regcache/core/loaded_library.h"
#include "regcache/notifiers/closes.h"
#include "regcache/notifiers/notifiers.h"

namespace rdmalloc {
namespace {

constinit std::atomic<std::uint64_t> refused{0};
constinit std::atomic<bool> is_started{false};
// As the last attach found it: the purge thread asks, and getenv() is not safe beside a program's
// setenv().
constinit std::atomic<bool> is_overridden{false};
// Changed by the phase's owner before it is the owner no more, as all that others see of an attach
// or detach. By the user: attached again by the user only.
constinit std::atomic<bool> was_detached{false};
constinit std::atomic<std::int32_t> last_error{-ENOENT};  // of an attach

// Who may change what lies below: the thread that moved it to kAttaching or kDetaching. It calls
// libfabric, so this is no lock, and another thread is refused. In a child of fork that lost that
// thread it stays so: libfabric's own lock may be held there for ever.
enum class Phase : std::uint32_t { kDetached, kAttaching, kAttached, kDetaching };
constinit std::atomic<Phase> phase{Phase::kDetached};

// Set by the first start(): until then libfabric's list of subscriptions is not initialised, and
// notify() would walk it (1.17 crashes). After a stop() the list is empty and safe. The import is
// complete before libfabric calls start(), and the detach that clears it runs beside no purge.
constinit std::atomic<bool> was_ever_started{false};

bool is_attached() {
  // Acquire: pairs with the release at the end of an attach.
  Phase now = phase.load(std::memory_order_acquire);
  return now == Phase::kAttached || now == Phase::kDetaching;
}

}  // namespace

#if defined(FI_ADDR_NOTAVAIL) && __has_include(<rdma/fi_ext.h>)

namespace {

using OpenFunction = int (*)(std::uint32_t, const char*, void*, std::size_t, std::uint64_t, fid**,
                             void*);

// ---- called by libfabric, under mm_lock: wait-free, no call out ----

int start(fid_mem_monitor*) {
  was_ever_started.store(true, std::memory_order_release);
  is_started.store(true, std::memory_order_release);
  return 0;
}

void stop(fid_mem_monitor*) {
  is_started.store(false, std::memory_order_release);
}

// The veto (I9): the library that takes this slot answers for all memory, and we hear of our own
// only. A nonzero answer makes libfabric register for this one use and not cache. rdmalloc_owns()
// is a compare with the arena's bounds; a range can't leave the arena and come back.
int subscribe(fid_mem_monitor*, const void* address, std::size_t length) {
  const char* last = static_cast<const char*>(address) + (length == 0 ? 0 : length - 1);
  if (rdmalloc_owns(address) && rdmalloc_owns(last)) return 0;
  refused.fetch_add(1, std::memory_order_relaxed);
  return -FI_EOPNOTSUPP;
}

void unsubscribe(fid_mem_monitor*, const void*, std::size_t) {
  // Nothing is kept for a subscription: libfabric hears of every purge and knows whom it concerns.
}

// What is cached stays right until a notification takes it out of the cache.
bool valid(fid_mem_monitor*, const void*, std::size_t) {
  return true;
}

// ---- the object ----

fi_ops_mem_monitor export_ops = {
    sizeof(fi_ops_mem_monitor), start, stop, subscribe, unsubscribe, valid};
fid_mem_monitor monitor;
fid* cache = nullptr;

// As the phase's owner.
int import() {
  if (!is_loaded(kFabricFunction)) return -ENOENT;
  LookedAtLibrary library(kFabricFunction);
  if (library.is_refused()) return -EAGAIN;
  auto open = reinterpret_cast<OpenFunction>(library.symbol("fi_open"));
  if (open == nullptr) return -ENOTSUP;
  // libfabric reads it the same way, and only its presence counts.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): on a program's thread, as libfabric
  is_overridden.store(getenv("FI_MR_CACHE_MONITOR") != nullptr, std::memory_order_relaxed);
  // While attached its functions are called from the purge thread.
  if (!keep_loaded(kFabricFunction)) return -ENOMEM;
  if (os::should_fail(os::Site::kImportMonitor) ||
      open(FI_VERSION(1, 13), "mr_cache", nullptr, 0, 0, &cache, nullptr) != 0)
    return -ENOTSUP;
  monitor = {};
  monitor.fid.fclass = FI_CLASS_MEM_MONITOR;
  monitor.export_ops = &export_ops;
  int error =
      os::should_fail(os::Site::kImportMonitor) ? -FI_EBUSY : fi_import_fid(cache, &monitor.fid, 0);
  if (error != 0) {  // undone in full: it can be tried again (I10)
    cache->ops->close(cache);
    cache = nullptr;
    return error == -FI_EBUSY ? -EBUSY : -ENOTSUP;
  }
  return 0;
}

// As the phase's owner.
int close_all() {
  if (is_started.load(std::memory_order_acquire)) return -EBUSY;  // a domain caches with it
  // The order that libfabric wants: domains, then the cache's fid, then the monitor, whose close is
  // libfabric's own (the import filled it in) and frees the slot. As long as it has the monitor it
  // may start it, so it is notified until then; a fid that would not close is closed by the next
  // detach.
  if (cache != nullptr) {
    if (os::should_fail(os::Site::kCloseMonitor) || cache->ops->close(cache) != 0) return -EBUSY;
    cache = nullptr;
  }
  if (os::should_fail(os::Site::kCloseMonitor) || monitor.fid.ops->close(&monitor.fid) != 0)
    return -EBUSY;
  was_ever_started.store(false, std::memory_order_release);
  return 0;
}

}  // namespace

int libfabric_monitor_attach(bool is_by_user) {
  Phase seen = Phase::kDetached;
  // Acquire: pairs with the release of the attach or detach before it.
  if (!phase.compare_exchange_strong(seen, Phase::kAttaching, std::memory_order_acquire))
    return seen == Phase::kAttached ? -EALREADY : -EAGAIN;
  if (is_by_user) was_detached.store(false, std::memory_order_relaxed);
  int error = -ENOENT;
  if (!was_detached.load(std::memory_order_relaxed)) {
    error = import();
    last_error.store(error, std::memory_order_relaxed);
  }
  phase.store(error == 0 ? Phase::kAttached : Phase::kDetached, std::memory_order_release);
  return error;
}

int libfabric_monitor_detach() {
  Phase seen = Phase::kAttached;
  // Acquire: as in the attach.
  if (!phase.compare_exchange_strong(seen, Phase::kDetaching, std::memory_order_acquire))
    return seen == Phase::kDetaching ? -EBUSY : -ENOENT;
  int error = close_all();
  if (error == 0) was_detached.store(true, std::memory_order_relaxed);
  phase.store(error == 0 ? Phase::kDetached : Phase::kAttached, std::memory_order_release);
  return error;
}

void libfabric_monitor_notify(std::uintptr_t base, std::size_t length) {
  // Acquire: pairs with the release in start(). Not the phase: a domain may start it before the
  // attach has returned.
  if (!was_ever_started.load(std::memory_order_acquire)) return;
  ranges_notified.libfabric.fetch_add(1, std::memory_order_relaxed);
  monitor.import_ops->notify(&monitor, reinterpret_cast<const void*>(base), length);
}

#else

int libfabric_monitor_attach(bool) {
  int error = is_loaded(kFabricFunction) ? -ENOTSUP : -ENOENT;
  last_error.store(error, std::memory_order_relaxed);
  return error;
}
int libfabric_monitor_detach() {
  return -ENOENT;
}
void libfabric_monitor_notify(std::uintptr_t, std::size_t) {}

#endif

LibfabricMonitorState libfabric_monitor_state() {
  return {is_attached(),
          is_started.load(std::memory_order_acquire),
          is_overridden,
          ranges_notified.libfabric.load(std::memory_order_relaxed),
          refused.load(std::memory_order_relaxed),
          last_error.load(std::memory_order_relaxed)};
}

}  // namespace rdmalloc
