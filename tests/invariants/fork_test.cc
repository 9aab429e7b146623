// SPDX-License-Identifier: BSD-3-Clause
//
// More than 600 lines: one storm of threads, one way to look after a child, all kinds of fork.
//
// I11: after fork the child allocates and frees, whatever the parent's other threads were doing.
// Built over the prefixed library and, with the standard names, run under the preloaded one. A
// child that hangs is shown with its stacks.
#include <errno.h>
#include <gtest/gtest.h>
#include <link.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "alloc/purge/purge.h"
#include "tests/support/alloc_under_test.h"
#include "tests/support/process.h"

namespace {

using rdmalloc_test::Random;

constexpr size_t kKiB = 1024, kMiB = 1024 * kKiB;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kForks = 50;
#else
constexpr int kForks = 1000;
#endif
// ThreadSanitizer cannot start threads in a child of a process with threads.
#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadsInChild = false;
#else
constexpr bool kThreadsInChild = true;
#endif

// Under a preload rdmalloc's own calls are there too, in libc's malloc they are not.
#if RDMALLOC_TEST_PREFIXED
int64_t purge_all() {
  return rdmalloc_purge(0);
}
void start_purge_thread() {
  rdmalloc_init();
}
#else
extern "C" __attribute__((weak)) int64_t rdmalloc_purge(size_t keep_bytes);
int64_t purge_all() {
  return rdmalloc_purge == nullptr ? 0 : rdmalloc_purge(0);
}
// Any thread's creation starts it there.
void start_purge_thread() {
  std::thread([] {}).join();
}
#endif

// Runs `body` in a child; 0 when it returned true in time. The child uses no gtest, and ends with
// its parent. `after_fork` runs in the parent.
// Of a line of children the last has the least time, so that the one that hangs is shown.
int in_child(const std::function<bool()>& body, const std::function<void()>& after_fork = nullptr) {
  static int limit_ms = 100000;
  pid_t pid = fork();
  if (pid == 0) {
    limit_ms -= limit_ms / 20;
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
bool operate(uint64_t seed, int steps) {
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

bool operate_with_threads(uint64_t seed) {
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

// Threads inside malloc and free all the time, until the end of the object; but for rest().
class Storm {
 public:
  explicit Storm(int threads) {
    for (int i = 0; i < threads; i++) {
      threads_.emplace_back([this, i] {
        for (uint64_t seed = 1; !stop_.load(); seed++) {
          rests_.wait(true);
          if (!operate(seed * 10 + static_cast<uint64_t>(i), 500)) broken_ = true;
          stretches_++;
        }
      });
    }
  }
  ~Storm() { end(); }
  // Each thread sleeps where its stretch ends: a child that was born in the storm needs it no more,
  // and on few processors waits for it most of the time.
  void rest() { rests_ = true; }
  // Returns in the middle of it, when as many stretches as there are threads have ended.
  void go_on() {
    uint64_t enough = stretches_.load() + threads_.size();
    rests_ = false;
    rests_.notify_all();
    while (stretches_.load() < enough) usleep(100);
  }
  void end() {
    stop_ = true;
    rests_ = false;
    rests_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    EXPECT_FALSE(broken_.load()) << "a block of the parent lost its bytes";
  }

 private:
  std::atomic<bool> stop_{false}, rests_{false}, broken_{false};
  std::atomic<uint64_t> stretches_{0};
  std::vector<std::thread> threads_;
};

TEST(Fork, I11_children_of_a_storm_allocate_free_and_start_threads) {
  Storm storm(4);
  for (int i = 0; i < kForks; i++) {
    storm.go_on();
    ASSERT_EQ(in_child([i] { return operate_with_threads(static_cast<uint64_t>(i)); },
                       [&storm] { storm.rest(); }),
              0)
        << "fork " << i;
  }
}

TEST(Fork, I11_children_of_children_do_so_too) {
  Storm storm(3);
  for (int i = 0; i < kForks / 20; i++) {
    ASSERT_EQ(in_child([] {
                if (!operate(1, 300)) return false;
                // The child of this thread, and one of a child with threads of its own.
                if (in_child([] { return operate_with_threads(2); }) != 0) return false;
                if (!kThreadsInChild) return true;
                Storm inner(2);
                return in_child([] {
                         return operate_with_threads(3) &&
                                in_child([] { return operate(4, 500); }) == 0;
                       }) == 0;
              }),
              0)
        << "fork " << i;
  }
}

TEST(Fork, I11_the_childs_frees_and_writes_are_its_own) {
  std::vector<unsigned char*> blocks;
  for (size_t i = 0; i < 2000; i++) {
    size_t bytes = i % 100 == 0 ? kMiB : 16 + i;
    blocks.push_back(static_cast<unsigned char*>(aut::malloc(bytes)));
    memset(blocks.back(), static_cast<int>(i % 250), 16);
  }
  for (int round = 0; round < 5; round++) {
    EXPECT_EQ(in_child([&] {
                for (size_t i = 0; i < blocks.size(); i++) {
                  if (blocks[i][15] != i % 250) return false;
                  memset(blocks[i], 0xFF, 16);
                  aut::free(blocks[i]);
                }
                return operate(5, 5000);
              }),
              0);
  }
  for (size_t i = 0; i < blocks.size(); i++) {
    EXPECT_EQ(blocks[i][0], i % 250);
    EXPECT_EQ(blocks[i][15], i % 250);
    aut::free(blocks[i]);
  }
}

TEST(Fork, I11_a_line_of_forty_generations_keeps_its_memory) {
  // Each generation forks the next from a storm: what the lost threads cached must not be lost for
  // good, or memory grows from child to child.
  std::function<bool(int)> generation = [&](int left) {
    if (!operate(static_cast<uint64_t>(left), 2000)) return false;
    if (left == 0) return rdmalloc_test::resident_bytes() < 256 * kMiB;
    Storm storm(kThreadsInChild ? 2 : 0);
    // Only one generation's storm runs at a time.
    return in_child([&] { return generation(left - 1); }, [&] { storm.end(); }) == 0;
  };
  EXPECT_EQ(in_child([&] { return generation(40); }), 0);
}

TEST(Fork, I11_fork_beside_purges) {
  Storm storm(2);
  std::atomic<bool> stop{false};
  std::thread purger([&] {
    while (!stop.load()) {
      void* block = aut::malloc(3 * kMiB);
      memset(block, 1, 3 * kMiB);
      aut::free(block);
      purge_all();
    }
  });
  for (int i = 0; i < kForks / 4; i++) {
    EXPECT_EQ(in_child([i] {
                if (purge_all() < 0) return false;
                bool good = operate_with_threads(static_cast<uint64_t>(i));
                return good && purge_all() >= 0;
              }),
              0)
        << "fork " << i;
    if (HasFailure()) break;
  }
  stop = true;
  purger.join();
}

TEST(Fork, I11_programs_are_started_from_a_storm) {
  Storm storm(4);
  const char* argv[] = {"/bin/true", nullptr};
  for (int i = 0; i < kForks / 5; i++) {
    pid_t pid = 0;
    int status = -1;
    ASSERT_EQ(posix_spawn(&pid, argv[0], nullptr, nullptr, const_cast<char**>(argv), environ), 0);
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status));
    ASSERT_EQ(status, 0);
    pid = vfork();
    if (pid == 0) {
      execv(argv[0], const_cast<char**>(argv));
      _exit(127);
    }
    ASSERT_TRUE(rdmalloc_test::wait_with_limit(pid, 30000, &status));
    ASSERT_EQ(status, 0);
  }
}

int purge_threads() {
  return rdmalloc_test::threads_named("rdmalloc-purge");
}

// What starts the thread in a child may come before the child's first malloc, which is where it
// finds that it is one.
TEST(Fork, I11_a_child_that_starts_threads_first_has_one_purge_thread) {
  if (!kThreadsInChild) GTEST_SKIP() << "SKIP: ThreadSanitizer starts no threads in a child";
  EXPECT_EQ(in_child([] {
              operate(1, 100);  // a process without a purge thread, which forks
              return in_child([] {
                       for (int i = 0; i < 3; i++) {
                         start_purge_thread();
                         if (!operate(2, 2000)) return false;
                       }
                       // A thread has its name from the moment it first runs.
                       while (purge_threads() == 0) usleep(1000);
                       usleep(20000);
                       int found = purge_threads();
                       if (found != 1) dprintf(2, "%d purge threads\n", found);
                       return found == 1;
                     }) == 0;
            }),
            0);
}

// As after a checkpoint is restored: no page of this process is wiped at fork any more.
void forget_wipe_on_fork() {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char rights[5] = {};
    if (sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights) == 3 && rights[1] == 'w')
      ranges.emplace_back(begin, end);
  }
  // Refused where a mapping is of another kind, or gone by now.
  for (auto [begin, end] : ranges)
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_KEEPONFORK);
}

