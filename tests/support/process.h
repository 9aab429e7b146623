// SPDX-License-Identifier: BSD-3-Clause
//
// What tests ask of the process they run in, and child processes with a time limit.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace rdmalloc_test {

// Resident bytes of this process (/proc/self/statm).
size_t resident_bytes();
// Threads of this process now.
int thread_count();
// Without our one that reads files, which ends where no memory is free and is back when there is.
int lasting_thread_count();
// The same once the process has had another one, with which TSan's own begins.
int settled_thread_count();
// Waits until as many lasting ones are left: one that was joined may be in the list still. What
// does not come is ended by the test's own limit.
void wait_for_threads(int expected);
// Threads of this process that have this name (PR_SET_NAME, 15 bytes at most).
int threads_named(const char* name);
// Whether that thread of this process sleeps in the kernel.
bool is_asleep(pid_t thread);
// One field of /proc/self/status in KiB, e.g. "VmPeak"; 0 when absent.
size_t status_kib(const char* field);
// Mappings of this process (/proc/self/maps).
int mapping_count();

// A small generator with a seed that can be printed (xorshift64*, Vigna). Allocates nothing.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567u) {
    if (state_ == 0) state_ = 1;
  }
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  // Uniform in [0, limit).
  size_t below(size_t limit) { return (next() >> 16) % limit; }
  // Every doubling between low and high equally likely.
  size_t size_between(size_t low, size_t high);

 private:
  uint64_t state_;
};

// The seed of this run: TEST_SEED, or `fallback`. Print it in every failure.
uint64_t test_seed(uint64_t fallback);

struct ChildResult {
  int exit_code = -1;      // when it exited
  int signal = 0;          // when a signal ended it
  bool timed_out = false;  // we killed it at the limit
  std::string output;      // its standard output
  std::string errors;      // its standard error
  bool clean() const { return exit_code == 0 && signal == 0 && !timed_out; }
  // For failure messages: how it ended, and what it printed.
  std::string describe() const;
};

struct ChildOptions {
  std::vector<std::string> environment;           // "NAME=value" added to ours; "NAME" removes it
  int limit_ms = 60000;                           // then it is killed
  std::function<void(pid_t)> at_limit = nullptr;  // runs before the kill: look at its stacks
  std::function<void()> before_exec = nullptr;    // in the child: limits and filters
};
// Runs argv[0] (a path) to its end.
ChildResult run_child(const std::vector<std::string>& argv, const ChildOptions& options = {});

// Waits for a child of ours with a limit; true when it ended, false when it was still running, in
// which case its stacks are on standard error and it was killed with SIGKILL. `status` as of
// waitpid.
bool wait_with_limit(pid_t pid, int limit_ms, int* status);

// The stacks of all threads of a process, by gdb; a sentence saying why not, when there is no gdb.
std::string stacks_of(pid_t pid);

// Runs this program again with the variables set, unless they are already (each "NAME=value").
// First thing in main: the allocator reads its settings before main.
void ensure_environment(char** argv, const std::vector<std::string>& variables);

}  // namespace rdmalloc_test
