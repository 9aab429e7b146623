// What the registrars' tests share.
#pragma once

#include <gtest/gtest.h>
#include <rdmalloc/regcache.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "alloc/os/fault.h"

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

// Makes each call at each of the sites fail, one after the other. `use` opens a domain, registers
// and closes it, and says what failed, having left nothing; the use after it must work.
inline void fail_each(std::initializer_list<const char*> sites, const std::function<int()>& use) {
  namespace os = rdmalloc::os;
  for (const char* name : sites) {
    os::Site site = os::site_named(name, strlen(name));
    ASSERT_NE(site, os::Site::kCount) << name;
    std::uint64_t nth = 1;
    for (;; ++nth) {
      SCOPED_TRACE(std::string(name) + ":" + std::to_string(nth));
      std::uint64_t fired = os::faults_fired();
      os::arm_fault(site, nth);
      int error = use();
      os::arm_fault(site, 0);
      EXPECT_LE(error, 0);
      if (os::faults_fired() == fired) break;
      ASSERT_EQ(use(), 0) << "after the failure";
      ASSERT_LT(nth, 200u);
    }
    EXPECT_GT(nth, 1u) << name << " was not met";
  }
}

// A fabric that keeps pages pinned would be taken for one that lets them go: no domain opens where
// VmPin can't be read, which an open does `reads` times.
inline void expect_none_opens_unread(const std::function<int(rdmalloc_domain**)>& open,
                                     std::uint64_t reads) {
  rdmalloc_domain* domain = nullptr;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  int refusal = open(&domain);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(refusal, -EMFILE);
  for (std::uint64_t nth = 1; nth <= reads; ++nth) {
    rdmalloc::os::arm_fault(rdmalloc::os::Site::kRegistrarProbe, nth);
    EXPECT_EQ(open(&domain), -EIO) << nth;
  }
  ASSERT_EQ(open(&domain), 0);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
}

// The `use` of a registrar: a registration of a new block, and its end. Blocks are not freed: they
// may be quarantined, and then DPDK takes no other over them.
inline int use_once(const std::function<int(rdmalloc_domain**)>& open, std::uint32_t access) {
  rdmalloc_domain* domain = nullptr;
  if (int error = open(&domain)) return error;
  void* block = rdmalloc_aligned_alloc(std::size_t{2} << 20, std::size_t{2} << 20);
  rdmalloc_reg* reg = nullptr;
  int error = rdmalloc_reg_get(domain, block, std::size_t{2} << 20, access, &reg);
  rdmalloc_reg_put(reg);
  rdmalloc_domain_flush(domain);
  EXPECT_EQ(rdmalloc_domain_close(domain), 0);
  return error;
}

// Registrations of new blocks on four threads at once.
inline void use_on_many_threads(rdmalloc_domain* domain, std::uint32_t access) {
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        void* block = rdmalloc_malloc(std::size_t{3} << 20);
        rdmalloc_reg* reg = nullptr;
        if (rdmalloc_reg_get(domain, block, std::size_t{1} << 20, access, &reg) != 0) ++failures;
        rdmalloc_reg_put(reg);
        rdmalloc_free(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(counters_of(domain).live_count, 0u);
}
