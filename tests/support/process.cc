// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

namespace rdmalloc_test {

// read(2) into the stack: these are called while memory is being measured.
static size_t read_proc(const char* path, char* buffer, size_t capacity) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  size_t length = 0;
  ssize_t got;
  while (length + 1 < capacity && (got = read(fd, buffer + length, capacity - 1 - length)) > 0)
    length += static_cast<size_t>(got);
  close(fd);
  buffer[length] = 0;
  return length;
}

size_t resident_bytes() {
  char text[256];
  if (read_proc("/proc/self/statm", text, sizeof text) == 0) return 0;
  const char* second = strchr(text, ' ');
  if (second == nullptr) return 0;
  return strtoull(second + 1, nullptr, 10) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

bool is_asleep(pid_t thread) {
  std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  FILE* file = fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  char state = '?';
  int fields = fscanf(file, "%*d (%*[^)]) %c", &state);
  fclose(file);
  return fields == 1 && state == 'S';
}

size_t status_kib(const char* field) {
  char text[8192];
  if (read_proc("/proc/self/status", text, sizeof text) == 0) return 0;
  const char* at = strstr(text, field);
  if (at == nullptr) return 0;
  at = strchr(at, ':');
  return at == nullptr ? 0 : strtoull(at + 1, nullptr, 10);
}

int mapping_count() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

int thread_count() {
  char text[8192];
  if (read_proc("/proc/self/status", text, sizeof text) == 0) return -1;
  const char* at = strstr(text, "\nThreads:");
  return at == nullptr ? -1 : atoi(at + 9);
}

template <class Is>
static int count_threads(Is is_counted) {
  int found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    found += std::getline(comm, name) && is_counted(name);
  }
  return found;
}

// In one look: a thread that ends between two would be counted in one of them only. Twice alike:
// one that begins has no name yet.
int lasting_thread_count() {
  auto count = [] {
    return count_threads([](const std::string& name) { return name != "rdmalloc-files"; });
  };
  for (int last = -1, now = count();; last = now, now = count()) {
    if (now == last) return now;
    usleep(1000);
  }
}

int settled_thread_count() {
  std::string entry;
  std::thread([&] { entry = "/proc/self/task/" + std::to_string(gettid()); }).join();
  while (access(entry.c_str(), F_OK) == 0) usleep(1000);
  return lasting_thread_count();
}

void wait_for_threads(int expected) {
  while (lasting_thread_count() != expected) usleep(1000);
}

int threads_named(const char* wanted) {
  return count_threads([wanted](const std::string& name) { return name == wanted; });
}

size_t Random::size_between(size_t low, size_t high) {
  unsigned bits_low = 63u - static_cast<unsigned>(__builtin_clzl(low));
  unsigned bits_high = 63u - static_cast<unsigned>(__builtin_clzl(high));
  unsigned bits = bits_low + static_cast<unsigned>(below(bits_high - bits_low + 1));
  size_t size = (size_t{1} << bits) + below(size_t{1} << bits);
  return size < low ? low : size > high ? high : size;
}

uint64_t test_seed(uint64_t fallback) {
  const char* text = getenv("TEST_SEED");
  return text == nullptr ? fallback : strtoull(text, nullptr, 0);
}

static int64_t now_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

enum class Child { kEnded, kRuns, kNone };

// What a child of ours is after that time at most; ended, `status` is its. kNone: no child of ours.
// Counted in naps, and not in what the clock says: while the whole machine stands still no child
// can end. Longer ones once it has waited: forty that look each millisecond fill a processor.
static Child look_for(pid_t pid, int limit_ms, int* status) {
  if (pid <= 0) return Child::kNone;  // kill(-1) would be for all
  for (int napped_ms = 0;;) {
    pid_t got = waitpid(pid, status, WNOHANG);
    if (got == pid) return Child::kEnded;
    if (got < 0 && errno != EINTR) return Child::kNone;
    if (napped_ms >= limit_ms) return Child::kRuns;
    int nap_ms = napped_ms < 100 ? 1 : std::min(10, limit_ms - napped_ms);
    timespec nap = {0, nap_ms * 1000000};
    nanosleep(&nap, nullptr);
    napped_ms += nap_ms;
  }
}

static void kill_and_collect(pid_t pid, int* status) {
  kill(pid, SIGKILL);
  waitpid(pid, status, 0);
}

