// SPDX-License-Identifier: BSD-3-Clause
//
// Files that no checkpoint can take: what is said of them when there are many. Seen to fail: what
// to do came last and was cut, in the middle of a name, and the seventeenth file was not spoken of.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/support/capture.h"
#include "tests/unit/regcache/quiesce_fixture.h"

namespace {

class QuiesceFiles : public Quiesce {
 protected:
  void SetUp() override {
    Quiesce::SetUp();
    if (int error = rdmalloc_test::userfaultfd_error())
      GTEST_SKIP() << "SKIP: no userfaultfd here: " << strerror(error);
  }
  void TearDown() override {
    for (int fd : open_) close(fd);
    Quiesce::TearDown();
  }
  // What is said with that many files open.
  std::string said_of(std::size_t count) {
    StubDomain domain(fabric, attr);
    while (open_.size() < count)
      open_.push_back(
          static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
    rdmalloc_test::Capture capture;
    EXPECT_EQ(rdmalloc_quiesce(-1), -EBUSY);
    return capture.end();
  }
  std::vector<int> open_;
};

std::string begin_of(std::size_t count) {
  return "rdmalloc: warning: rdmalloc_quiesce: no checkpoint can be taken with " +
         std::to_string(count) + " files open (close them before, or in the domain's event()): ";
}

TEST_F(QuiesceFiles, are_named_behind_what_to_do) {
  const std::string said = said_of(2);
  EXPECT_EQ(said, begin_of(2) + std::to_string(open_[0]) + " anon_inode:[userfaultfd], " +
                      std::to_string(open_[1]) + " anon_inode:[userfaultfd]\n");
}

TEST_F(QuiesceFiles, too_many_for_a_message_are_cut_with_an_ellipsis) {
  const std::string said = said_of(20);
  EXPECT_EQ(said.rfind(begin_of(20), 0), 0u) << said;
  EXPECT_THAT(said, testing::EndsWith("...\n"));
}

}  // namespace
