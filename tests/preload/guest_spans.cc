// SPDX-License-Identifier: BSD-3-Clause
//
// Kinds of threads and ends of processes with blocks of 40 to 260 KB, which threads cache as spans:
// none hangs, none is refused, and what threads cached comes back.
//
//   guest_spans CASE
//
// Each passes with libc's malloc too. Seen to fail: timers and key_destructors with an ending
// thread that keeps its spans, free_only where a thread without a cache loses what it frees,
// alternate_stack with 16 KiB more of stack, ends and fork_handlers without a page heap that is
// rebuilt in the child (hung). executes and first_thread_ends were not.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "tests/support/process.h"

namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;
constexpr size_t kBlock = 100 * kKiB;

[[noreturn]] void fail(const char* what) {
  dprintf(STDERR_FILENO, "guest_spans: %s (errno %d)\n", what, errno);
  _exit(1);
}
void expect(bool is_so, const char* what) {
  if (!is_so) fail(what);
}

void* touched(size_t bytes) {
  auto* block = static_cast<char*>(std::malloc(bytes));
  expect(block != nullptr, "no memory");
  block[0] = block[bytes - 1] = 1;
  return block;
}
// Small blocks and long ones, some of them at once.
void work(unsigned seed, int steps) {
  rdmalloc_test::Random random(seed);
  void* blocks[16] = {};
  for (int i = 0; i < steps; i++) {
    void*& block = blocks[random.below(16)];
    std::free(block);
    block = touched(random.below(4) == 0 ? 1 + random.below(200) : 40000 + random.below(220000));
  }
  for (void* block : blocks) std::free(block);
}

