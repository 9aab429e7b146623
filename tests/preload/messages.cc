// SPDX-License-Identifier: BSD-3-Clause
//
// For messages_test.cc: a program whose descriptor 2 becomes FILE, and that then gives rdmalloc a
// reason for a warning (RDMALLOC_FAULT=thread_create:1).
//
//   messages data FILE   standard error is closed, and the file opened next: it is the program's
//   messages fatal FILE  the same, and a block is freed twice
//   messages log FILE    standard output and error are both turned to the file
//   messages pipe FILE   standard error stays what it is: a pipe that no process reads
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

namespace {

bool is_blocked() {
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  return sigismember(&blocked, SIGPIPE) == 1;
}
bool is_pending() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGPIPE) == 1;
}

// SIGPIPE is the program's: as it was before a message, it is afterwards.
bool signal_stays_as_it_is() {
  malloc_stats();
  if (is_blocked() || is_pending()) return false;
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGPIPE);
  sigprocmask(SIG_BLOCK, &one, nullptr);
  malloc_stats();
  if (!is_blocked() || is_pending()) return false;
  raise(SIGPIPE);
  malloc_stats();
  const timespec no_time = {};
  return is_pending() && sigtimedwait(&one, nullptr, &no_time) == SIGPIPE && !is_pending();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  if (std::strcmp(argv[1], "pipe") == 0) {
    std::thread([] {}).join();
    return signal_stays_as_it_is() ? 0 : 5;
  }
  const bool is_fatal = std::strcmp(argv[1], "fatal") == 0;
  if (is_fatal || std::strcmp(argv[1], "data") == 0) {
    close(2);
    if (open(argv[2], O_WRONLY | O_CREAT, 0600) != 2) return 3;
  } else {
    int fd = open(argv[2], O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (dup2(fd, 1) != 1 || dup2(fd, 2) != 2) return 4;
    close(fd);
  }
  std::thread([] {}).join();
  if (is_fatal) {
    void* volatile block = std::malloc(std::size_t{1} << 20);
    std::free(block);
    std::free(block);
  }
  return 0;
}
