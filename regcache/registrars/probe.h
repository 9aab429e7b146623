// For registrars that find out by trying whether their fabric really lets memory go.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "regcache/registrars/fault.h"

namespace rdmalloc::registrars {

// Why a domain is not opened, on standard error, unless RDMALLOC_LOG=quiet.
inline void say(const char* why) {
  // Read where the user opens a domain, as fabrics read the environment for theirs.
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* log = getenv("RDMALLOC_LOG");
  if (log == nullptr || strcmp(log, "quiet") != 0) dprintf(STDERR_FILENO, "rdmalloc: %s\n", why);
}

// Kilobytes that the kernel says are pinned for this process; or a negative errno, which is said:
// whether a fabric lets memory go can't be told then, and no domain may be opened.
inline long pinned_kb() {
  char text[8192];
  errno = EIO;
  ssize_t got = -1;
  int file = should_fail("registrar_probe") ? -1 : open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file >= 0) {
    errno = EIO;
    got = should_fail("registrar_probe") ? -1 : read(file, text, sizeof text - 1);
    int of_read = errno;
    close(file);
    errno = of_read;
  }
  text[got > 0 ? got : 0] = 0;
  const char* line = strstr(text, "VmPin:");
  if (line != nullptr) return strtol(line + 6, nullptr, 10);
  int error = got < 0 ? errno : EIO;
  say("the domain is not opened: VmPin in /proc/self/status can't be read, which tells whether "
      "memory stays pinned once its registration has ended. Mount /proc, or leave descriptors free "
      "(RLIMIT_NOFILE).");
  return -error;
}

// Whether one of three trials shows that memory is let go: try_probe(&probe), with `bytes` of
// touched memory, returns 1; 0: it does not show it; or an error. Another thread that pins
// meanwhile could mislead one trial, hardly three; misled, we refuse, which is the safe side. What
// try_probe() sets to nullptr is never freed. 0, -ENOTSUP, or the error.
template <class Try>
int lets_memory_go(std::size_t alignment, std::size_t bytes, Try try_probe) {
  void* probes[3] = {};
  int result = 0;
  // Another probe for each trial, all of them live to the end: a cache would serve the same one.
  for (int trial = 0; trial < 3 && result == 0; ++trial) {
    if (should_fail("registrar_memory") || posix_memalign(&probes[trial], alignment, bytes) != 0) {
      result = -ENOMEM;
      break;
    }
    memset(probes[trial], 1, bytes);
    result = try_probe(&probes[trial]);
  }
  for (void* probe : probes) free(probe);
  if (result < 0) return result;
  return result == 1 ? 0 : -ENOTSUP;
}

}  // namespace rdmalloc::registrars
