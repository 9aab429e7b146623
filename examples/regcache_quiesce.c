/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A program that lets a checkpoint be taken of it: between quiesce and resume it has no ring, no
 * pinned page and no thread of rdmalloc's, malloc goes on, and afterwards the same buffer has a new
 * key. CRIU would come where this one prints that it is quiesced.
 *
 *     cc regcache_quiesce.c $(pkg-config --cflags --libs rdmalloc rdmalloc-uring) -luring
 */
#include <rdmalloc/registrar_uring.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBytes = 1 << 20 };

static const char* const kEvents[] = {"",        "prepare: end transfers, put what is held",
                                      "close",   "open",
                                      "resumed", "lost: the device is gone"};

/* What the program has opened itself it closes and opens here. The ring is the registrar's. */
static int on_event(struct rdmalloc_domain* domain, enum rdmalloc_domain_event event, void* arg) {
  (void)domain;
  printf("%s: event: %s\n", (const char*)arg, kEvents[event]);
  return 0;
}

static int fail(const char* what, int error) {
  fprintf(stderr, "regcache_quiesce: %s: %s\n", what, rdmalloc_strerror(error));
  return 1;
}

int main(void) {
  struct rdmalloc_domain_attr attr = {.size = sizeof attr};
  attr.event = on_event;
  attr.event_arg = "io_uring";
  struct rdmalloc_domain* domain;
  struct rdmalloc_uring* uring;
  int error = rdmalloc_domain_open_uring(NULL, &attr, &domain, &uring);
  if (error != 0) return fail("rdmalloc_domain_open_uring", error);

  char* buffer = malloc(kBytes);
  if (buffer == NULL) return 1;
  memset(buffer, 'x', kBytes);
  struct rdmalloc_key before, after;
  error = rdmalloc_reg_key(domain, buffer, kBytes, RDMALLOC_ACCESS_LOCAL, &before);
  if (error != 0) return fail("rdmalloc_reg_key", error);

  error = rdmalloc_quiesce(1000);
  if (error != 0) return fail("rdmalloc_quiesce", error);
  char* meanwhile = malloc(kBytes);
  error = rdmalloc_reg_key(domain, buffer, kBytes, RDMALLOC_ACCESS_LOCAL, &after);
  printf("quiesced: malloc gives %s, the buffer begins with %c, a key is %s\n",
         meanwhile != NULL ? "memory" : "nothing", buffer[0],
         error == -EAGAIN ? "not to be had" : "wrong");
  free(meanwhile);
  if (error != -EAGAIN) return 1;

  error = rdmalloc_resume();
  if (error != 0) return fail("rdmalloc_resume", error);
  error = rdmalloc_reg_key(domain, buffer, kBytes, RDMALLOC_ACCESS_LOCAL, &after);
  if (error != 0) return fail("rdmalloc_reg_key", error);
  printf("resumed: the same address, %s key\n",
         after.generation > before.generation ? "a new" : "the same");
  free(buffer);
  error = rdmalloc_domain_close(domain);
  return error == 0 ? 0 : fail("rdmalloc_domain_close", error);
}
