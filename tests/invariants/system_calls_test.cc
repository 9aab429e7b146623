// SPDX-License-Identifier: BSD-3-Clause
//
// docs/system-calls.md: its first table says which system calls we make, by situation. Each
// situation is run under a filter that lets those pass and no other, and once more for each of them
// without it: none is missing there, and none too many.
//
// Seen to fail with `getppid` added to a row, and with `mprotect` taken from one.
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <rdmalloc/rdmalloc.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "alloc/cache/shards.h"
#include "alloc/cache/thread_cache.h"
#include "alloc/core/options.h"
#include "alloc/core/standard_error.h"
#include "alloc/pages/page_heap.h"
#include "tests/support/call_filter.h"
#include "tests/support/counters.h"
#include "tests/support/process.h"

namespace {

using Calls = std::set<long>;

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kNotAllowed = 3;  // exit status of a situation that made another call
constexpr int kUntold = 4;      // the same, on our thread that has no descriptor to tell by
constexpr long kNone = -1, kUnknown = -2;

const std::map<std::string, long> kNumbers = {{"fstat", SYS_fstat},
                                              {"getpid", SYS_getpid},
                                              {"gettid", SYS_gettid},
                                              {"madvise", SYS_madvise},
                                              {"membarrier", SYS_membarrier},
                                              {"mincore", SYS_mincore},
                                              {"mmap", SYS_mmap},
                                              {"munmap", SYS_munmap},
                                              {"mprotect", SYS_mprotect},
                                              {"prlimit64", SYS_prlimit64},
                                              {"sysinfo", SYS_sysinfo},
                                              {"futex", SYS_futex},
                                              {"close", SYS_close},
                                              {"openat", SYS_openat},
                                              {"read", SYS_read},
                                              {"prctl", SYS_prctl},
                                              {"nanosleep", SYS_nanosleep},
                                              {"getppid", SYS_getppid},
                                              {"sched_getscheduler", SYS_sched_getscheduler},
                                              {"get_robust_list", SYS_get_robust_list},
                                              {"close_range", SYS_close_range}};

// ------------------------------------------------------------------ a filter of one thread

int report_to = -1;  // where the number of a call that is not allowed is written

void on_call(int, siginfo_t* info, void*) {
  long number = info->si_syscall;
  if (write(report_to, &number, sizeof number) < 0) _exit(kUntold);
  _exit(kNotAllowed);
}

void allow_only(Calls calls) {
  // Of the tests themselves: to end, to tell, to wait.
  calls.insert({SYS_exit_group, SYS_exit, SYS_write, SYS_rt_sigreturn, SYS_clock_nanosleep});
  struct sigaction action = {};
  action.sa_sigaction = on_call;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  if (!rdmalloc_test::allow_only(calls, SECCOMP_RET_TRAP)) _exit(9);
}

// ------------------------------------------------------------------ the situations

void use(size_t bytes) {
  rdmalloc_free(rdmalloc_malloc(bytes));
}
void* filled(size_t bytes) {
  return memset(rdmalloc_malloc(bytes), 1, bytes);
}
void use_all_sizes() {
  void* blocks[64];
  for (size_t factor : {size_t{1}, size_t{100}, size_t{700}, 20 * size_t{1024}}) {
    for (size_t i = 0; i < 64; i++) blocks[i] = rdmalloc_malloc(factor * (i + 1));
    for (void* block : blocks) rdmalloc_free(block);
    for (size_t i = 0; i < 64; i++) blocks[i] = rdmalloc_calloc(1, factor * (i + 1));
    for (size_t i = 0; i < 64; i++) blocks[i] = rdmalloc_realloc(blocks[i], factor * (i + 2));
    for (void* block : blocks) rdmalloc_free(block);
  }
}
// What a thread keeps after the first time lies elsewhere than what it takes then. From the third
// time on, however often, nothing is needed.
void use_all_sizes_twice() {
  use_all_sizes();
  use_all_sizes();
}
void use_all_sizes_often() {
  for (int i = 0; i < 20; i++) use_all_sizes();
}
void settle(const char* counter, uint64_t value) {
  while (rdmalloc_test::counter(counter) != value) usleep(1000);
}

// In a futex wait without a time. Where the kernel does not tell: after some decay times.
bool purge_thread_sleeps_for_good() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(entry.path() / "comm") >> name;
    if (name != "rdmalloc-purge") continue;
    std::ifstream file(entry.path() / "syscall");
    if (!file) return usleep(300000) == 0;
    std::string number, word, operation, value, time;
    file >> number >> word >> operation >> value >> time;
    return number == std::to_string(SYS_futex) && time == "0x0";
  }
  return false;
}

