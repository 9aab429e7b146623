// Exit and detach with registrations outstanding. Every end is clean and silent,
// whatever is registered, in use or under way; nothing of ours runs at exit that could trip.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "tests/support/process.h"

namespace {

using rdmalloc_test::ChildResult;

ChildResult end_by(const std::string& how) {
  return rdmalloc_test::run_child({ENDS_PROGRAM, how});
}
bool has_io_uring(const ChildResult& result) {
  return result.output.find("SKIP: ") == std::string::npos;
}

class Ends : public testing::TestWithParam<const char*> {};

// Fails with a destructor of the library's that closes what is open.
TEST_P(Ends, with_registrations_outstanding_are_clean_and_silent) {
  ChildResult result = end_by(GetParam());
  if (!has_io_uring(result)) GTEST_SKIP() << result.output;
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(result.errors, "");
}

INSTANTIATE_TEST_SUITE_P(Uring, Ends,
                         testing::Values("return", "exit_on_a_thread", "last_thread", "quick_exit",
                                         "_exit", "exec"),
                         [](const auto& one) { return std::string(one.param); });

TEST(EndsOf, by_a_signal_is_that_signals) {
  ChildResult result = end_by("signal");
  if (!has_io_uring(result)) GTEST_SKIP() << result.output;
  EXPECT_EQ(result.signal, SIGTERM) << result.describe();
  EXPECT_EQ(result.errors, "");
}

// Fails with such a destructor too.
TEST(EndsOf, handlers_may_use_put_and_free_what_is_registered) {
  ChildResult result = end_by("handlers");
  if (!has_io_uring(result)) GTEST_SKIP() << result.output;
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(result.output, "tidied up\n");
  EXPECT_EQ(result.errors, "");
}

// Fails, by hanging, when close does not look for what is held.
TEST(EndsOf, a_domain_says_what_is_outstanding_and_closes_afterwards) {
  ChildResult result = end_by("detach");
  if (!has_io_uring(result)) GTEST_SKIP() << result.output;
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(result.errors, "");
}

TEST(EndsOf, fini_leaves_registrations_as_they_are) {
  ChildResult result = end_by("fini");
  if (!has_io_uring(result)) GTEST_SKIP() << result.output;
  EXPECT_TRUE(result.clean()) << result.describe();
  EXPECT_EQ(result.errors, "");
}

}  // namespace
