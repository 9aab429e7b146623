// SPDX-License-Identifier: BSD-3-Clause
//
// The making of the purge thread in programs and settings that are hard on it, and what is said
// when it fails. The programs are thread_moments.cc.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/process.h"

namespace {

using rdmalloc_test::ChildResult;

ChildResult run(const char* program, const char* what, std::vector<std::string> environment = {}) {
  environment.emplace_back("LD_PRELOAD=" RDMALLOC_LIBRARY);
  return rdmalloc_test::run_child({program, what}, {.environment = environment});
}
size_t warnings_in(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find("rdmalloc: ", at)) != std::string::npos; at++) count++;
  return count;
}

// libc puts static TLS on the stack of each thread. Seen to fail with 4 MiB for whatever there is.
TEST(PurgeThread, fits_the_thread_local_variables_of_the_program) {
  ChildResult result = run(THREAD_MOMENTS_TLS, "thread");
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(result.errors, "");
}

// Seen to fail without the second, larger try.
TEST(PurgeThread, fits_what_a_tunable_adds_to_them) {
  ChildResult result =
      run(THREAD_MOMENTS, "thread", {"GLIBC_TUNABLES=glibc.rtld.optional_static_tls=50000000"});
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(result.errors, "");
}

// Seen to fail, by a warning of GCC's sanitizer, with 64 KiB for the thread that reads files.
TEST(PurgeThread, has_stacks_that_leak_sanitizer_finds_large_enough) {
  if (!RDMALLOC_COMPILER_HAS_LEAK_SANITIZER) GTEST_SKIP() << "SKIP: no -fsanitize=leak";
  // What leaks is not asked: the malloc is ours, and the question wants ptrace.
  ChildResult result = run(LEAK_SANITIZER, "", {"LSAN_OPTIONS=detect_leaks=0"});
  if (result.exit_code == 77) GTEST_SKIP() << result.output;
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(result.errors, "");
}

// Seen to fail without leave_real_time().
TEST(PurgeThread, is_not_real_time_where_the_program_is) {
  ChildResult result = run(THREAD_MOMENTS, "thread");
  EXPECT_TRUE(result.clean()) << result.describe();
  if (result.output.find("not real-time") == std::string::npos)
    GTEST_SKIP() << "SKIP: no right to SCHED_FIFO (RLIMIT_RTPRIO)";
}

// Seen to fail with a failure that is remembered.
TEST(PurgeThread, I10_a_thread_that_can_not_be_made_is_tried_again_later) {
  ChildResult result = run(THREAD_MOMENTS, "again", {"RDMALLOC_FAULT=thread_create:1"});
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(warnings_in(result.errors), 1u) << result.errors;
  EXPECT_NE(result.errors.find("RLIMIT_NPROC"), std::string::npos) << result.errors;
}

// Seen to fail with one text for all causes, with one that named RLIMIT_AS alone, and with the
// error of a limit on locked memory (EAGAIN) taken for one on threads.
TEST(PurgeThread, a_thread_without_room_for_a_stack_is_said_to_have_none) {
  constexpr std::pair<const char*, const char*> kCauses[] = {
      {"no_room", "RLIMIT_AS"}, {"no_data", "RLIMIT_DATA"}, {"no_lock", "RLIMIT_MEMLOCK"}};
  for (auto [name, cause] : kCauses) {
    ChildResult result = run(THREAD_MOMENTS, name);
    EXPECT_TRUE(result.clean()) << result.describe();
    EXPECT_EQ(warnings_in(result.errors), 1u) << result.errors;
    EXPECT_NE(result.errors.find(cause), std::string::npos) << result.errors;
    EXPECT_EQ(result.errors.find("RLIMIT_NPROC"), std::string::npos) << result.errors;
  }
}

// Seen to fail, by hanging in rdmalloc_fini(), when the thread could leave before its maker had
// noted that it runs.
TEST(PurgeThread, I10_does_not_leave_before_its_maker_knows_of_it) {
  ChildResult result = rdmalloc_test::run_child(
      {THREAD_LEAVES}, {.environment = {"LD_PRELOAD=" RDMALLOC_LIBRARY ":" SLOW_CREATE}});
  EXPECT_TRUE(result.clean()) << result.describe();
  if (result.output.find("SKIP") != std::string::npos) GTEST_SKIP() << result.output;
  EXPECT_EQ(result.output, "ended\n");
}

}  // namespace