// What is done before the filter, and what under it, on the same thread.
struct Situation {
  const char* name;
  std::function<void()> before;
  std::function<void()> now;
  Calls of_libc = {};
};

const Calls kOfThreads = {SYS_clone3,      SYS_clone,          SYS_rseq,   SYS_set_robust_list,
                          SYS_futex,       SYS_rt_sigprocmask, SYS_munmap, SYS_mprotect,
                          SYS_madvise,     SYS_mmap,           SYS_gettid, SYS_getpid,
                          SYS_rt_sigaction};

const std::vector<Situation>& situations() {
  static const std::vector<Situation> all = {
      {"the start, and before each message", [] {}, [] { rdmalloc::standard_error_note(); }},
      {"the first allocation", [] {}, [] { use(100); }},
      {"the same with `RDMALLOC_PRESSURE=off`, which reads the limits of memory then, and no more",
       [] {
         setenv("RDMALLOC_PRESSURE", "off", 1);
         rdmalloc::options_read();
       },
       [] { use(100); }},
      {"malloc, calloc, realloc and free of what was there before", use_all_sizes_twice,
       use_all_sizes_often},
      {"malloc that needs more memory", [] { use(100); },
       [] {
         for (int i = 0; i < 3; i++) filled(4 * kMiB);
       }},
      {"the same, from 16 MiB on (`RDMALLOC_HUGE=never`: `mprotect`)", [] { use(100); },
       [] {
         for (int i = 0; i < 12; i++) filled(4 * kMiB);
       }},
      {"the same, from 64 MiB on (`RDMALLOC_HUGE=never`: `mprotect` `prlimit64`)", [] { use(100); },
       [] {
         for (int i = 0; i < 50; i++) filled(4 * kMiB);
       }},
      {"the same, for a block of 8 MiB or more", [] { use(100); },
       [] { rdmalloc_malloc(16 * kMiB); }},
      {"a thread's first allocation, and its end", [] { use_all_sizes(); }, [] {}},
      {"free() that wakes the purge thread",
       [] {
         rdmalloc_init();
         use_all_sizes();
         rdmalloc_purge(0);
         while (!purge_thread_sleeps_for_good()) usleep(1000);
       },
       [] { rdmalloc_free(filled(4 * kMiB)); },
       {SYS_mprotect, SYS_madvise}},
      {"the first allocation of a child of fork",
       [] {
         use_all_sizes_twice();
         if (fork() != 0) {
           int status = 0;
           wait(&status);
           _exit(WEXITSTATUS(status));
         }
       },
       use_all_sizes_often},
      {"`malloc_trim()`, `rdmalloc_purge()`", [] { rdmalloc_free(filled(4 * kMiB)); },
       [] { rdmalloc_malloc_trim(0); }},
      {"the program's first thread: which processors, nodes and limits of memory there are "
       "(`RDMALLOC_TOPOLOGY=one`: none)",
       [] { use(100); }, [] { rdmalloc::shards_learn(); }},
      {"the purge thread",
       [] {
         use(100);
         rdmalloc_free(filled(4 * kMiB));
         rdmalloc::shards_learn();
       },
       [] {
         rdmalloc_init();
         settle("stats.dirty_bytes", 0);
         rdmalloc_fini();
       },
       kOfThreads},
      {"the same with 8 MiB or more free (`RDMALLOC_PRESSURE=off`: no more)",
       [] {
         use(100);
         rdmalloc_free(filled(40 * kMiB));
         rdmalloc::shards_learn();
       },
       [] {
         rdmalloc_init();
         settle("stats.dirty_bytes", 0);
         rdmalloc_fini();
       },
       kOfThreads},
      {"the same, where a thread is idle with 16 KiB or more in its cache "
       "(`RDMALLOC_PRESSURE=off`: no "
       "more)",
       [] {
         use(100);
         std::thread([] {
           void* blocks[100];
           for (void*& block : blocks) block = rdmalloc_malloc(1000);
           for (void* block : blocks) rdmalloc_free(block);
           pause();
         }).detach();
         while (rdmalloc_test::counter("stats.cached_bytes") < (16u << 10)) usleep(1000);
         rdmalloc_free(filled(4 * kMiB));
         rdmalloc::shards_learn();
       },
       [] {
         rdmalloc_init();
         while (rdmalloc_test::counter("stats.reclaimed_bytes") == 0) usleep(1000);
         settle("stats.dirty_bytes", 0);
         rdmalloc_fini();
       },
       kOfThreads},
      {"malloc that finds no memory, in a program of several threads (`RDMALLOC_PRESSURE=off`: no "
       "`membarrier`)",
       [] {
         use(100);
         std::thread([] {
           use(100);
           pause();
         }).detach();
         while (rdmalloc_test::counter("stats.threads") != 2) usleep(1000);
         rlimit limit = {(rdmalloc_test::status_kib("VmData") << 10) + 64 * kMiB, RLIM_INFINITY};
         setrlimit(RLIMIT_DATA, &limit);
       },
       [] {
         while (rdmalloc_malloc(4 * kMiB) != nullptr) {
         }
       }},
      {"the program lowers `RLIMIT_AS`", [] { use(100); },
       [] {
         rdmalloc::page_heap_fit_limit();
         rdmalloc::caches_fit_limit(uint64_t{4} << 30);
       }},
  };
  return all;
}

