// Where a program's own work begins and ends, for the counting of system calls by bench_launch:
// what the dynamic linker and libc do before and after is not the program's. Nothing else minds the
// marks; the kernel refuses them.
#pragma once

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rdmalloc::bench {

constexpr unsigned kMarkOption = 0x52444d42;  // no option of prctl(2)
enum class Mark : unsigned { begin = 1, end = 2 };

// The raw call: libc's symbol may be somebody's.
inline void mark(Mark what) {
  syscall(SYS_prctl, kMarkOption, static_cast<unsigned>(what), 0, 0, 0);
}

}  // namespace rdmalloc::bench
