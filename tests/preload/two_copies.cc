// SPDX-License-Identifier: BSD-3-Clause
//
// Two copies of the library in one process: librdmalloc_prefixed.a in the program, and
// librdmalloc.so, which is preloaded. The process ends with the program's last thread, by exit(),
// whatever helper threads each copy has.
//
//   two_copies CASE
//
// Each case was seen to hang with helper threads that count none but their own copy's as such.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>
#include <rdmalloc/regcache.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/kernel_has.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::threads_named;

[[noreturn]] void fail(const char* what) {
  dprintf(STDERR_FILENO, "two_copies: %s (errno %d)\n", what, errno);
  _exit(1);
}
void expect(bool is_so, const char* what) {
  if (!is_so) fail(what);
}

// What does not come is ended by the test's own limit.
template <class Condition>
void wait_until(Condition is_so) {
  while (!is_so()) usleep(1000);
}
void wait_for_first_threads_end() {
  wait_until([] {
    char name[1];
    return readlink("/proc/self/exe", name, sizeof name) < 0 && errno == ENOENT;
  });
}

void use_both() {
  for (std::size_t bytes : {std::size_t{100}, std::size_t{4} << 20}) {
    void* preloaded = std::malloc(bytes);
    void* linked = rdmalloc_malloc(bytes);
    expect(preloaded != nullptr && linked != nullptr, "malloc");
    std::memset(preloaded, 1, bytes);
    std::memset(linked, 1, bytes);
    std::free(preloaded);
    rdmalloc_free(linked);
  }
}

// The same function of the preloaded copy.
template <class Function>
Function* of_preloaded(Function* linked, const char* name) {
  auto* preloaded = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
  expect(preloaded != nullptr && preloaded != linked, "another copy");
  return preloaded;
}

void bring_purge_threads() {
  for (auto* init : {rdmalloc_init, of_preloaded(rdmalloc_init, "rdmalloc_init")})
    expect(init() == 0, "rdmalloc_init");
  use_both();
  wait_until([] { return threads_named("rdmalloc-purge") == 2; });
}

// Seen to wait for ever for the archive's, which rooms.cc did not name.
void bring_checkpoints() {
  bring_purge_threads();
  wait_until([] { return threads_named("rdmckpt") == 2; });
}

// An exit handler, on the stack of whichever thread was the last one. Seen to fail: by what those
// that come wrote there, with a stack that is used again; and without helper_thread_ends(), for
// those that come left, so that libc called exit() once more, on the last of them.
bool is_first_handler_over = false;
void bring_purge_threads_at_exit() {
  volatile unsigned char stack[4096];
  for (volatile unsigned char& byte : stack) byte = 1;
  bring_purge_threads();
  usleep(100000);  // which they do not end in
  wait_until([] { return threads_named("rdmalloc-purge") == 2; });
  for (volatile unsigned char& byte : stack) expect(byte == 1, "its stack is another's too");
  is_first_handler_over = true;
}

int register_nothing(void*, void*, size_t, uint32_t, rdmalloc_key*) {
  return 0;
}
int deregister_nothing(void*, void*, size_t, const rdmalloc_key*) {
  return 0;
}

// A domain of each copy, with which foreign memory is watched.
void bring_watches() {
  if (rdmalloc_test::userfaultfd_error() != 0) {
    std::puts("SKIP: no userfaultfd here");
    std::exit(77);
  }
  static rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "nothing";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = register_nothing;
  ops.deregister = deregister_nothing;
  for (auto* open :
       {rdmalloc_domain_open, of_preloaded(rdmalloc_domain_open, "rdmalloc_domain_open")}) {
    rdmalloc_domain* domain = nullptr;
    expect(open(&ops, nullptr, nullptr, &domain) == 0, "a domain");
  }
  wait_until([] { return threads_named("rdmalloc-watch") == 2; });
  wait_until([] { return threads_named("rdmalloc-unmap") == 2; });
}

// ---- what the program's last thread does, once the first one has ended ----

void* end(void*) {
  wait_for_first_threads_end();
  usleep(100000);  // which the helpers have looked at
  return nullptr;
}

// In the child its only thread is the last one: to return from it is to exit(0).
void* fork_and_end(void*) {
  wait_for_first_threads_end();
  pid_t child = fork();
  if (child == 0) {
    bring_purge_threads();
    return nullptr;
  }
  int status = -1;
  expect(waitpid(child, &status, 0) == child && status == 0, "the child");
  return nullptr;
}

// Its name is a helper's: the purge threads end before it. They come back as they do else.
void* end_with_a_helpers_name(void*) {
  prctl(PR_SET_NAME, "rdmalloc-mine");
  wait_for_first_threads_end();
  wait_until([] { return threads_named("rdmalloc-purge") == 0; });
  prctl(PR_SET_NAME, "mine");
  bring_purge_threads();
  return nullptr;
}

struct Case {
  const char* name;
  void (*bring)();
  void (*at_exit)();
  void* (*run)(void*);
};
constexpr Case kCases[] = {
    {"ends", bring_purge_threads, bring_purge_threads_at_exit, end},
    {"child", bring_purge_threads, bring_purge_threads_at_exit, fork_and_end},
    {"named", bring_purge_threads, bring_purge_threads_at_exit, end_with_a_helpers_name},
    {"checkpoints", bring_checkpoints, bring_purge_threads_at_exit, end},
    // Where RDMALLOC_PURGE=manual has none, too.
    {"watches", bring_watches, [] { is_first_handler_over = true; }, end},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Case& one : kCases) {
    if (argc < 2 || std::strcmp(argv[1], one.name) != 0) continue;
    one.bring();
    std::atexit([] {
      use_both();
      expect(is_first_handler_over, "exit() was called twice");
      std::puts("exit handlers ran");
    });
    std::atexit(one.at_exit);
    pthread_t thread;
    expect(pthread_create(&thread, nullptr, one.run, nullptr) == 0, "pthread_create");
    pthread_exit(nullptr);
  }
  fail("the first argument is none of the cases");
}
