// SPDX-License-Identifier: BSD-3-Clause
//
// What a registrar's domains share, in the child of a fork. Over no library: where a call may be
// made to fail, this program stops.
//
// Seen to fail (the child hangs): with the handler added by the first take().
#include "regcache/registrars/of_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/process.h"

namespace {

std::atomic<bool> is_to_stop{false}, is_stopped{false};

struct Shared {
  pthread_mutex_t lock;
  void release() {}
};
using Process = rdmalloc::registrars::OfProcess<Shared>;

TEST(OfProcess, I11_a_child_born_amid_the_first_take_begins_anew) {
  is_to_stop = true;
  std::thread other([] { Process::give(Process::take()); });
  while (!is_stopped) usleep(100);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    is_to_stop = false;
    Shared* shared = Process::take();
    Process::give(shared);
    _exit(shared != nullptr ? 0 : 1);
  }
  int status = -1;
  EXPECT_TRUE(rdmalloc_test::wait_with_limit(child, 10000, &status)) << "the child hangs";
  EXPECT_EQ(status, 0);
  is_to_stop = false;
  other.join();
}

}  // namespace

extern "C" int rdmalloc_fault_is_due(const char*) {
  while (is_to_stop) {
    is_stopped = true;
    usleep(100);
  }
  return 0;
}
