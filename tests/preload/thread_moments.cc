// SPDX-License-Identifier: BSD-3-Clause
//
// When the purge thread comes to be: at moments that are the program's own, never inside malloc or
// free (docs/decisions/0002-where-the-purge-thread-is-made.md).
//
//   thread_moments single    a program without threads keeps its one thread, whatever it frees
//   thread_moments c11 LIB   thrd_join() frees under a lock of libc's that pthread_create() takes
//   thread_moments timer     libc's own threads: there when one of them has ended
//   thread_moments start     RDMALLOC_PURGE=thread: there from the start
//   thread_moments linked    (linked statically) as timer, with threads of the program
//   thread_moments fabric LIB   it comes with a library of a fabric's, in a program of one thread
//   thread_moments thread    it comes with a thread of the program's, and is not real-time as it is
//   thread_moments again     the second thread of the program brings it, where the first could not
//   thread_moments no_room   there is no address space for its stack
//   thread_moments no_data   RLIMIT_DATA, which stacks count against, has no room for it
//   thread_moments no_lock   nor has RLIMIT_MEMLOCK, after mlockall(MCL_FUTURE)
//   thread_moments refused   it is there again after a thread that could not be made, and is not
//                            stopped for each such thread
//
// Seen to fail with the thread made in free(): `single` had two threads, and unshare() refused;
// `c11` hung, 3 of 3. `timer` and `linked` without purge_note_thread_ends(), `start` without the
// constructor, `fabric` without notifiers_begin_purging() after a dlopen, `refused` without
// purge_thread_start() after the last try, and with a stop for each try (40 purge threads).
#ifndef LINKED_STATICALLY
#include <dlfcn.h>
#endif
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
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

// For what never comes there is the test's own limit.
void wait_until(bool (*is_true)()) {
  while (!is_true()) usleep(1000);
}
bool has_purge_thread() {
  return threads_named("rdmalloc-purge") == 1;
}

std::string purge_thread_number() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    if (std::getline(comm, name) && name == "rdmalloc-purge") return task.path().filename();
  }
  fail("no purge thread");
}

void stay_single(const char*) {
  for (size_t block_bytes : {kMiB, 100 * kMiB, size_t{70000}, size_t{3000}, size_t{100}}) {
    use_and_free(200 * kMiB, block_bytes);
    expect(thread_count() == 1, "a program without threads got one");
  }
  expect(malloc_trim(0) == 1, "there was nothing to give back");
  expect(thread_count() == 1, "malloc_trim() made a thread");
  // EINVAL is what more than one thread means. A sandbox may refuse by EPERM.
  bool is_unshared = unshare(CLONE_NEWUSER) == 0;
  expect(is_unshared || errno != EINVAL, "unshare(CLONE_NEWUSER)");
  if (!is_unshared) std::printf("SKIP: no user namespace here: %s\n", std::strerror(errno));
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
  expect(library != nullptr, "c11 wants a library");
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

#ifndef LINKED_STATICALLY
void load_a_fabric(const char* library) {
  expect(library != nullptr, "fabric wants a library");
  use_and_free(64 * kMiB, 2 * kMiB);
  expect(thread_count() == 1, "a purge thread before there is a reason");
  expect(dlopen(library, RTLD_NOW) != nullptr, "the library");
  wait_until(has_purge_thread);
  wait_until([] { return resident_bytes() < 32 * kMiB; });
}
#endif

std::atomic<int> notifications{0};
void use_in_notification(sigval) {
  use_and_free(64 * kMiB, 2 * kMiB);
  notifications++;
}
void be_told_by_a_timer(const char*) {
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = use_in_notification;
  timer_t timer;
  expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  itimerspec once = {};
  once.it_value.tv_nsec = 1000000;
  expect(timer_settime(timer, 0, &once, nullptr) == 0, "timer_settime");
  wait_until([] { return notifications == 1; });
  wait_until(has_purge_thread);
  wait_until([] { return resident_bytes() < 32 * kMiB; });
}

// The thread-local variables of a program that has many: on the stack of each thread.
#ifdef STATIC_TLS_BYTES
thread_local char variables[STATIC_TLS_BYTES];
#else
thread_local char variables[8];
#endif
void* use_variables(void*) {
  variables[sizeof variables - 1] = 1;
  return nullptr;
}
// With a stack for all that the tests ask of libc's TLS.
void make_a_thread() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * kMiB);
  pthread_t thread;
  expect(pthread_create(&thread, &attributes, use_variables, nullptr) == 0, "pthread_create");
  pthread_join(thread, nullptr);
}

