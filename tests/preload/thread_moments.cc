// SPDX-License-Identifier: BSD-3-Clause
//
// When the purge thread comes to be: at moments that are the program's own, never inside malloc or
// free (docs/decisions/0001-where-the-purge-thread-is-made.md).
//
//   thread_moments single    a program without threads keeps its one thread, whatever it frees
//   thread_moments c11 LIB   thrd_join() frees under a lock of libc's that pthread_create() takes
//   thread_moments timer     libc's own threads: there when one of them has ended
//   thread_moments start     RDMALLOC_PURGE=thread: there from the start
//   thread_moments linked    (linked statically) as timer, with threads of the program
//
// Seen to fail with the thread made in free(): `single` had two threads, and unshare() refused;
// `c11` hung, 3 of 3. `timer` and `linked` without purge_note_thread_ends(), `start` without the
// constructor.
#ifndef LINKED_STATICALLY
#include <dlfcn.h>
#endif
#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/process.h"

namespace {

using rdmalloc_test::resident_bytes;
using rdmalloc_test::thread_count;
using rdmalloc_test::threads_named;

constexpr size_t kMiB = size_t{1} << 20;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "thread_moments: %s (errno %d)\n", what, errno);
  std::_Exit(1);
}
void expect(bool is_so, const char* what) {
  if (!is_so) fail(what);
}

// Takes so much in blocks of one size, writes it and frees it.
void use_and_free(size_t bytes, size_t block_bytes) {
  std::vector<void*> blocks(bytes / block_bytes);
  for (void*& block : blocks) {
    block = std::malloc(block_bytes);
    if (block == nullptr) fail("malloc");
    std::memset(block, 1, block_bytes);
  }
  for (void* block : blocks) std::free(block);
}

bool comes_true(bool (*is_true)()) {
  for (int i = 0; i < 60000 && !is_true(); i++) usleep(1000);
  return is_true();
}
bool has_purge_thread() {
  return threads_named("rdmalloc-purge") == 1;
}

void stay_single() {
  for (size_t block_bytes : {kMiB, 100 * kMiB, size_t{70000}, size_t{3000}, size_t{100}}) {
    use_and_free(200 * kMiB, block_bytes);
    expect(thread_count() == 1, "a program without threads got one");
  }
  expect(malloc_trim(0) == 1, "there was nothing to give back");
  expect(thread_count() == 1, "malloc_trim() made a thread");
  // EINVAL is what more than one thread means. A sandbox may refuse by EPERM.
  expect(unshare(CLONE_NEWUSER) == 0 || errno != EINVAL, "unshare(CLONE_NEWUSER)");
}

#ifndef LINKED_STATICALLY
// The thread-local variables of a library that is loaded late, 40 MiB here, are one block of malloc
// that libc frees under the lock of its stacks, which pthread_create() takes.
char* (*touch)();
int use_late_tls(void*) {
  for (int i = 0; i < 20; i++) {
    char* block = static_cast<char*>(std::malloc(300000));
    if (block == nullptr) return 1;
    std::memset(block, 1, 300000);
    touch()[i] = block[i];
    std::free(block);
  }
  return 0;
}
void join_c11_threads(const char* library) {
  void* handle = dlopen(library, RTLD_NOW);
  expect(handle != nullptr, "the library with thread-local variables");
  touch = reinterpret_cast<char* (*)()>(dlsym(handle, "tls_hog"));
  expect(touch != nullptr, "tls_hog()");
  for (int round = 0; round < 30; round++) {
    thrd_t threads[8];
    for (thrd_t& thread : threads)
      expect(thrd_create(&thread, use_late_tls, nullptr) == thrd_success, "thrd_create");
    for (thrd_t thread : threads) expect(thrd_join(thread, nullptr) == thrd_success, "thrd_join");
  }
  expect(has_purge_thread(), "thrd_create() brought no purge thread");
}
#endif

std::atomic<int> notifications{0};
void use_in_notification(sigval) {
  use_and_free(64 * kMiB, 2 * kMiB);
  notifications++;
}
void be_told_by_a_timer() {
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = use_in_notification;
  timer_t timer;
  expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  itimerspec once = {};
  once.it_value.tv_nsec = 1000000;
  expect(timer_settime(timer, 0, &once, nullptr) == 0, "timer_settime");
  expect(comes_true([] { return notifications == 1; }), "the timer did not tell");
  expect(comes_true(has_purge_thread),
         "a thread of libc's has ended, and no purge thread is there");
  expect(comes_true([] { return resident_bytes() < 32 * kMiB; }), "the memory did not go back");
}

void run_a_thread() {
  expect(!has_purge_thread(), "a purge thread before there is a reason");
  std::thread([] { use_and_free(64 * kMiB, 2 * kMiB); }).join();
  expect(comes_true(has_purge_thread), "a thread has ended, and no purge thread is there");
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
#ifndef LINKED_STATICALLY
  if (std::strcmp(what, "c11") == 0 && argc > 2) join_c11_threads(argv[2]);
#endif
  if (std::strcmp(what, "single") == 0)
    stay_single();
  else if (std::strcmp(what, "timer") == 0)
    be_told_by_a_timer();
  else if (std::strcmp(what, "start") == 0)
    expect(thread_count() == 2 && comes_true(has_purge_thread), "RDMALLOC_PURGE=thread: no thread");
  else if (std::strcmp(what, "linked") == 0)
    run_a_thread();
  else if (std::strcmp(what, "c11") != 0)
    fail("usage: thread_moments single | c11 LIBRARY | timer | start | linked");
  std::puts("all is well");
  return 0;
}
