// SPDX-License-Identifier: BSD-3-Clause
//
// I11, the way glibc's tests of malloc and fork try it (malloc/tst-mallocfork2,
// malloc/tst-malloc-fork-deadlock): fork from a signal handler that interrupts malloc, and fork
// beside threads that are in malloc and in stdio, whose locks fork itself takes. A malloc that
// takes locks of its own before fork hangs in the second; glibc's own hangs in the first, where
// the process has a second thread.
//
// The child of a handler may not go on with the malloc that the handler interrupted
// (docs/decisions/0013-fewer-mechanisms.md).
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/alloc_under_test.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::Random;
using rdmalloc_test::wait_with_limit;

constexpr int kForks = 500;

std::atomic<int> forked{0}, failed{0};

// fork() and _exit() are safe in a handler (POSIX); what is interrupted may be any instruction of
// malloc, and must go on as if nothing had been.
void fork_in_handler(int) {
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  int status = -1;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) failed++;
  forked++;
}

TEST(ForkStdio, I11_a_signal_handler_that_interrupts_malloc_may_fork) {
  struct sigaction action {};
  action.sa_handler = fork_in_handler;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  pthread_t worker = pthread_self();
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    for (int sent = 0; !stop.load(); sent++) {
      pthread_kill(worker, SIGUSR1);
      // One at a time: the next interrupts the work, not the handler.
      while (forked.load() <= sent && !stop.load()) usleep(100);
    }
  });
  Random random(3);
  unsigned char* blocks[200] = {};
  size_t bytes[200] = {};
  for (size_t i = 0; forked.load() < kForks; i++) {
    size_t at = random.below(200);
    if (blocks[at] != nullptr) {
      ASSERT_EQ(blocks[at][0], at);
      ASSERT_EQ(blocks[at][bytes[at] - 1], at);
    }
    free(blocks[at]);
    bytes[at] = random.size_between(1, i % 50 == 0 ? 2000000 : 20000);
    blocks[at] = static_cast<unsigned char*>(malloc(bytes[at]));
    ASSERT_NE(blocks[at], nullptr);
    blocks[at][0] = blocks[at][bytes[at] - 1] = static_cast<unsigned char>(at);
  }
  stop = true;
  sender.join();
  for (unsigned char* block : blocks) free(block);
  EXPECT_EQ(failed.load(), 0);
  signal(SIGUSR1, SIG_DFL);
}

// Threads that hold stdio's locks while they call malloc, until the end of the object.
class StdioStorm {
 public:
  StdioStorm() {
    threads_.emplace_back([this] {
      while (!stop_.load()) fflush(nullptr);  // the list's lock, then each stream's
    });
    threads_.emplace_back([this] {
      for (int i = 0; !stop_.load(); i++) {
        char* text = nullptr;
        size_t length = 0;
        FILE* stream = open_memstream(&text, &length);  // grows by realloc under its lock
        for (int k = 0; k < 200; k++) fprintf(stream, "%d and %d\n", i, k);
        fclose(stream);
        free(text);
      }
    });
    threads_.emplace_back([this] {
      while (!stop_.load()) {
        FILE* file = fopen("/proc/self/maps", "r");
        char* line = nullptr;
        size_t capacity = 0;
        while (getline(&line, &capacity, file) > 0) {  // allocates under the stream's lock
        }
        free(line);
        fclose(file);
      }
    });
    threads_.emplace_back([this] {
      for (size_t i = 1; !stop_.load(); i++) free(malloc(i * 37 % 300000));
    });
  }
  ~StdioStorm() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

TEST(ForkStdio, I11_fork_beside_threads_in_malloc_and_stdio_does_not_hang) {
  StdioStorm storm;
  for (int i = 0; i < kForks; i++) {
    pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      // fork leaves stdio's locks free in the child, and malloc must be so too.
      char* text = nullptr;
      int length = asprintf(&text, "%s", std::string(5000, 'x').c_str());
      fflush(nullptr);
      free(text);
      _exit(length == 5000 ? 0 : 1);
    }
    int status = -1;
    if (!wait_with_limit(pid, 30000, &status)) FAIL() << "child of fork " << i << " hangs";
    ASSERT_EQ(status, 0);
  }
}

TEST(ForkStdio, I11_two_threads_that_fork_at_once_beside_a_storm) {
  StdioStorm storm;
  std::atomic<int> bad{0};
  std::vector<std::thread> forkers;
  for (int t = 0; t < 2; t++) {
    forkers.emplace_back([&] {
      for (int i = 0; i < kForks / 4; i++) {
        pid_t pid = fork();
        if (pid == 0) {
          free(malloc(100000));
          _exit(0);
        }
        int status = -1;
        if (pid < 0 || !wait_with_limit(pid, 30000, &status) || status != 0) bad++;
      }
    });
  }
  for (std::thread& forker : forkers) forker.join();
  EXPECT_EQ(bad.load(), 0);
}

}  // namespace
