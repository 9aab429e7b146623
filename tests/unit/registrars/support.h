// What the registrars' tests share.
#pragma once

#include <gtest/gtest.h>
#include <rdmalloc/regcache.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

// A line of /proc/self/status in kilobytes: "VmPin", "VmLck".
inline long status_kb(const char* name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.rfind(std::string(name) + ":", 0) == 0)
      return strtol(line.c_str() + strlen(name) + 1, nullptr, 10);
  return -1;
}

inline rdmalloc_domain_counters counters_of(rdmalloc_domain* domain) {
  rdmalloc_domain_counters counters = {};
  counters.size = sizeof counters;
  rdmalloc_domain_stats(domain, &counters);
  return counters;
}

// Runs `body` in a child without privileges and with this RLIMIT_MEMLOCK: root ignores the limit.
// The body's result, or -1 when it died.
template <class Body>
int unprivileged_with_memlock(rlim_t bytes, Body body) {
  pid_t child = fork();
  if (child == 0) {
    rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0) _exit(99);
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(98);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
