// SPDX-License-Identifier: BSD-3-Clause
//
// Locks in the child of a fork, without a fork, and the numbers of threads.
#include "alloc/core/lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <thread>

namespace {

using rdmalloc::Lock;
using rdmalloc::thread_id;

TEST(Lock, I11_of_a_thread_that_is_gone_is_an_orphan) {
  Lock lock;
  EXPECT_FALSE(lock.is_orphaned());
  std::thread([&] { lock.lock(); }).join();
  EXPECT_TRUE(lock.is_orphaned());
  lock.take_over();
  EXPECT_TRUE(lock.is_orphaned()) << "to a child that is forked now";
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

// Numbers of threads, not the kernel's ids. Seen to fail with those.
TEST(Lock, I11_threads_keep_their_own_numbers_in_children) {
  std::set<std::uint32_t> numbers = {thread_id()};
  for (int i = 0; i < 100; i++) {
    std::uint32_t number = 0;
    std::thread([&] { number = thread_id(); }).join();
    EXPECT_TRUE(numbers.insert(number).second) << number << " a second time";
  }
  std::uint32_t before = thread_id();
  pid_t child = fork();
  if (child == 0) {
    bool is_good = thread_id() == before;
    rdmalloc::detail::this_thread_id = 0;  // as a thread made in the child begins
    _exit(is_good && numbers.insert(thread_id()).second ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
