// Where a program's own work begins and ends: what the dynamic linker and libc do before and after
// is not the program's. bench_launch counts system calls between the marks, bench_cores' plugin
// cache lines. Nothing else minds them; the kernel refuses them.
#pragma once

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rdmalloc::bench {

constexpr unsigned kMarkOption = 0x52444d42;  // no option of prctl(2)
enum class Mark : unsigned { begin = 1, end = 2 };

// Of the calling thread; at an end, how many operations lie between the two. The raw call: libc's
// symbol may be another library's.
inline void mark(Mark what, unsigned long operations = 0) {
  syscall(SYS_prctl, kMarkOption, static_cast<unsigned>(what), operations, 0, 0);
}

}  // namespace rdmalloc::bench
