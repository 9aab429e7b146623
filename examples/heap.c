/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A heap for the length of a request: within a budget, looked through, and gone with one call.
 *
 *     cc heap.c $(pkg-config --cflags --libs rdmalloc)
 */
#include <errno.h>
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_block(void* block, size_t usable_bytes, void* arg) {
  size_t* count = arg;
  if (++*count <= 3) printf("  %p, %zu bytes: %.20s\n", block, usable_bytes, (char*)block);
  return 0; /* anything else ends the walk */
}

int main(void) {
  struct rdmalloc_heap_attr attr = {.size = sizeof attr, .budget_bytes = 1 << 20};
  struct rdmalloc_heap* heap = NULL;
  int error = rdmalloc_heap_create(&attr, &heap);
  if (error != 0) {
    fprintf(stderr, "rdmalloc_heap_create: %s\n", rdmalloc_strerror(error));
    return 1;
  }

  /* Until the budget is used up. */
  char* last = NULL;
  for (int i = 0;; i++) {
    char* line = rdmalloc_heap_malloc(heap, 100);
    if (line == NULL) break;
    snprintf(line, 100, "line %d", i);
    last = line;
  }
  printf("full: %s\n", strerror(errno));

  /* A block may go to any thread, and to libraries that know nothing of heaps: free() takes it. */
  struct rdmalloc_range range = {.size = sizeof range};
  if (rdmalloc_range_of(last, &range) != 0 || range.heap != heap) return 1;
  free(last);

  size_t count = 0;
  rdmalloc_heap_walk(heap, print_block, &count);
  struct rdmalloc_heap_counters counters = {.size = sizeof counters};
  rdmalloc_heap_stats(heap, &counters);
  printf("  ... %zu blocks in %llu bytes of pages\n", count,
         (unsigned long long)counters.span_bytes);

  /* All of them at once. */
  return rdmalloc_heap_destroy(heap) == 0 ? 0 : 1;
}
