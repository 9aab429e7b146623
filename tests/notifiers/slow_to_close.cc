// SPDX-License-Identifier: BSD-3-Clause
//
// A library that takes its time to go: longer than purges are held for a dlclose().
#include <unistd.h>

namespace {
__attribute__((destructor)) void end() {
  usleep(700000);
}
}  // namespace
