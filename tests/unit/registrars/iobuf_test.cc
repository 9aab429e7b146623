// SPDK's iobuf story end to end (iobuf_program.cc): a start that fails ends with status 0 at
// SIGTERM, and one that is tried again works. Seen to fail: without the numbers in the refusal,
// with a pool that leaves its registrations when it is refused, with a put that serves no waiter in
// the line.
#include <gtest/gtest.h>

#include <string>

#include "tests/support/process.h"

namespace {

class Iobuf : public testing::TestWithParam<const char*> {};

TEST_P(Iobuf, a_target_ends_with_status_0_at_SIGTERM) {
  std::string how = GetParam();
  rdmalloc_test::ChildResult result = rdmalloc_test::run_child({IOBUF_PROGRAM, how, FAKE_SPDK});
  EXPECT_TRUE(result.clean()) << result.describe();
  if (how != "too_much_gone") {
    EXPECT_EQ(result.output, "target ended\n");
  }
  if (how != "refused") {
    EXPECT_NE(result.errors.find("large would fit"), std::string::npos) << result.errors;
  }
}

INSTANTIATE_TEST_SUITE_P(Spdk, Iobuf,
                         testing::Values("too_much", "too_much_gone", "refused", "retried"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
