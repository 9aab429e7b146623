// For registrars that find out by trying whether their fabric really lets memory go.
#pragma once

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "regcache/registrars/fault.h"

namespace rdmalloc::registrars {

// Kilobytes that the kernel says are pinned for this process; -1 when it doesn't say.
inline long pinned_kb() {
  char text[8192];
  if (should_fail("registrar_probe")) return -1;
  int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  ssize_t got = should_fail("registrar_probe") ? -1 : read(file, text, sizeof text - 1);
  close(file);
  if (got <= 0) return -1;
  text[got] = 0;
  const char* line = strstr(text, "VmPin:");
  return line != nullptr ? strtol(line + 6, nullptr, 10) : -1;
}

// Why a domain is not opened, on standard error, unless RDMALLOC_LOG=quiet.
inline void say(const char* why) {
  // Read where the user opens a domain, as fabrics read the environment for theirs.
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* log = getenv("RDMALLOC_LOG");
  if (log == nullptr || strcmp(log, "quiet") != 0) dprintf(STDERR_FILENO, "rdmalloc: %s\n", why);
}

}  // namespace rdmalloc::registrars