// Runs a situation under a filter, in a process of its own. What else was called: its number, or
// kUnknown, by a thread of ours, which takes no signal and ends the process.
long call_beyond(const Situation& situation, const Calls& allowed) {
  int words[2];
  EXPECT_EQ(pipe(words), 0);
  pid_t child = fork();
  if (child == 0) {
    report_to = words[1];
    situation.before();
    Calls calls = allowed;
    calls.insert(situation.of_libc.begin(), situation.of_libc.end());
    if (strcmp(situation.name, "a thread's first allocation, and its end") == 0) {
      // Ours end before libc's calls do: the filter holds up to the last key destructor.
      std::thread([&] {
        allow_only(calls);
        use(100);
        _exit(0);
      }).join();
    }
    allow_only(calls);
    situation.now();
    _exit(0);
  }
  close(words[1]);
  int status = -1;
  EXPECT_TRUE(rdmalloc_test::wait_with_limit(child, 60000, &status)) << situation.name;
  long number = 0;
  bool is_told = read(words[0], &number, sizeof number) == sizeof number;
  close(words[0]);
  if (is_told) return number;
  bool is_ended_by_filter = (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) ||
                            (WIFEXITED(status) && WEXITSTATUS(status) == kUntold);
  if (!is_ended_by_filter) {
    EXPECT_EQ(status, 0) << situation.name;
  }
  return is_ended_by_filter ? kUnknown : kNone;
}

std::string name_of(long number) {
  for (const auto& [name, call] : kNumbers)
    if (call == number) return name;
  return number == kUnknown ? "a call of a thread of ours" : std::to_string(number);
}

// The rows of the document's first table.
std::map<std::string, Calls> documented() {
  std::map<std::string, Calls> rows;
  std::ifstream file(SYSTEM_CALLS_PAGE);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| ", 0) != 0) {
      if (!rows.empty()) break;
      continue;
    }
    size_t middle = line.find(" | "), end = line.rfind(" |");
    std::string name = line.substr(2, middle - 2);
    if (name == "situation") continue;
    std::istringstream words(line.substr(middle + 3, end - middle - 3));
    Calls calls;
    for (std::string word; words >> word;) {
      if (word == "none") continue;
      auto found = kNumbers.find(word.substr(1, word.size() - 2));
      EXPECT_NE(found, kNumbers.end()) << word << " is not known to this test";
      if (found != kNumbers.end()) calls.insert(found->second);
    }
    rows[name] = calls;
  }
  return rows;
}

TEST(SystemCalls, are_those_that_the_document_lists_in_each_situation) {
  std::map<std::string, Calls> rows = documented();
  for (const Situation& situation : situations()) {
    ASSERT_TRUE(rows.contains(situation.name)) << situation.name << ": no such row";
    Calls calls = rows[situation.name];
    rows.erase(situation.name);
    long beyond = call_beyond(situation, calls);
    EXPECT_EQ(beyond, kNone) << situation.name << ": " << name_of(beyond) << " is not in its row";
    for (long call : calls) {
      if (situation.of_libc.contains(call)) continue;
      Calls fewer = calls;
      fewer.erase(call);
      EXPECT_NE(call_beyond(situation, fewer), kNone)
          << situation.name << ": " << name_of(call) << " is in its row, and not called";
    }
  }
  for (const auto& [name, calls] : rows) ADD_FAILURE() << name << ": a row that is not tried";
}

}  // namespace

int main(int argc, char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_DECAY_MS=100"});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
