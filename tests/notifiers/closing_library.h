// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <stddef.h>

#include <atomic>

struct ClosingLibrary {
  void* to_close;                  // by the destructor
  void (*at_end)();                // called by the destructor
  std::atomic<bool> stays_inside;  // ucm_vm_munmap() returns once it is false
  std::atomic<bool> is_inside;
  std::atomic<int> calls;
  std::atomic<void (*)()> at_look;  // called once by fabric_over_ucm
};
extern "C" ClosingLibrary* closing_library_state();
