// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stddef.h>

struct fid_mem_monitor;

struct stub_libfabric {
  fid_mem_monitor* monitor;  // what was imported; nullptr when none is
  int closes;                // of fids: the cache's and the monitor's
  void (*notified)(const void* address, size_t length);
  void (*imported)();  // called inside an import, unless nullptr
};
extern "C" stub_libfabric* stub_libfabric_state();