// The kernel's id of the purge thread.
pid_t purge_thread_id() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "rdmalloc-purge") return atoi(task.path().filename().c_str());
  }
  return 0;
}

void come_with_a_thread(const char*) {
  sched_param priority = {};
  priority.sched_priority = 1;
  bool may_be_real_time = sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
  make_a_thread();
  wait_until(has_purge_thread);
  if (!may_be_real_time) return;
  wait_until([] { return sched_getscheduler(purge_thread_id()) == SCHED_OTHER; });
  std::puts("not real-time");
}

void try_again(const char*) {
  make_a_thread();
  usleep(100000);
  expect(!has_purge_thread(), "the first creation was to fail");
  make_a_thread();
  wait_until(has_purge_thread);
}

// EAGAIN that no thread which ends would change: a stack larger than the address space.
constexpr size_t kTooLargeStack = size_t{1} << 50;
void be_refused(const char*) {
  make_a_thread();
  wait_until(has_purge_thread);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  expect(pthread_attr_setstacksize(&attributes, kTooLargeStack) == 0, "the size of a stack");
  pthread_t thread;
  // Which is the purge thread: each that is made has another number.
  std::set<std::string> seen;
  for (int tries = 0; tries < 40; tries++) {
    expect(pthread_create(&thread, &attributes, use_variables, nullptr) == EAGAIN, "EAGAIN");
    wait_until(has_purge_thread);
    seen.insert(purge_thread_number());
  }
  expect(seen.size() < 20, "as good as each refusal stopped the purge thread");
  expect(pthread_setattr_default_np(&attributes) == 0, "the size of all stacks");
  thrd_t other;
  auto run = [](void*) { return 0; };
  expect(thrd_create(&other, run, nullptr) == thrd_error, "thrd_error");
  wait_until(has_purge_thread);
}

#ifndef LINKED_STATICALLY
void find_no_room_below(__rlimit_resource_t resource) {
  std::free(std::malloc(100));
  rlimit limit;
  getrlimit(resource, &limit);
  limit.rlim_cur = 1;
  expect(setrlimit(resource, &limit) == 0, "setrlimit");
  if (resource == RLIMIT_MEMLOCK) {
    constexpr uid_t kOther = 54321;  // root is not limited
    expect(geteuid() != 0 || setresuid(kOther, kOther, kOther) == 0, "setresuid");
    expect(mlockall(MCL_FUTURE) == 0, "mlockall");
  }
  auto* init = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "rdmalloc_init"));
  expect(init != nullptr && init() == -ENOMEM, "rdmalloc_init() is to be refused");
}
void find_no_room(const char*) {
  find_no_room_below(RLIMIT_AS);
}
void find_no_data(const char*) {
  find_no_room_below(RLIMIT_DATA);
}
void find_no_lock(const char*) {
  find_no_room_below(RLIMIT_MEMLOCK);
}
#else
void run_a_thread(const char*) {
  expect(!has_purge_thread(), "a purge thread before there is a reason");
  std::thread([] { use_and_free(64 * kMiB, 2 * kMiB); }).join();
  wait_until(has_purge_thread);
}
#endif

void be_there_from_the_start(const char*) {
  expect(thread_count() == 2, "RDMALLOC_PURGE=thread: no thread");
  wait_until(has_purge_thread);
}

struct Case {
  const char* name;
  void (*run)(const char* argument);
};
constexpr Case kCases[] = {
    {"single", stay_single},
    {"timer", be_told_by_a_timer},
    {"start", be_there_from_the_start},
    {"thread", come_with_a_thread},
    {"again", try_again},
    {"refused", be_refused},
#ifdef LINKED_STATICALLY
    {"linked", run_a_thread},
#else
    {"c11", join_c11_threads},
    {"fabric", load_a_fabric},
    {"no_room", find_no_room},
    {"no_data", find_no_data},
    {"no_lock", find_no_lock},
#endif
};

}  // namespace

int main(int argc, char** argv) {
  for (const Case& one : kCases) {
    if (argc < 2 || std::strcmp(argv[1], one.name) != 0) continue;
    one.run(argc > 2 ? argv[2] : nullptr);
    std::puts("all is well");
    return 0;
  }
  fail("the first argument is none of the cases that this file's head lists");
}
