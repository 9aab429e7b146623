/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A file written through io_uring's fixed buffers, each buffer malloc'ed, used once and freed, and
 * registered only the first time: the cache keeps the registration over the free, because rdmalloc
 * knows that the pages are still the same.
 *
 *     cc regcache_uring.c $(pkg-config --cflags --libs rdmalloc rdmalloc-uring) -luring
 *     ./a.out /tmp/file
 */
#include <fcntl.h>
#include <liburing.h>
#include <rdmalloc/registrar_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kRounds = 1000, kBytes = 256 * 1024 };

static int fail(const char* what, int error) {
  fprintf(stderr, "regcache_uring: %s: %s\n", what, strerror(-error));
  return 1;
}

/* One buffer from malloc to free. 0 or a negative errno. */
static int write_one(struct rdmalloc_domain* domain, struct rdmalloc_uring* uring, int file,
                     int round) {
  char* buffer = malloc(kBytes);
  if (buffer == NULL) return -ENOMEM;
  memset(buffer, 'a' + round % 26, kBytes);

  /* The key is good until the free below; nothing has to be put. */
  struct rdmalloc_key key;
  int error = rdmalloc_reg_key(domain, buffer, kBytes, RDMALLOC_ACCESS_LOCAL, &key);
  if (error == 0) {
    struct io_uring* ring = rdmalloc_uring_ring(uring);
    struct io_uring_sqe* sqe = io_uring_get_sqe(ring);
    io_uring_prep_write_fixed(sqe, file, buffer, kBytes, 0, (int)key.lkey);
    sqe->user_data = (unsigned)round;
    struct io_uring_cqe done;
    int submitted = io_uring_submit(ring);
    error = submitted < 0 ? submitted : rdmalloc_uring_reap(uring, &done, 1, true);
    if (error > 0) error = done.res < 0 ? done.res : 0;
  }
  free(buffer);
  return error;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s FILE (is overwritten)\n", argv[0]);
    return 2;
  }
  int file = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return fail(argv[1], -errno);
  struct rdmalloc_domain* domain;
  struct rdmalloc_uring* uring;
  int error = rdmalloc_domain_open_uring(NULL, NULL, &domain, &uring);
  if (error != 0) return fail("rdmalloc_domain_open_uring", error);
  for (int round = 0; round < kRounds && error == 0; ++round)
    error = write_one(domain, uring, file, round);
  if (error != 0) return fail("writing", error);

  struct rdmalloc_domain_counters counters = {.size = sizeof counters};
  rdmalloc_domain_stats(domain, &counters);
  printf("%d buffers written, %llu registrations\n", kRounds,
         (unsigned long long)counters.registrations);
  error = rdmalloc_domain_close(domain);
  close(file);
  return error == 0 ? 0 : fail("rdmalloc_domain_close", error);
}
