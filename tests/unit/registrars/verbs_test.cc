// The verbs registrar over a stand-in for libibverbs, whose device can be taken away.
#include <errno.h>
#include <rdmalloc/registrar_verbs.h>

#include "tests/support/capture.h"

extern "C" int stub_ibverbs_error;

namespace {

class Verbs : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(rdmalloc_domain_open_verbs_device("stub0", 1, nullptr, &pd, &domain), 0);
  }
  void TearDown() override {
    stub_ibverbs_error = 0;
    EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  }
  // Between a quiesce and a resume that meets this error.
  void resume_with(int error) {
    ASSERT_EQ(rdmalloc_quiesce(-1), 0);
    EXPECT_EQ(rdmalloc_verbs_pd(domain, &pd), -EAGAIN) << "it may come back";
    stub_ibverbs_error = error;
    EXPECT_EQ(rdmalloc_resume(), -error);
  }
  ibv_pd* pd = nullptr;
  rdmalloc_domain* domain = nullptr;
};

TEST_F(Verbs, a_resume_makes_another_pd) {
  resume_with(0);
  EXPECT_EQ(rdmalloc_verbs_pd(domain, &pd), 0);
  EXPECT_NE(pd, nullptr);
}

// A program that asks again after -EAGAIN would ask for ever. Seen to fail: it was -EAGAIN.
TEST_F(Verbs, a_resume_without_the_device_leaves_no_pd_to_wait_for) {
  resume_with(ENODEV);
  EXPECT_EQ(rdmalloc_verbs_pd(domain, &pd), -ENODEV);
  EXPECT_EQ(pd, nullptr);
}

TEST_F(Verbs, a_resume_that_the_device_refuses_leaves_none) {
  resume_with(EMFILE);
  EXPECT_EQ(rdmalloc_verbs_pd(domain, &pd), -ENODEV);
}

// Also before the resume, which will pass it by.
TEST_F(Verbs, a_domain_lost_while_it_is_quiesced_has_none) {
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  EXPECT_EQ(rdmalloc_domain_lost(domain), 0);
  EXPECT_EQ(rdmalloc_verbs_pd(domain, &pd), -ENODEV);
  EXPECT_EQ(rdmalloc_resume(), -ENODEV);
  EXPECT_EQ(rdmalloc_verbs_pd(domain, &pd), -ENODEV);
}

// It would be of no use: each call fails for good. Seen to fail: it was 0.
TEST_F(Verbs, a_lost_domain_takes_no_other_pd) {
  rdmalloc_domain* over_a_pd = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_verbs(pd, nullptr, &over_a_pd), 0);
  EXPECT_EQ(rdmalloc_verbs_set_pd(over_a_pd, pd), 0);
  rdmalloc_test::Capture capture;
  EXPECT_EQ(rdmalloc_domain_lost(over_a_pd), 0);
  capture.end();
  EXPECT_EQ(rdmalloc_verbs_set_pd(over_a_pd, pd), -ENODEV);
  EXPECT_EQ(rdmalloc_verbs_set_pd(domain, pd), -EINVAL) << "of one that opens its own";
  EXPECT_EQ(rdmalloc_domain_close(over_a_pd), 0);
}

}  // namespace
