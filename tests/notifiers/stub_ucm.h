// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stddef.h>

// What libc's madvise (dontneed) and ucm_vm_munmap() were called for, in bytes.
struct StubUcm {
  size_t hooked, called;
  void (*at_external)();  // called by ucm_set_external_event(), unless nullptr
};
extern "C" StubUcm* stub_ucm_state();

// Writes a jump to `hook` over the beginning of libc's madvise, as UCX, OPAL and libfabric do.
bool patch_madvise(int (*hook)(void*, size_t, int));
