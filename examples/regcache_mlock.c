/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory that must not be paged out while it is used, from malloc, with a limit: what is used stays
 * locked, what was used longest ago is unlocked when there is no more room. The same happens to
 * registrations with a device that has room for few; this one needs no device.
 *
 *     cc regcache_mlock.c $(pkg-config --cflags --libs rdmalloc-mlock)
 *
 * RLIMIT_MEMLOCK (ulimit -l) may be lower than our limit: then that is the one which makes room.
 */
#include <errno.h>
#include <rdmalloc/registrar_mlock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBuffers = 64, kBytes = 256 * 1024, kRounds = 4, kMostBytes = 4 * 1024 * 1024 };

/* What the kernel says that this process has locked. */
static size_t locked_bytes(void) {
  char line[256];
  size_t kib = 0;
  FILE* status = fopen("/proc/self/status", "r");
  while (status != NULL && fgets(line, sizeof line, status) != NULL)
    if (strncmp(line, "VmLck:", 6) == 0) kib = strtoul(line + 6, NULL, 10);
  if (status != NULL) fclose(status);
  return kib * 1024;
}

/* Locked from the get to the put; after it as long as there is room. */
static int use(struct rdmalloc_domain* domain, char* buffer, int round) {
  struct rdmalloc_reg* reg;
  int error = rdmalloc_reg_get(domain, buffer, kBytes, RDMALLOC_ACCESS_LOCAL, &reg);
  if (error != 0) return error;
  memset(buffer, round, kBytes);
  rdmalloc_reg_put(reg);
  return 0;
}

int main(void) {
  struct rdmalloc_domain_attr limit = {.size = sizeof limit, .max_bytes = kMostBytes};
  struct rdmalloc_domain* domain;
  int error = rdmalloc_domain_open_mlock(&limit, &domain);
  static char* buffers[kBuffers];
  size_t most = 0;
  for (int i = 0; i < kBuffers && error == 0; ++i)
    if ((buffers[i] = malloc(kBytes)) == NULL) error = -ENOMEM;
  for (int step = 0; step < kRounds * kBuffers && error == 0; ++step) {
    error = use(domain, buffers[step % kBuffers], step / kBuffers);
    size_t now = locked_bytes();
    if (now > most) most = now;
  }
  if (error != 0) {
    fprintf(stderr, "regcache_mlock: %s\n", strerror(-error));
    return 1;
  }
  struct rdmalloc_domain_counters counters = {.size = sizeof counters};
  rdmalloc_domain_stats(domain, &counters);
  printf("%d buffers of %d KiB used, at most %zu KiB locked, %llu evictions\n", kBuffers,
         kBytes / 1024, most / 1024, (unsigned long long)counters.evictions);
  for (int i = 0; i < kBuffers; ++i) free(buffers[i]);
  error = rdmalloc_domain_close(domain);
  return error == 0 && most > 0 && most <= kMostBytes && locked_bytes() == 0 ? 0 : 1;
}
