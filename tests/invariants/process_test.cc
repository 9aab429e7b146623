// SPDX-License-Identifier: BSD-3-Clause
//
// Invariants that are seen from outside malloc: the programs beside this file, run on rdmalloc, and
// on other mallocs as controls that must be caught.
#include "tests/support/process.h"

#include <gtest/gtest.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

namespace {

using rdmalloc_test::ChildOptions;
using rdmalloc_test::ChildResult;

ChildResult run_on(const std::string& preload, const std::vector<std::string>& argv,
                   std::vector<std::string> environment = {}) {
  ChildOptions options;
  options.environment = std::move(environment);
  options.environment.push_back(preload.empty() ? "LD_PRELOAD" : "LD_PRELOAD=" + preload);
  options.limit_ms = 400000;
  ChildResult result = run_child(argv, options);
  printf("%s", result.output.c_str());
  return result;
}

bool says(const ChildResult& result, const std::string& line) {
  return ("\n" + result.output).find("\n" + line + "\n") != std::string::npos;
}

uint64_t value_of(const ChildResult& result, const std::string& name) {
  size_t at = ("\n" + result.output).find("\n" + name + "=");
  return at == std::string::npos
             ? 0
             : strtoull(result.output.c_str() + at + name.size() + 1, nullptr, 10);
}

// Deliver 6c: 4 threads, 10^7 operations, 1 B to 8 MiB.
TEST(Process, I1_ten_million_operations_make_no_forbidden_call) {
  ChildResult result = run_on(RDMALLOC_LIBRARY, {I1_TRACE, "4", "2500000"});
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_TRUE(says(result, "operations=10000000 forbidden=0"));
}

TEST(Process, I1_no_forbidden_call_while_everything_free_is_purged_at_once) {
  ChildResult result = run_on(RDMALLOC_LIBRARY, {I1_TRACE, "4", "250000"}, {"RDMALLOC_DECAY_MS=0"});
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_GT(value_of(result, "purges"), 100u) << "nothing was purged meanwhile";
}

TEST(Process, I1_no_forbidden_call_at_a_low_ceiling) {
  ChildResult result =
      run_on(RDMALLOC_LIBRARY, {I1_TRACE, "4", "250000"}, {"RDMALLOC_DIRTY_MAX=1M"});
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_GT(value_of(result, "purges"), 10u) << "nothing was purged meanwhile";
}

// Seen to fail with a purge on the calling thread.
TEST(Process, I1_taking_memory_back_makes_no_forbidden_call) {
  ChildResult result =
      run_on(RDMALLOC_LIBRARY, {I1_TRACE, "4", "20000", "refused"}, {"RDMALLOC_LIMIT=24M"});
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_GT(value_of(result, "take_backs"), 100u) << "no allocation came to the limit";
}

TEST(Process, I1_control_a_malloc_that_calls_madvise_is_caught) {
  ChildResult result = run_on(MADVISE_MALLOC_LIBRARY, {I1_TRACE, "4", "2500"});
  EXPECT_EQ(result.exit_code, 1) << result.describe();
  EXPECT_GT(value_of(result, "madvise"), 0u);
}

TEST(Process, I1_control_libc_malloc_is_caught) {
  // munmap of large blocks, brk and madvise of its arenas.
  ChildResult result = run_on("", {I1_TRACE, "4", "25000"});
  EXPECT_EQ(result.exit_code, 1) << result.describe();
  EXPECT_GT(value_of(result, "munmap"), 0u);
}

TEST(Process, I8_text_slots_and_break_are_untouched) {
  ChildResult result = run_on(RDMALLOC_LIBRARY, {I8_UNTOUCHED}, {"RDMALLOC_DECAY_MS=0"});
  EXPECT_TRUE(result.clean()) << result.describe();
}

TEST(Process, I8_control_a_patched_function_is_seen) {
  ChildResult result = run_on(RDMALLOC_LIBRARY, {I8_UNTOUCHED, "patch"});
  EXPECT_EQ(result.exit_code, 1) << result.describe();
  EXPECT_NE(result.output.find("differs from its file"), std::string::npos);
}

TEST(Process, I8_control_the_break_of_libc_malloc_is_seen) {
  ChildResult result = run_on("", {I8_UNTOUCHED});
  EXPECT_EQ(result.exit_code, 1) << result.describe();
  EXPECT_TRUE(says(result, "the break moved"));
}

}  // namespace
