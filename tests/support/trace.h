// SPDX-License-Identifier: BSD-3-Clause
//
// What a program asks of the kernel, counted from outside: no figure of time among it.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace rdmalloc_test {

struct KernelUse {
  int status = -1;            // as of waitpid
  std::map<long, int> calls;  // by number, of the program's first thread, execve not counted
  long page_faults = 0;       // that read nothing from a disk
  long peak_kib = 0;          // resident
  int all_calls() const;
  int calls_of(long number) const;
};
// Runs argv[0] (a path) to its end, with "NAME=value" added to the environment and LD_PRELOAD only
// if named. Stepped from call to call by ptrace(2).
KernelUse trace_program(const std::vector<std::string>& argv,
                        const std::vector<std::string>& environment);

}  // namespace rdmalloc_test
