/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Memory that is not malloc's (here a mapping; a GPU's, a file's, another library's pool) in the
 * registration cache: its owner vouches for it, and takes it back before the pages go.
 *
 *     cc regcache_adopt.c $(pkg-config --cflags --libs rdmalloc rdmalloc-mlock)
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
    fprintf(stderr, "regcache_adopt: %s\n", strerror(-error));
    return 1;
  }
  unsigned long long per_use = registrations_for(domain, memory);
  error = rdmalloc_adopt(memory, kBytes);
  unsigned long long adopted = registrations_for(domain, memory);
  printf("%d uses: %llu registrations, adopted %llu\n", kRounds, per_use, adopted);

  /* 0: no registration is left, so the pages may go. */
  if (error == 0) error = rdmalloc_disown(memory, kBytes);
  if (error == 0) munmap(memory, kBytes);
  if (error == 0) error = rdmalloc_domain_close(domain);
  return error == 0 && per_use == kRounds && adopted == 1 ? 0 : 1;
}
