// SPDX-License-Identifier: BSD-3-Clause
//
// A libfabric that is nothing but its release, which the environment tells: "2.6". For
// libfabric_race_test.py; loaded under a file name that begins as libfabric's does.
#include <stdint.h>
#include <stdlib.h>

extern "C" __attribute__((visibility("default"))) uint32_t fi_version() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread, and none sets it
  const char* release = getenv("STUB_LIBFABRIC_RELEASE");
  if (release == nullptr) return 0;
  char* rest = nullptr;
  uint32_t major = static_cast<uint32_t>(strtoul(release, &rest, 10));
  return (major << 16u) | static_cast<uint32_t>(strtoul(rest + 1, nullptr, 10));
}
