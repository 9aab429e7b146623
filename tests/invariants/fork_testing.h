// SPDX-License-Identifier: BSD-3-Clause
//
// What tests of fork share: one way to look after a child, and what it does to be seen whole.
#pragma once
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/support/alloc_under_test.h"
#include "tests/support/process.h"

namespace rdmalloc_test {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

// Of a storm; `./test --full` asks for 1000.
inline int fork_count() {
  const char* told = getenv("TEST_FORKS");
  return told != nullptr ? atoi(told) : 200;
}
// ThreadSanitizer cannot start threads in a child of a process with threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsInChild = false;
#else
constexpr bool kThreadsInChild = true;
#endif

// Under a preload rdmalloc's own calls are there too, in libc's malloc they are not.
#if RDMALLOC_TEST_PREFIXED
inline int64_t purge_all() {
  return rdmalloc_purge(0);
}
inline void start_purge_thread() {
  rdmalloc_init();
}
#else
extern "C" __attribute__((weak)) int64_t rdmalloc_purge(size_t keep_bytes);
inline int64_t purge_all() {
  return rdmalloc_purge == nullptr ? 0 : rdmalloc_purge(0);
}
// Any thread's creation starts it there.
inline void start_purge_thread() {
  std::thread([] {}).join();
}
#endif

// Runs `body` in a child; 0 when it returned true in time. The child uses no gtest, and ends with
// its parent. `after_fork` runs in the parent.
// Of a line of children the last has the least time, so that the one that hangs is shown. It has
// minutes: a fork waits for a lock that the whole line shares, and was seen to wait 67 s where two
// processors had four busy loops and the kernel's kdamond, which held it, was not run.
inline int in_child(const std::function<bool()>& body,
                    const std::function<void()>& after_fork = nullptr) {
  static int limit_ms = 400000;
  pid_t pid = fork();
  if (pid == 0) {
    limit_ms -= 5000;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bool good = body();
    if (!good) dprintf(2, "child %d: its body failed\n", getpid());
    _exit(good ? 0 : 1);
  }
  if (after_fork) after_fork();
  if (pid < 0) return -errno;
  int status = 0;
  if (!rdmalloc_test::wait_with_limit(pid, limit_ms, &status)) return 2000;
  int result = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  if (result != 0) dprintf(2, "child %d ended with %d\n", pid, result);
  return result;
}

// Mixed operations, each block's ends checked; false when something is wrong.
inline bool operate(uint64_t seed, int steps) {
  struct Block {
    unsigned char* start;
    size_t bytes;
  } blocks[200] = {};
  Random random(seed);
  bool good = true;
  for (int step = 0; step < steps; step++) {
    size_t at = random.below(200);
    Block& block = blocks[at];
    if (block.start != nullptr) {
      if (block.start[0] != at || block.start[block.bytes - 1] != at) {
        dprintf(2, "process %d: block %p of %zu bytes holds %d and %d instead of %zu\n", getpid(),
                static_cast<void*>(block.start), block.bytes, block.start[0],
                block.start[block.bytes - 1], at);
        good = false;
      }
      aut::free(block.start);
      block.start = nullptr;
      continue;
    }
    block.bytes = random.size_between(1, random.below(30) == 0 ? 2 * kMiB : 8 * kKiB);
    void* start = random.below(4) == 0 ? aut::calloc(1, block.bytes) : aut::malloc(block.bytes);
    if (start == nullptr) {
      dprintf(2, "process %d: no memory for %zu bytes\n", getpid(), block.bytes);
      return false;
    }
    block.start = static_cast<unsigned char*>(start);
    block.start[0] = block.start[block.bytes - 1] = static_cast<unsigned char>(at);
  }
  for (Block& block : blocks) aut::free(block.start);
  return good;
}

inline bool operate_with_threads(uint64_t seed) {
  std::atomic<bool> good{true};
  if (kThreadsInChild) {
    std::thread first([&] { good = good && operate(seed + 1, 200); });
    std::thread second([&] { good = good && operate(seed + 2, 200); });
    if (!operate(seed, 600)) good = false;
    first.join();
    second.join();
  } else if (!operate(seed, 1000)) {
    good = false;
  }
  return good;
}

inline int purge_threads() {
  return threads_named("rdmalloc-purge");
}

}  // namespace rdmalloc_test
