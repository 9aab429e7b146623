// SPDX-License-Identifier: BSD-3-Clause
//
// rdmalloc's settings and counters by name, for tests over the prefixed library.
#pragma once

#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <unistd.h>

#include <cstdint>
#include <functional>

namespace rdmalloc_test {

inline uint64_t counter(const char* name) {
  uint64_t value = 0;
  size_t size = sizeof value;
  int error = rdmalloc_ctl(name, &value, &size, nullptr, 0);
  EXPECT_EQ(error, 0) << name;
  return value;
}

inline void set(const char* name, uint64_t value) {
  EXPECT_EQ(rdmalloc_ctl(name, nullptr, nullptr, &value, sizeof value), 0) << name;
}

// Looks every millisecond whether `what` is true. What never comes is ended by the test's own
// limit, which shows where each thread is: that is how a test fails that waits.
inline void wait_until(const std::function<bool()>& what) {
  while (!what()) usleep(1000);
}

}  // namespace rdmalloc_test
