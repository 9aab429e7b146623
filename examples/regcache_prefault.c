/* SPDX-License-Identifier: BSD-3-Clause
 *
 * Much memory made ready for transfers at the start of a program: backed and registered by all
 * processors, with reports of progress. Afterwards each use is a hit.
 *
 *     cc regcache_prefault.c $(pkg-config --cflags --libs rdmalloc rdmalloc-uring liburing)
 *     ./a.out [MiB]
 */
#include <rdmalloc/registrar_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static int show(const struct rdmalloc_prefault_progress* now, void* arg) {
  (void)arg;
  printf("%u threads: %llu of %llu MiB backed, %llu of %llu registrations\n", now->threads,
         (unsigned long long)now->backed_bytes >> 20, (unsigned long long)now->bytes >> 20,
         (unsigned long long)now->registered, (unsigned long long)now->registrations);
  return 0; /* anything else would cancel */
}

static unsigned long long registrations(struct rdmalloc_domain* domain) {
  struct rdmalloc_domain_counters counters = {.size = sizeof counters};
  rdmalloc_domain_stats(domain, &counters);
  return counters.registrations;
}

int main(int argc, char** argv) {
  size_t bytes = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 20;
  /* A block is registered in pieces of at most this, which several threads do side by side. */
  struct rdmalloc_domain_attr attr = {.size = sizeof attr, .largest = (size_t)8 << 20};
  struct rdmalloc_domain* domain = NULL;
  struct rdmalloc_uring* uring = NULL;
  int error = rdmalloc_domain_open_uring(NULL, &attr, &domain, &uring);
  if (error == -ENOSYS || error == -EPERM) {
    printf("SKIP: no io_uring here: %s\n", strerror(-error));
    return 77;
  }
  char* memory = error == 0 ? malloc(bytes) : NULL;
  struct iovec range = {memory, bytes};
  if (error == 0) error = memory != NULL ? 0 : -ENOMEM;
  if (error == 0) error = rdmalloc_reg_prefault(&domain, 1, &range, 1, 0, show, NULL);
  struct rlimit limit;
  if (error == -ENOMEM && getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < bytes) {
    printf("SKIP: RLIMIT_MEMLOCK (ulimit -l) is %llu KiB, registered are %zu: name fewer MiB\n",
           (unsigned long long)limit.rlim_cur >> 10, bytes >> 10);
    return 77;
  }
  if (error != 0) {
    fprintf(stderr, "regcache_prefault: %s\n", strerror(-error));
    return 1;
  }
  unsigned long long before = registrations(domain);
  for (size_t at = 0; at < bytes; at += 4096) {
    struct rdmalloc_key key;
    error = rdmalloc_reg_key(domain, memory + at, 4096, RDMALLOC_ACCESS_LOCAL, &key);
    if (error != 0) break;
  }
  printf("%zu keys, %llu more registrations\n", bytes / 4096, registrations(domain) - before);
  int is_right = error == 0 && registrations(domain) == before;
  free(memory);
  return rdmalloc_domain_close(domain) == 0 && is_right ? 0 : 1;
}
