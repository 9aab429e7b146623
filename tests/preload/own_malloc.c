/* SPDX-License-Identifier: BSD-3-Clause
 *
 * A program with a malloc of its own in front of ours: the functions that glibc's manual asks of
 * one
 * ("Replacing malloc"), and reallocarray() not among them, which glibc makes of realloc().
 *
 * Seen to fail with a reallocarray() that takes its block from our malloc, or looks for it there.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static char room[1 << 20] __attribute__((aligned(16)));
static size_t used = 0;

static int is_mine(const void* block) {
  return (const char*)block >= room && (const char*)block < room + sizeof room;
}

void* malloc(size_t bytes) {
  size_t* block = (size_t*)(room + used);
  used += (bytes + 31) & ~(size_t)15;
  if (used > sizeof room) abort();
  block[0] = bytes;
  return block + 2;
}
void free(void* block) {
  if (block != NULL && !is_mine(block)) abort();
}
void* calloc(size_t count, size_t bytes) {
  return malloc(count * bytes); /* never used before */
}
void* realloc(void* block, size_t bytes) {
  if (block != NULL && !is_mine(block)) abort();
  void* longer = malloc(bytes);
  size_t had = block != NULL ? ((size_t*)block)[-2] : 0;
  if (block != NULL) memcpy(longer, block, had < bytes ? had : bytes);
  return longer;
}

int main(void) {
  char* words = malloc(10);
  strcpy(words, "words");
  words = reallocarray(words, 10, 10);
  if (!is_mine(words) || strcmp(words, "words") != 0) return 1;
  free(words);
  words = reallocarray(NULL, 10, 10);
  if (!is_mine(words)) return 2;
  free(words);
  volatile size_t most = SIZE_MAX;
  return reallocarray(NULL, most, 2) == NULL && errno == ENOMEM ? 0 : 3;
}
