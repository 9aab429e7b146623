// A ring that a resume could not make again.
#include <errno.h>
#include <rdmalloc/registrar_uring.h>

#include <cstring>

#include "tests/support/kernel_has.h"

namespace {

// A thread that reaps again after -EAGAIN would do so for ever. Seen to fail: it was -EAGAIN.
TEST(UringLost, a_ring_that_is_gone_is_no_ring_to_wait_for) {
  if (int error = rdmalloc_test::io_uring_error())
    GTEST_SKIP() << "SKIP: no io_uring here: " << strerror(error);
  rdmalloc_domain* domain = nullptr;
  rdmalloc_uring* uring = nullptr;
  ASSERT_EQ(rdmalloc_domain_open_uring(nullptr, nullptr, &domain, &uring), 0);
  io_uring_prep_nop(io_uring_get_sqe(rdmalloc_uring_ring(uring)));
  ASSERT_EQ(io_uring_submit(rdmalloc_uring_ring(uring)), 1);
  ASSERT_EQ(rdmalloc_quiesce(-1), 0);
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kUringSetup, 1);
  EXPECT_EQ(rdmalloc_resume(), -ENOMEM);
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kUringSetup, 0);
  io_uring_cqe done = {};
  EXPECT_EQ(rdmalloc_uring_reap(uring, &done, 1, true), 1) << "what was done before is kept";
  EXPECT_EQ(rdmalloc_uring_reap(uring, &done, 1, true), -ENODEV);
  EXPECT_EQ(rdmalloc_uring_reap(uring, &done, 1, false), 0);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

}  // namespace
