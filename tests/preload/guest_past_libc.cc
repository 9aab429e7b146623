// SPDX-License-Identifier: BSD-3-Clause
//
// What reaches us past libc: calls of our threads that a filter traps, processes that clone()
// makes, whose first thread ends by the system call, a limit that another process sets. Each passes
// with libc's malloc too.
//
//   guest_past_libc CASE
#include <dlfcn.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <rdmalloc/regcache.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/support/call_filter.h"

namespace {

void expect(bool is_so, const char* what) {
  if (is_so) return;
  std::perror(what);
  _exit(1);
}

void use_memory() {
  void* blocks[100];
  for (void*& block : blocks) block = std::calloc(1, 100000);
  for (void* block : blocks) std::free(block);
}
void use_on_two_threads() {
  std::thread(use_memory).join();
  use_memory();
}

std::atomic<int> trapped{0};

// The sandbox's answer to a call that it traps: -EPERM.
void on_trap(int, siginfo_t*, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__aarch64__)
  registers.regs[0] = static_cast<unsigned long long>(-EPERM);
#else
  registers.gregs[REG_RAX] = -EPERM;
#endif
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  if (std::strncmp(name, "rdmalloc-", 9) == 0) trapped++;
}

std::atomic<int> prefaulted_by_helpers{0};
pid_t first_thread = 0;

// A registrar whose call is trapped. The first thread waits until a helper has made that call.
int register_with_a_trapped_call(void*, void*, size_t, uint32_t, rdmalloc_key*) {
  syscall(SYS_sched_getscheduler, 0);
  if (gettid() != first_thread) prefaulted_by_helpers++;
  while (prefaulted_by_helpers == 0) usleep(1000);
  return 0;
}
int deregister(void*, void*, size_t, const rdmalloc_key*) {
  return 0;
}

template <class Fn>
Fn* find(const char* name) {
  return reinterpret_cast<Fn*>(dlsym(RTLD_DEFAULT, name));
}

// With libc's malloc there is none.
void prefault_on_two_threads() {
  auto* open = find<decltype(rdmalloc_domain_open)>("rdmalloc_domain_open");
  auto* prefault = find<decltype(rdmalloc_reg_prefault)>("rdmalloc_reg_prefault");
  if (open == nullptr || prefault == nullptr) return;
  first_thread = gettid();
  rdmalloc_registrar_ops ops = {};
  ops.size = sizeof ops;
  ops.name = "trapped";
  ops.flags = RDMALLOC_REGISTRAR_ANY_THREAD | RDMALLOC_REGISTRAR_SYNC_DEREG;
  ops.register_ = register_with_a_trapped_call;
  ops.deregister = deregister;
  rdmalloc_domain* domain = nullptr;
  expect(open(&ops, nullptr, nullptr, &domain) == 0, "rdmalloc_domain_open");
  constexpr size_t kBytes = size_t{4} << 20;
  iovec blocks[2];
  for (iovec& block : blocks) block = {std::malloc(kBytes), kBytes};
  expect(prefault(&domain, 1, blocks, 2, 2, nullptr, nullptr) == 0, "rdmalloc_reg_prefault");
}

// Sandboxes of browsers trap calls, to answer them in a handler. Seen to fail with SIGSYS blocked
// in the purge thread, or in a prefault's helpers: the kernel ends the process then.
void trapped_calls() {
  struct sigaction action = {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  expect(sigaction(SIGSYS, &action, nullptr) == 0, "sigaction");
  use_memory();
  constexpr long kCalls[] = {SYS_membarrier, SYS_close_range, SYS_sched_getscheduler};
  expect(rdmalloc_test::filter_calls(kCalls, SECCOMP_RET_TRAP, SECCOMP_RET_ALLOW),
         "no filter can be set");
  use_on_two_threads();
  // What its thread does first is one of them. With libc's malloc there is none.
  while (std::getenv("LD_PRELOAD") != nullptr && trapped == 0) usleep(1000);
  prefault_on_two_threads();
}

int use_in_clone(void*) {
  use_on_two_threads();
  return 0;  // to the system call exit()
}

// A container's first process is one. Seen to fail, it never ended, where the purge thread there
// waited to be notified of the first thread's end.
void cloned_process() {
  constexpr size_t kStackBytes = 1 << 20;
  use_memory();
  void* stack =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pid_t child = clone(use_in_clone, static_cast<char*>(stack) + kStackBytes, SIGCHLD, nullptr);
  int status = -1;
  expect(child > 0 && waitpid(child, &status, 0) == child && status == 0, "clone");
}

// As `prlimit --pid` does. Seen to fail, EAGAIN for each thread from then on, where the reserved
// terabyte stayed.
void limit_from_outside() {
  use_memory();
  const pid_t self = getpid(), outside = fork();
  if (outside == 0) {
    const rlimit limit = {rlim_t{4} << 30, rlim_t{4} << 30};
    _exit(syscall(SYS_prlimit64, self, RLIMIT_AS, &limit, nullptr) == 0 ? 0 : 77);
  }
  int status = -1;
  expect(outside > 0 && waitpid(outside, &status, 0) == outside, "fork");
  if (status == 77 << 8) {
    std::puts("SKIP: no right to set another process's limits");
    _exit(77);
  }
  pthread_t thread;
  auto use = [](void*) -> void* {
    use_memory();
    return nullptr;
  };
  errno = pthread_create(&thread, nullptr, use, nullptr);
  expect(errno == 0 && pthread_join(thread, nullptr) == 0, "pthread_create");
  constexpr size_t kBytes = size_t{1} << 30;
  void* mapped = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(mapped != MAP_FAILED, "mmap of a GiB of four");
  use_on_two_threads();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "trapped_calls") == 0)
    trapped_calls();
  else if (argc == 2 && std::strcmp(argv[1], "cloned_process") == 0)
    cloned_process();
  else if (argc == 2 && std::strcmp(argv[1], "limit_from_outside") == 0)
    limit_from_outside();
  else
    return 2;
  std::puts("all is well");
  return 0;
}