void start_threads(int count) {
  for (int i = 0; i < count; i++) {
    pthread_t thread;
    auto run = [](void*) -> void* {
      for (unsigned seed = 1;; seed++) work(seed, 200);
    };
    expect(pthread_create(&thread, nullptr, run, nullptr) == 0, "no thread");
    pthread_detach(thread);
  }
}
// Forks children that run `child` and end by exit(), which each must do with status 0.
void fork_often(int times, void (*child)()) {
  for (int i = 0; i < times; i++) {
    pid_t pid = fork();
    expect(pid >= 0, "fork");
    if (pid == 0) {
      child();
      std::exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    expect(status == 0, "a child did not end well");
  }
}
void expect_no_growth(size_t before) {
  expect(rdmalloc_test::resident_bytes() < before + 24 * kMiB, "memory was lost");
}

// A thread other than the first calls exec while the others are at work, which ends them.
int executes(char** argv) {
  static char** arguments = argv;
  static char generation[16];
  int seen = argv[2] != nullptr ? std::atoi(argv[2]) : 0;
  if (seen == 40) return 0;
  std::snprintf(generation, sizeof generation, "%d", seen + 1);
  start_threads(3);
  pthread_t thread;
  auto run = [](void*) -> void* {
    work(1, 300);
    execl("/proc/self/exe", arguments[0], arguments[1], generation, nullptr);
    fail("exec");
  };
  pthread_create(&thread, nullptr, run, nullptr);
  for (unsigned seed = 1;; seed++) work(seed, 100);
}

// exit() and quick_exit() beside threads at work, with handlers that allocate and fork.
int ends(char**) {
  fork_often(60, [] {
    std::atexit([] {
      fork_often(1, [] {
        work(2, 200);
        _exit(0);
      });
      work(3, 200);
    });
    start_threads(3);
    work(4, 200);
  });
  fork_often(60, [] {
    std::at_quick_exit([] { work(2, 200); });
    start_threads(3);
    work(4, 200);
    std::quick_exit(0);
  });
  return 0;
}

// Handlers of fork that allocate, on both sides, and one that makes a thread in the child.
int fork_handlers(char**) {
  auto allocates = [] { work(5, 60); };
  pthread_atfork(allocates, allocates, [] {
    work(6, 60);
    pthread_t thread;
    auto run = [](void*) -> void* {
      work(7, 60);
      return nullptr;
    };
    expect(pthread_create(&thread, nullptr, run, nullptr) == 0, "no thread in a handler");
    pthread_join(thread, nullptr);
  });
  start_threads(3);
  fork_often(100, [] { work(8, 100); });
  return 0;
}

// A signal's handler that allocates, on the smallest alternate stack that there may be.
int alternate_stack(char**) {
  start_threads(2);
  size_t bytes = static_cast<size_t>(sysconf(_SC_MINSIGSTKSZ)) + 6 * kKiB;
  bytes = (bytes + 4095) & ~size_t{4095};
  auto* stack = static_cast<char*>(
      mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  expect(mprotect(stack, 4096, PROT_NONE) == 0, "no page to fault at");
  stack_t alternate = {};
  alternate.ss_sp = stack + 4096;
  alternate.ss_size = bytes;
  expect(sigaltstack(&alternate, nullptr) == 0, "sigaltstack");
  struct sigaction action = {};
  action.sa_flags = SA_ONSTACK;
  action.sa_handler = [](int) {
    work(9, 20);
    std::free(touched(300 * kKiB));
  };
  sigaction(SIGUSR1, &action, nullptr);
  for (int i = 0; i < 500; i++) raise(SIGUSR1);
  return 0;
}

// libc's own threads, one for each expiry.
int timers(char**) {
  static std::atomic<int> expiries{0};
  struct sigevent event = {};
  event.sigev_notify = SIGEV_THREAD;
  event.sigev_notify_function = [](union sigval) {
    work(10, 30);
    expiries++;
  };
  timer_t timer;
  expect(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  struct itimerspec often = {{0, 200000}, {0, 200000}};
  timer_settime(timer, 0, &often, nullptr);
  while (expiries < 500) usleep(1000);
  size_t before = rdmalloc_test::resident_bytes();
  while (expiries < 2500) usleep(1000);
  expect_no_growth(before);
  timer_delete(timer);
  return 0;
}

// Detached threads that allocate nothing and free what they are handed. They may be behind by a
// hundred. Seen to fail, with libc's malloc too, by any number (SCHED_FIFO on one processor).
int free_only(char**) {
  static std::atomic<int> freed{0};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  size_t before = 0;
  for (int i = 0; i < 10000; i++) {
    void* block = touched(kBlock);
    pthread_t thread;
    auto run = [](void* handed) -> void* {
      std::free(handed);
      freed++;
      return nullptr;
    };
    while (i - freed > 100) usleep(100);
    while (pthread_create(&thread, &attributes, run, block) != 0) usleep(100);
    if (i == 2000) before = rdmalloc_test::resident_bytes();
  }
  expect_no_growth(before);
  return 0;
}

// Threads whose first block is that of a key's destructor, in each round.
int key_destructors(char**) {
  static pthread_key_t key;
  pthread_key_create(&key, [](void* round) {
    std::free(touched(kBlock));
    auto next = reinterpret_cast<size_t>(round) + 1;
    if (next <= PTHREAD_DESTRUCTOR_ITERATIONS)
      pthread_setspecific(key, reinterpret_cast<void*>(next));
  });
  size_t before = 0;
  for (int i = 0; i < 6000; i++) {
    pthread_t thread;
    auto run = [](void*) -> void* {
      pthread_setspecific(key, reinterpret_cast<void*>(size_t{1}));
      return nullptr;
    };
    expect(pthread_create(&thread, nullptr, run, nullptr) == 0, "no thread");
    pthread_join(thread, nullptr);
    if (i == 1000) before = rdmalloc_test::resident_bytes();
  }
  expect_no_growth(before);
  return 0;
}

// The process's first thread ends, the others go on, and the process ends with the last.
int first_thread_ends(char**) {
  fork_often(30, [] {
    for (int i = 0; i < 3; i++) {
      pthread_t thread;
      auto run = [](void*) -> void* {
        for (unsigned seed = 1; seed < 100; seed++) work(seed, 100);
        return nullptr;
      };
      pthread_create(&thread, nullptr, run, nullptr);
      pthread_detach(thread);
    }
    work(1, 100);
    pthread_exit(nullptr);
  });
  return 0;
}

struct Case {
  const char* name;
  int (*run)(char** argv);
};
constexpr Case kCases[] = {
    {"executes", executes},
    {"ends", ends},
    {"fork_handlers", fork_handlers},
    {"alternate_stack", alternate_stack},
    {"timers", timers},
    {"free_only", free_only},
    {"key_destructors", key_destructors},
    {"first_thread_ends", first_thread_ends},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Case& one : kCases)
    if (argc > 1 && std::strcmp(argv[1], one.name) == 0) return one.run(argv);
  fail("no such case");
}
