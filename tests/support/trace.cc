// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/trace.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rdmalloc_test {
namespace {

[[noreturn]] void become(const std::vector<std::string>& argv,
                         const std::vector<std::string>& environment) {
  unsetenv("LD_PRELOAD");
  for (const std::string& variable : environment) putenv(strdup(variable.c_str()));
  std::vector<char*> pointers;
  for (const std::string& argument : argv) pointers.push_back(strdup(argument.c_str()));
  pointers.push_back(nullptr);
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0) execv(pointers[0], pointers.data());
  _exit(127);
}

std::string read_proc(pid_t pid, const char* name) {
  std::string path = "/proc/" + std::to_string(pid) + "/" + name, text;
  FILE* file = fopen(path.c_str(), "r");
  if (file == nullptr) return text;
  char buffer[4096];
  while (size_t got = fread(buffer, 1, sizeof buffer, file)) text.append(buffer, got);
  fclose(file);
  return text;
}

// The tenth field of /proc/PID/stat; the second, in brackets, may hold anything.
long page_faults_of(pid_t pid) {
  std::string text = read_proc(pid, "stat");
  size_t name_end = text.rfind(')');
  long faults = 0;
  if (name_end == std::string::npos ||
      sscanf(text.c_str() + name_end, ") %*c %*d %*d %*d %*d %*d %*u %ld", &faults) != 1)
    return 0;
  return faults;
}

long peak_kib_of(pid_t pid) {
  std::string text = read_proc(pid, "status");
  size_t at = text.find("VmHWM:");
  return at == std::string::npos ? 0 : strtol(text.c_str() + at + strlen("VmHWM:"), nullptr, 10);
}

}  // namespace

int KernelUse::all_calls() const {
  int sum = 0;
  for (const auto& [number, count] : calls) sum += count;
  return sum;
}

int KernelUse::calls_of(long number) const {
  auto found = calls.find(number);
  return found == calls.end() ? 0 : found->second;
}

KernelUse trace_program(const std::vector<std::string>& argv,
                        const std::vector<std::string>& environment) {
  KernelUse use;
  pid_t pid = fork();
  if (pid < 0) return use;
  if (pid == 0) become(argv, environment);
  // It stops first at its execve: what the copy of this process cost until then is none of it.
  if (waitpid(pid, &use.status, 0) != pid || !WIFSTOPPED(use.status)) return use;
  long faults_before = page_faults_of(pid);
  constexpr int kOptions = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL;
  ptrace(PTRACE_SETOPTIONS, pid, nullptr, reinterpret_cast<void*>(kOptions));
  int deliver = 0;
  for (;;) {
    if (ptrace(PTRACE_SYSCALL, pid, nullptr, reinterpret_cast<void*>(intptr_t{deliver})) != 0)
      return use;
    if (waitpid(pid, &use.status, 0) != pid || !WIFSTOPPED(use.status)) break;
    deliver = 0;
    if (WSTOPSIG(use.status) == (SIGTRAP | 0x80)) {
      __ptrace_syscall_info info{};
      ptrace(PTRACE_GET_SYSCALL_INFO, pid, reinterpret_cast<void*>(sizeof info), &info);
      if (info.op == PTRACE_SYSCALL_INFO_ENTRY) use.calls[static_cast<long>(info.entry.nr)]++;
    } else if (use.status >> 8 == (SIGTRAP | (PTRACE_EVENT_EXIT << 8))) {
      use.page_faults = page_faults_of(pid) - faults_before;
      use.peak_kib = peak_kib_of(pid);
    } else {
      deliver = WSTOPSIG(use.status);
    }
  }
  return use;
}

}  // namespace rdmalloc_test
