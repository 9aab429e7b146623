// Counts system calls of a program and of everything it starts, by ptrace: a seccomp filter stops
// them at the calls that are counted and at no others, so that the rest runs at full speed.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <cstdio>

namespace rdmalloc::bench {

enum class Counting {
  none,
  all,     // every system call, from the program's first instruction on
  memory,  // the calls by which an allocator gives pages back, between the marks (support/marks.h)
};

// In the child, before it becomes the program. What failed, or nullptr.
const char* let_calls_be_counted(Counting counting);

// In the parent, until `root` has ended; gives its status and usage. Writes a JSON object of counts
// to `report`.
int count_calls(pid_t root, Counting counting, rusage& usage, FILE* report);

}  // namespace rdmalloc::bench
