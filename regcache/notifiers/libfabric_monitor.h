// libfabric's memory monitor, imported (fi_open "mr_cache", fi_import_fid; libfabric 1.14 and
// later).
//
// What libfabric calls, it calls under its global lock (mm_lock), and notify() takes that lock: so
// subscribe, unsubscribe and valid are wait-free here, and we notify from the purge thread with no
// lock of ours held.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc {

// 0, -ENOENT (also where the user has detached it, and does not attach it), -EALREADY, -EBUSY,
// -ENOTSUP, -ENOMEM; -EAGAIN while another call attaches or detaches it, or a dlclose() is under
// way. On a program's thread, several at once.
int libfabric_monitor_attach(bool is_by_user);
// 0, -ENOENT, or -EBUSY while a domain uses it, or when libfabric does not give it up: then it is
// attached as before, and while another call detaches it. No notification may run meanwhile:
// purging is paused.
int libfabric_monitor_detach();
// Notifies of the range, if it has ever been started. Purge thread.
void libfabric_monitor_notify(std::uintptr_t base, std::size_t length);

struct LibfabricMonitorState {
  bool is_attached, is_started;
  bool is_overridden;  // FI_MR_CACHE_MONITOR in the environment: the import is silently ignored
  std::uint64_t notified, refused;
  std::int32_t error;  // of the last attach that was no other's to do
};
LibfabricMonitorState libfabric_monitor_state();

}  // namespace rdmalloc
