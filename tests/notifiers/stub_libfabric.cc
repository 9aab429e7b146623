// SPDX-License-Identifier: BSD-3-Clause
//
// As much of a libfabric as importing a memory monitor needs, for veto_test: the real one asks a
// monitor only when a device registers memory. Loaded by dlopen, under a file name that begins as
// libfabric's does.
#include "tests/notifiers/stub_libfabric.h"

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>

namespace {

stub_libfabric state;

int close_cache(fid*) {
  state.closes++;
  return 0;
}
int close_monitor(fid*) {
  state.closes++;
  state.monitor = nullptr;
  return 0;
}
void notify(fid_mem_monitor*, const void* address, size_t length) {
  state.notified(address, length);
}
fi_ops monitor_operations = {};
fi_ops_mem_notify notify_operations = {sizeof notify_operations, notify};

int import(fid*, fid* what, uint64_t) {
  if (state.monitor != nullptr) return -FI_EBUSY;
  state.monitor = reinterpret_cast<fid_mem_monitor*>(what);
  monitor_operations.size = sizeof monitor_operations;
  monitor_operations.close = close_monitor;
  what->ops = &monitor_operations;
  state.monitor->import_ops = &notify_operations;
  if (state.imported != nullptr) state.imported();
  return 0;
}
fi_ops cache_operations = {};
fid cache = {};

}  // namespace

// What it is known by.
extern "C" uint32_t fi_version() {
  return FI_VERSION(1, 17);
}

extern "C" int fi_open(uint32_t, const char*, void*, size_t, uint64_t, fid** out, void*) {
  cache_operations.size = sizeof cache_operations;
  cache_operations.close = close_cache;
  cache_operations.bind = import;
  cache.ops = &cache_operations;
  *out = &cache;
  return 0;
}

extern "C" stub_libfabric* stub_libfabric_state() {
  return &state;
}
