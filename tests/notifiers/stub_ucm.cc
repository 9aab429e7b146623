// SPDX-License-Identifier: BSD-3-Clause
//
// As much of libucm as explicit_preloaded wants: it patches libc's madvise when it is loaded, as
// the real one does, and has the call by which it can be told. Never unloaded.
#include "tests/notifiers/stub_ucm.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

StubUcm state = {};

int madvise_hook(void* address, size_t length, int advice) {
  if (advice == MADV_DONTNEED) state.hooked += length;
  return static_cast<int>(syscall(SYS_madvise, address, length, advice));
}

__attribute__((constructor)) void begin() {
  if (!patch_madvise(madvise_hook)) puts("SKIP: no patch of madvise for this machine");
}

}  // namespace

extern "C" {

void ucm_vm_munmap(void*, size_t length) {
  state.called += length;
}
void ucm_set_external_event(int) {
  if (state.at_external != nullptr) state.at_external();
}
StubUcm* stub_ucm_state() {
  return &state;
}
}