bool wait_with_limit(pid_t pid, int limit_ms, int* status) {
  Child child = look_for(pid, limit_ms, status);
  if (child != Child::kRuns) return child == Child::kEnded;
  fprintf(stderr, "process %d is still running after %d ms:\n%s\n", pid, limit_ms,
          stacks_of(pid).c_str());
  kill_and_collect(pid, status);
  return false;
}

static void apply_environment(const std::vector<std::string>& changes) {
  for (const std::string& change : changes) {
    size_t equals = change.find('=');
    if (equals == std::string::npos)
      unsetenv(change.c_str());
    else
      setenv(change.substr(0, equals).c_str(), change.substr(equals + 1).c_str(), 1);
  }
}

[[noreturn]] static void become(const std::vector<std::string>& argv, const ChildOptions& options,
                                int out, int err) {
  apply_environment(options.environment);
  dup2(out, 1);
  dup2(err, 2);
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  if (options.before_exec) options.before_exec();
  execv(words[0], words.data());
  fprintf(stderr, "cannot run %s: %s\n", words[0], strerror(errno));
  _exit(127);
}

// Collects both pipes until they close or the time is over, what is left of which it says; false at
// the limit. In naps, as look_for().
static bool collect(int out, int err, int* left_ms, ChildResult* result) {
  pollfd watched[2] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
  std::string* sinks[2] = {&result->output, &result->errors};
  int64_t at_ms = now_ms();
  while (watched[0].fd >= 0 || watched[1].fd >= 0) {
    if (*left_ms <= 0) return false;
    int nap_ms = std::min(*left_ms, 1000);
    int ready = poll(watched, 2, nap_ms);
    int64_t before_ms = std::exchange(at_ms, now_ms());
    *left_ms -= static_cast<int>(std::min<int64_t>(at_ms - before_ms, nap_ms));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    for (int i = 0; i < 2; i++) {
      if (watched[i].fd < 0 || watched[i].revents == 0) continue;
      char buffer[4096];
      ssize_t got = read(watched[i].fd, buffer, sizeof buffer);
      if (got > 0)
        sinks[i]->append(buffer, static_cast<size_t>(got));
      else
        watched[i].fd = -1;
    }
  }
  return true;
}

ChildResult run_child(const std::vector<std::string>& argv, const ChildOptions& options) {
  ChildResult result;
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    result.errors = std::string("pipe2: ") + strerror(errno);
    return result;
  }
  pid_t pid = fork();
  if (pid == 0) become(argv, options, out[1], err[1]);
  close(out[1]);
  close(err[1]);
  int status = 0, left_ms = options.limit_ms;
  bool closed = collect(out[0], err[0], &left_ms, &result);
  if (!closed && options.at_limit) options.at_limit(pid);
  result.timed_out = look_for(pid, closed ? left_ms : 0, &status) == Child::kRuns;
  if (result.timed_out) kill_and_collect(pid, &status);
  close(out[0]);
  close(err[0]);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

std::string ChildResult::describe() const {
  std::string text = timed_out ? "still running at the limit, killed"
                     : signal  ? "ended by signal " + std::to_string(signal)
                               : "exit code " + std::to_string(exit_code);
  return text + "\n--- standard output\n" + output + "--- standard error\n" + errors + "---";
}

std::string stacks_of(pid_t pid) {
  static const char kGdb[] = "/usr/bin/gdb";
  if (access(kGdb, X_OK) != 0) return "(no stacks: " + std::string(kGdb) + " is not installed)";
  ChildOptions options;
  options.environment = {"LD_PRELOAD", "DEBUGINFOD_URLS"};
  options.limit_ms = 60000;
  ChildResult gdb = run_child({kGdb, "-nx", "-batch", "-p", std::to_string(pid), "-ex",
                               "set print frame-arguments none", "-ex", "thread apply all bt"},
                              options);
  return gdb.output.empty() ? "(no stacks) " + gdb.describe() : gdb.output;
}

void ensure_environment(char** argv, const std::vector<std::string>& variables) {
  bool all_set = true;
  for (const std::string& variable : variables) {
    size_t equals = variable.find('=');
    const char* value = getenv(variable.substr(0, equals).c_str());
    if (value == nullptr || variable.substr(equals + 1) != value) all_set = false;
  }
  if (all_set) return;
  apply_environment(variables);
  execv("/proc/self/exe", argv);
  perror("execv /proc/self/exe");
  _exit(127);
}

}  // namespace rdmalloc_test
