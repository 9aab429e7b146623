/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory that is not malloc's, cached without its owner's word: with RDMALLOC_FOREIGN=watch in the
 * environment the kernel reports when it goes.
 *
 *     cc regcache_watch.c $(pkg-config --cflags --libs rdmalloc rdmalloc-mlock)
 */
#define _GNU_SOURCE
#include <rdmalloc/registrar_mlock.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { kBytes = 64 * 1024, kRounds = 100 };

/* Registers all of it `kRounds` times; how often the registrar was asked. */
static unsigned long long registrations_for(struct rdmalloc_domain* domain, char* memory) {
  struct rdmalloc_domain_counters before = {.size = sizeof before}, after = before;
  rdmalloc_domain_stats(domain, &before);
  for (int round = 0; round < kRounds; ++round) {
    struct rdmalloc_reg* reg = NULL;
    if (rdmalloc_reg_get(domain, memory, kBytes, RDMALLOC_ACCESS_LOCAL, &reg) != 0) return 0;
    memset(memory, round, kBytes); /* a transfer */
    rdmalloc_reg_put(reg);
  }
  rdmalloc_domain_stats(domain, &after);
  return after.registrations - before.registrations;
}

int main(void) {
  char* memory = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct rdmalloc_domain* domain = NULL;
  int error = memory == MAP_FAILED ? -ENOMEM : rdmalloc_domain_open_mlock(NULL, &domain);
  if (error != 0) {
    fprintf(stderr, "regcache_watch: %s\n", strerror(-error));
    return 1;
  }
  struct rdmalloc_watch_counters watch = {.size = sizeof watch};
  rdmalloc_watch_stats(&watch);
  unsigned long long first = registrations_for(domain, memory);
  /* Other pages at the same address, without any call of rdmalloc's. */
  mmap(memory, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  unsigned long long second = registrations_for(domain, memory);
  printf("%d uses: %llu registrations, %llu after the pages were replaced (%s)\n", kRounds, first,
         second, watch.is_on ? "watched" : "not watched");

  error = rdmalloc_domain_close(domain);
  munmap(memory, kBytes);
  if (error != 0 || first == 0 || second == 0) return 1;
  /* A get beside the event is for one use, so there may be a few more. */
  return watch.is_on ? first >= kRounds : first != kRounds;
}
