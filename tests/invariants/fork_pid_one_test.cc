// SPDX-License-Identifier: BSD-3-Clause
//
// I11 where ids recur: in a container the main thread's id is 1, and so is that of the child that
// another thread makes with a pid namespace of its own. What the main thread had locked is then
// held by "1", which the child's one thread must not take for itself.
//
// Seen to fail with locks that know their owner by the kernel's id: hung at the first child or the
// fourth.
#include <gtest/gtest.h>
#include <rdmalloc/rdmalloc.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/process.h"

namespace {

using rdmalloc_test::Random;

constexpr int kChildren = 100;
constexpr int kNoNamespace = 70;  // exit status: the test can't be run here

// Blocks of all kinds; much of it under the locks of classes and of the page heap.
void operate(uint64_t seed, int steps) {
  Random random(seed);
  void* blocks[64] = {};
  for (int i = 0; i < steps; i++) {
    void*& block = blocks[random.below(64)];
    rdmalloc_free(block);
    size_t bytes = random.size_between(16, random.below(2) == 0 ? 2000 : 1 << 20);
    block = rdmalloc_malloc(bytes);
    if (block == nullptr) _exit(2);
    memset(block, 1, bytes < 64 ? bytes : 64);
  }
  for (void* block : blocks) rdmalloc_free(block);
}

// In the child: its one thread first, then another.
[[noreturn]] void live_in_child() {
  if (getpid() != 1) _exit(4);
  operate(1, 300);
  std::thread([] { operate(2, 300); }).join();
  operate(3, 300);
  _exit(0);
}

pid_t raw_clone() {
  return static_cast<pid_t>(syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0));
}
pid_t unshare_and_fork() {
  return unshare(CLONE_NEWPID) == 0 ? fork() : -1;
}

enum How { kRawClone, kUnshare };

// On a thread of its own, as the issue has it: one that is not the first.
int make_children(How how) {
  for (int i = 0; i < kChildren; i++) {
    int status = -1;
    bool ended = false;
    std::thread([&] {
      operate(static_cast<uint64_t>(i) + 10, 100);  // it has a cache, and locks have met its name
      pid_t child = how == kRawClone ? raw_clone() : unshare_and_fork();
      if (child == 0) live_in_child();
      if (child == -1) _exit(kNoNamespace);
      ended = rdmalloc_test::wait_with_limit(child, 20000, &status);
    }).join();
    if (!ended || status != 0) {
      fprintf(stderr, "child %d: %s, status %x\n", i, ended ? "ended" : "hung", status);
      return 1;
    }
  }
  return 0;
}

// The first process of a pid namespace, whose main thread is in malloc all the time.
int be_pid_one(How how) {
  if (getpid() != 1) return kNoNamespace;
  std::atomic<int> result{-1};
  std::thread maker([&] { result = make_children(how); });
  // Spans, so that it has the page heap's lock half of the time.
  while (result == -1) rdmalloc_free(rdmalloc_malloc(size_t{4} << 20));
  maker.join();
  return result;
}

void run_as_pid_one(How how) {
  pid_t outer = fork();
  ASSERT_NE(outer, -1);
  if (outer == 0) {
    // A user namespace of its own gives the right to make pid namespaces to everybody.
    if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
      _exit(kNoNamespace);
    pid_t one = fork();
    // Anew, as a container's first process is: what this one's threads are called is not inherited.
    if (one == 0)
      execl("/proc/self/exe", "pid_one", how == kRawClone ? "clone" : "unshare", nullptr);
    int status = -1;
    if (waitpid(one, &status, 0) != one) _exit(3);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 5);
  }
  int status = -1;
  ASSERT_EQ(waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "SKIP: no right to make a pid namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ForkPidOne, I11_a_child_of_clone_may_have_the_main_threads_id) {
  run_as_pid_one(kRawClone);
}

TEST(ForkPidOne, I11_a_child_after_unshare_may_have_the_main_threads_id) {
  run_as_pid_one(kUnshare);
}

}  // namespace

int main(int argc, char** argv) {
  if (strcmp(argv[0], "pid_one") == 0)
    return be_pid_one(strcmp(argv[1], "clone") == 0 ? kRawClone : kUnshare);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
