// bench_launch REPORT_FD none|all|memory PROGRAM [ARGUMENT...]: runs a program and writes what it
// took, a JSON object, to REPORT_FD.
//
// It exists because wait4() of a large program lies: the peak of resident memory that it tells of a
// child includes that of the process which started it, since vfork() lends the parent's pages until
// exec and fork() copies them. Between this small one and its child there is next to nothing.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "bench/launch/calls.h"

namespace {

using namespace rdmalloc::bench;

volatile pid_t child_pid = 0;
volatile int exec_error = 0;  // written by the child, which shares our memory up to its exec

// A signal that ends us ends the program; its end is still reported.
void pass_on(int signal) {
  if (child_pid > 0) kill(child_pid, signal);
}

double seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

[[noreturn]] void become(char** arguments) {
  execvp(arguments[0], arguments);
  exec_error = errno;
  _exit(127);
}

pid_t start(char** arguments) {
  const pid_t pid = vfork();
  if (pid == 0) become(arguments);
  return pid;
}

// fork() and not vfork(): the child stops itself to be traced, and we must run meanwhile.
pid_t start_traced(char** arguments, Counting counting) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (const char* failed = let_calls_be_counted(counting)) {
    std::fprintf(stderr, "bench_launch: %s: %s\n", failed, std::strerror(errno));
    _exit(127);
  }
  become(arguments);
}

}  // namespace

int main(int argc, char** argv) {
  Counting counting = Counting::none;
  const int report_fd = argc > 1 ? std::atoi(argv[1]) : -1;
  FILE* report = argc > 3 ? fdopen(report_fd, "w") : nullptr;
  if (report != nullptr && std::strcmp(argv[2], "all") == 0)
    counting = Counting::all;
  else if (report != nullptr && std::strcmp(argv[2], "memory") == 0)
    counting = Counting::memory;
  else if (report == nullptr || std::strcmp(argv[2], "none") != 0) {
    std::fputs("usage: bench_launch REPORT_FD none|all|memory PROGRAM [ARGUMENT...]\n", stderr);
    return 2;
  }
  fcntl(report_fd, F_SETFD, FD_CLOEXEC);
  std::signal(SIGTERM, pass_on);
  std::signal(SIGINT, pass_on);
  const double started = seconds_now();
  const pid_t pid = counting == Counting::none ? start(argv + 3) : start_traced(argv + 3, counting);
  if (pid < 0 || exec_error != 0) {
    std::fprintf(stderr, "bench_launch: %s: %s\n", argv[3],
                 std::strerror(pid < 0 ? errno : exec_error));
    return 127;
  }
  child_pid = pid;
  rusage usage{};
  int status = 0;
  std::fputs("{", report);
  if (counting == Counting::none)
    while (wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
    }
  else
    status = count_calls(pid, counting, usage, report);
  const double wall_s = seconds_now() - started;
  std::fprintf(report,
               "\"status\":%d,\"wall_s\":%.9f,\"cpu_s\":%.6f,\"peak_rss_kib\":%ld,"
               "\"page_faults\":%ld}\n",
               status, wall_s, seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
               usage.ru_maxrss, usage.ru_minflt + usage.ru_majflt);
  return std::fclose(report) == 0 ? 0 : 1;
}