TEST(Fork, I11_a_child_is_recognised_where_the_kernel_wipes_nothing) {
  EXPECT_EQ(in_child([] {
              operate(1, 300);
              forget_wipe_on_fork();
              Storm storm(kThreadsInChild ? 3 : 0);
              for (int i = 0; i < 30; i++)
                if (in_child([] { return operate_with_threads(2); }) != 0) return false;
              return true;
            }),
            0);
}

// A server that becomes a daemon beside threads in malloc: two forks deep, its parent gone. Fails
// when the daemon hangs, or ends before it has said so.
TEST(Fork, I11_a_daemon_allocates_and_starts_threads) {
  Storm storm(3);
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  EXPECT_EQ(in_child([&told] {
              if (daemon(1, 1) != 0) return false;
              bool is_well = operate_with_threads(11);
              return write(told[1], is_well ? "y" : "n", 1) == 1;
            }),
            0);
  close(told[1]);
  char answer = 0;
  EXPECT_EQ(read(told[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  close(told[0]);
}

TEST(Fork, I11_handlers_of_fork_may_allocate) {
  static std::atomic<int> calls{0};
  auto handler = [] {
    aut::free(aut::malloc(1000));
    aut::free(aut::malloc(2 * kMiB));
    calls++;
  };
  ASSERT_EQ(pthread_atfork(handler, handler, handler), 0);
  Storm storm(3);
  for (int i = 0; i < kForks / 10; i++) ASSERT_EQ(in_child([] { return operate(8, 300); }), 0);
  EXPECT_GE(calls.load(), kForks / 10 * 2);
}

#if RDMALLOC_TEST_PREFIXED
TEST(Fork, I11_fork_while_an_observer_is_inside_a_purge) {
  struct Gate {
    std::atomic<bool> inside{false}, open{false};
  } gate;
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.purge = [](void* arg, void*, size_t, rdmalloc_purge_reason) {
    auto* g = static_cast<Gate*>(arg);
    g->inside = true;
    while (!g->open.load()) usleep(100);
    return 0;
  };
  rdmalloc_observer* observer = nullptr;
  ASSERT_EQ(rdmalloc_observer_add(&ops, &gate, &observer), 0);
  void* block = rdmalloc_malloc(4 * kMiB);
  memset(block, 1, 4 * kMiB);
  rdmalloc_free(block);
  std::thread purger([] { rdmalloc_purge(0); });
  while (!gate.inside.load()) usleep(100);
  // The purge will never end in the child: the thread that makes it is not there.
  EXPECT_EQ(in_child([&] {
              gate.open = true;
              if (!operate_with_threads(3)) return false;
              void* large = rdmalloc_malloc(8 * kMiB);
              memset(large, 1, 8 * kMiB);
              rdmalloc_free(large);
              return rdmalloc_purge(0) > 0;
            }),
            0);
  gate.open = true;
  purger.join();
  EXPECT_EQ(rdmalloc_observer_remove(observer), 0);
}

// Forks in a page event of a purge of 4 MiB. The child calls `first` there, and `then` when that
// purge, which goes on in it, has ended.
void fork_in_a_purge(void (*first)(), bool (*then)()) {
  struct Event {
    void (*first)();
    pid_t forked = -1;
  } event{first};
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.purge = [](void* arg, void*, size_t, rdmalloc_purge_reason) {
    auto* here = static_cast<Event*>(arg);
    if (here->forked != -1) return 0;
    here->forked = fork();
    if (here->forked == 0) here->first();
    return 0;
  };
  rdmalloc_observer* observer = nullptr;
  ASSERT_EQ(rdmalloc_observer_add(&ops, &event, &observer), 0);
  void* block = rdmalloc_malloc(4 * kMiB);
  memset(block, 1, 4 * kMiB);
  rdmalloc_free(block);
  int64_t purged = rdmalloc_purge(0);
  if (event.forked == 0) _exit(purged >= static_cast<int64_t>(4 * kMiB) && then() ? 0 : 1);
  EXPECT_GE(purged, static_cast<int64_t>(4 * kMiB));
  ASSERT_GT(event.forked, 0);
  int status = -1;
  ASSERT_TRUE(rdmalloc_test::wait_with_limit(event.forked, 30000, &status)) << "the child hangs";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(rdmalloc_observer_remove(observer), 0);
}

TEST(Fork, I11_a_page_event_may_fork_and_the_child_ends_the_purge_it_was_born_in) {
  // The first large malloc finds out that it is in a child, in the middle of the purge.
  fork_in_a_purge([] { rdmalloc_free(rdmalloc_malloc(kMiB)); },
                  [] {
                    bool good = operate(1, 500);
                    void* large = rdmalloc_malloc(8 * kMiB);
                    memset(large, 1, 8 * kMiB);
                    rdmalloc_free(large);
                    return good && rdmalloc_purge(0) >= static_cast<int64_t>(8 * kMiB);
                  });
}

// Another thread makes the child whole then, and must leave the purge to the one that goes on with
// it. Seen to fail with the thread that forked unknown to it.
TEST(Fork, I11_in_a_page_event_a_thread_of_the_child_may_be_the_first_to_allocate) {
  if (!kThreadsInChild) GTEST_SKIP() << "SKIP: ThreadSanitizer starts no threads in a child";
  fork_in_a_purge([] { std::thread([] { operate(1, 300); }).join(); },
                  [] { return operate(2, 500) && purge_all() >= 0; });
}

// By two forks one after the other, as a program becomes a daemon: what the last child has it has
// by the name of its parent's parent. Seen to fail with one name kept: the turn was anyone's.
TEST(Fork, I11_a_page_event_may_fork_twice_and_the_purge_is_still_its_own) {
  fork_in_a_purge(
      [] {
        pid_t pid = fork();
        if (pid != 0) {
          int status = -1;
          rdmalloc_test::wait_with_limit(pid, 20000, &status);
          _exit(status == 0 ? 0 : 1);
        }
        if (rdmalloc_purge(0) != -EDEADLK) _exit(1);
      },
      [] { return operate(2, 500) && purge_all() >= 0; });
}

// Nothing that the child does in the purge it was born in asks first whether it is one: it must be
// known before the first lock, which another thread of the parent may have held.
TEST(Fork, I11_each_page_event_may_fork_while_others_hold_locks) {
  struct Forker {
    pthread_t thread;  // not the purge thread, where that comes first
    int event = 0;     // which one forks, once
    pid_t child = -1;
    static void at(void* arg, int event) {
      auto* forker = static_cast<Forker*>(arg);
      if (!pthread_equal(pthread_self(), forker->thread)) return;
      if (forker->event != event || forker->child != -1) return;
      forker->child = fork();
    }
  } forker;
  forker.thread = pthread_self();
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.use = [](void* arg, void*, size_t) { Forker::at(arg, 0); };
  ops.purge = [](void* arg, void*, size_t, rdmalloc_purge_reason) {
    Forker::at(arg, 1);
    return 0;
  };
  ops.purged = [](void* arg, void*, size_t, int) { Forker::at(arg, 2); };
  ops.reuse = [](void* arg, void*, size_t) { Forker::at(arg, 3); };
  rdmalloc_observer* observer = nullptr;
  ASSERT_EQ(rdmalloc_observer_add(&ops, &forker, &observer), 0);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; i++)
    others.emplace_back([&] {
      while (!stop.load()) rdmalloc_free(rdmalloc_malloc(2 * kMiB));
    });
  auto counter = [](const char* name) {
    uint64_t value = 0;
    size_t size = sizeof value;
    rdmalloc_ctl(name, &value, &size, nullptr, 0);
    return value;
  };
  std::vector<void*> kept;
  int forks[4] = {};
  for (int i = 0; i < 400 && *std::min_element(forks, forks + 4) < 10 && !HasFailure(); i++) {
    forker.event = i % 4;
    forker.child = -1;
    // Longer than all that is free, so that some of it is used for the first time.
    if (forker.event == 0)
      kept.push_back(rdmalloc_malloc(
          counter("stats.mapped_bytes") -
          std::min(counter("stats.mapped_bytes"), counter("stats.used_bytes")) + kMiB));
    void* block = rdmalloc_malloc(5 * kMiB);
    memset(block, 1, kMiB);
    rdmalloc_free(block);
    int64_t purged = rdmalloc_purge(0);
    if (forker.child == 0) _exit(purged > 0 && operate(1, 500) && rdmalloc_purge(0) >= 0 ? 0 : 1);
    if (forker.child == -1) continue;  // the purge thread was there first
    forks[forker.event]++;
    int status = -1;
    EXPECT_TRUE(rdmalloc_test::wait_with_limit(forker.child, 30000, &status)) << "the child hangs";
    EXPECT_EQ(status, 0) << "event " << forker.event;
  }
  stop = true;
  for (std::thread& other : others) other.join();
  EXPECT_EQ(rdmalloc_observer_remove(observer), 0);
  for (int count : forks) EXPECT_GE(count, 10);
  for (void* block : kept) rdmalloc_free(block);
}

// The child's only thread is then what was the purge thread.
TEST(Fork, I11_the_purge_thread_may_fork) {
  if (!kThreadsInChild) GTEST_SKIP() << "SKIP: ThreadSanitizer starts no threads in a child";
  // What comes first in the child, before the event returns.
  enum Then { kAllocatesItself, kAnotherDoes, kReturns };
  struct Forker {
    Then then;
    std::atomic<pid_t> child{-1};
  };
  for (Then then : {kAllocatesItself, kAnotherDoes, kReturns}) {
    Forker forker{then};
    rdmalloc_observer_ops ops = {};
    ops.size = sizeof ops;
    ops.purge = [](void* arg, void*, size_t, rdmalloc_purge_reason) {
      auto* me = static_cast<Forker*>(arg);
      if (me->child != -1 || purge_threads() != 1) return 0;
      char name[16] = {};
      prctl(PR_GET_NAME, name);
      if (strcmp(name, "rdmalloc-purge") != 0) return 0;
      pid_t pid = fork();
      if (pid != 0) {
        me->child = pid;
        return 0;
      }
      me->child = 0;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (me->then == kReturns) return 0;
      // A purge thread of the child's own, on another stack than this. Other threads that are made
      // here have the name too, until they are gone.
      int own[64];
      for (int i = 0; i < 64; i++) own[i] = i;
      bool good = true;
      if (me->then == kAnotherDoes) std::thread([&good] { good = operate(3, 300); }).join();
      good &= operate_with_threads(4) && rdmalloc_init() == 0;
      while (purge_threads() != 2) usleep(1000);
      good &= operate_with_threads(5);
      for (int i = 0; i < 64; i++) good &= own[i] == i;
      _exit(good ? 0 : 1);
    };
    rdmalloc_observer* observer = nullptr;
    ASSERT_EQ(rdmalloc_observer_add(&ops, &forker, &observer), 0);
    ASSERT_EQ(rdmalloc_init(), 0);
    while (forker.child == -1) {
      void* block = rdmalloc_malloc(4 * kMiB);
      memset(block, 1, 4 * kMiB);
      rdmalloc_free(block);
      rdmalloc::purge_request_all();
      usleep(1000);
    }
    ASSERT_GT(forker.child, 0);
    int status = -1;
    EXPECT_TRUE(rdmalloc_test::wait_with_limit(forker.child, 30000, &status)) << "the child hangs";
    EXPECT_EQ(status, 0) << "then " << then;
    EXPECT_EQ(rdmalloc_observer_remove(observer), 0);
    EXPECT_EQ(rdmalloc_fini(), 0);
  }
}

TEST(Fork, I11_a_child_purges_by_itself) {
  ASSERT_EQ(rdmalloc_init(), 0);
  EXPECT_EQ(in_child([] {
              uint64_t decay_ms = 10;
              rdmalloc_ctl("purge.decay_ms", nullptr, nullptr, &decay_ms, sizeof decay_ms);
              if (rdmalloc_init() != 0) return false;
              void* block = rdmalloc_malloc(64 * kMiB);
              memset(block, 1, 64 * kMiB);
              rdmalloc_free(block);
              // The parent waits no longer than its limit.
              for (uint64_t dirty = 1; dirty != 0; usleep(1000)) {
                size_t size = sizeof dirty;
                rdmalloc_ctl("stats.dirty_bytes", &dirty, &size, nullptr, 0);
              }
              return true;
            }),
            0);
  EXPECT_EQ(rdmalloc_fini(), 0);
}
#endif

// At the fork a thread of the parent is inside the loader, as one that unwinds an exception or
// makes our purge thread is; its lock stays held in the child. Seen to hang in dl_iterate_phdr()
// when the child asked the loader for the room that its purge thread's stack wants.
TEST(Fork, I11_a_child_makes_a_purge_thread_though_the_loader_is_locked) {
  if (!kThreadsInChild) GTEST_SKIP() << "SKIP: ThreadSanitizer starts no threads in a child";
  aut::free(aut::malloc(1));  // a child that is the first to call us can't know that it is one
  struct Walk {
    std::atomic<bool> is_inside{false}, is_over{false};
  } walk;
  std::thread walker([&] {
    dl_iterate_phdr(
        [](dl_phdr_info*, size_t, void* arg) {
          auto* mine = static_cast<Walk*>(arg);
          mine->is_inside = true;
          while (!mine->is_over) usleep(1000);
          return 1;
        },
        &walk);
  });
  while (!walk.is_inside) usleep(1000);
  int result = in_child([] {
    start_purge_thread();
    return operate(7, 2000);
  });
  walk.is_over = true;
  walker.join();
  EXPECT_EQ(result, 0);
}

}  // namespace
