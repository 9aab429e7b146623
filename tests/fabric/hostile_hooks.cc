// SPDX-License-Identifier: BSD-3-Clause
//
// libc's symbols for giving memory back, overridden by the program, as fabrics' memory hooks do:
// first the cache is told, then the system call is made. A thread that calls them with the fabric's
// lock held hangs. Raw system calls pass by unheard, which is what rdmalloc's own paths rely on.
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/fabric/hostile_fabric.h"

extern "C" {

int madvise(void* addr, size_t length, int advice) noexcept {
  if (advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE)
    hostile::notify(addr, length);
  return static_cast<int>(syscall(SYS_madvise, addr, length, advice));
}

int munmap(void* addr, size_t length) noexcept {
  hostile::notify(addr, length);
  return static_cast<int>(syscall(SYS_munmap, addr, length));
}

void* mremap(void* addr, size_t old_length, size_t new_length, int flags, ...) noexcept {
  va_list rest;
  va_start(rest, flags);
  void* target = (flags & MREMAP_FIXED) ? va_arg(rest, void*) : nullptr;
  va_end(rest);
  hostile::notify(addr, old_length);
  return reinterpret_cast<void*>(syscall(SYS_mremap, addr, old_length, new_length, flags, target));
}

}  // extern "C"
