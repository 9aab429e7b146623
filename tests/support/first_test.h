// SPDX-License-Identifier: BSD-3-Clause
//
// Tests that want a process where rdmalloc has done nothing yet. ctest gives each test its own;
// where several run in one, a later one runs in another, or may skip. The first one of a process
// may not: there it is rdmalloc that has done more.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/support/process.h"

namespace rdmalloc_test {

inline bool is_first_test() {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  int begun = 0;  // what has not is among the successful ones
  for (int i = 0; i < all.total_test_suite_count(); i++) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); j++)
      begun += suite.GetTestInfo(j)->result()->start_timestamp() != 0;
  }
  static bool has_asked = false;  // --gtest_repeat counts anew
  return !std::exchange(has_asked, true) && begun == 1;
}

// Of a test that is not the first one: runs it in a process of its own, by whose end it passes or
// fails, and the caller returns.
inline bool is_run_apart() {
  if (is_first_test()) return false;
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test.test_suite_name()) + "." + test.name();
  const ChildResult result = run_child({"/proc/self/exe", "--gtest_filter=" + name});
  EXPECT_TRUE(result.clean()) << result.describe();
  return true;
}

}  // namespace rdmalloc_test
