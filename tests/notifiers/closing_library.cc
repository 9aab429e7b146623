// SPDX-License-Identifier: BSD-3-Clause
//
// As much of libucm as closing_preloaded wants, in a library that can be unloaded and that closes
// another one while it is, as libfabric closes its providers.
#include "tests/notifiers/closing_library.h"

#include <dlfcn.h>
#include <unistd.h>

namespace {

ClosingLibrary state = {};

__attribute__((destructor)) void end() {
  if (state.to_close != nullptr) dlclose(state.to_close);
  if (state.at_end != nullptr) state.at_end();
}

}  // namespace

extern "C" {

void ucm_vm_munmap(void*, size_t) {
  for (state.calls++; state.stays_inside; state.is_inside = true) usleep(1000);
}
ClosingLibrary* closing_library_state() {
  return &state;
}
}
