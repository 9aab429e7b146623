// SPDX-License-Identifier: BSD-3-Clause
//
// A seccomp filter that lets some system calls through, or refuses some.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rdmalloc_test {

// For the calling thread and what it makes from here on, for ever. `listed`, `otherwise`: what
// these calls and the others meet, SECCOMP_RET_TRAP and its like. False where the kernel sets none.
template <class Calls>
bool filter_calls(const Calls& calls, std::uint32_t listed, std::uint32_t otherwise) {
  std::vector<sock_filter> program;
  program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (long call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, listed));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, otherwise));
  sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

template <class Calls>
bool allow_only(const Calls& calls, std::uint32_t otherwise) {
  return filter_calls(calls, SECCOMP_RET_ALLOW, otherwise);
}

// Ends the process at an mmap with one of these flags. False where the kernel sets no filter.
inline bool end_at_mmap_flags(std::uint32_t flags) {
  constexpr unsigned kFlags = offsetof(seccomp_data, args[3]);  // the lower half: little-endian
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFlags),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flags, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter = {sizeof program / sizeof *program, program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace rdmalloc_test
