// SPDX-License-Identifier: BSD-3-Clause
//
// A library that takes its time to go: longer than purges are held for a dlclose(), and on as long
// as it is told to.
#include <unistd.h>

#include <atomic>

extern "C" {
extern std::atomic<bool> slow_to_close_stays;
std::atomic<bool> slow_to_close_stays{false};
}

namespace {
__attribute__((destructor)) void end() {
  usleep(700000);
  while (slow_to_close_stays) usleep(1000);
}
}  // namespace
