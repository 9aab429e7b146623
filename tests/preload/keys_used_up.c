// SPDX-License-Identifier: BSD-3-Clause
//
// A program that takes all keys for thread-specific data before it allocates anything, hence in C.
// It has malloc and threads as with libc's. Seen to fail, malloc returned NULL, where the library
// made its key at the first allocation.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void* run(void* arg) {
  for (size_t bytes = 1; bytes < 100000; bytes += 1000) free(malloc(bytes));
  return arg;
}

int main(void) {
  pthread_key_t key;
  int keys = 0;
  while (pthread_key_create(&key, NULL) == 0) keys++;
  for (size_t bytes = 1; bytes <= 1 << 24; bytes *= 2) {
    void* volatile block = malloc(bytes);
    if (block == NULL) {
      printf("malloc(%zu) failed beside %d keys\n", bytes, keys);
      return 1;
    }
    free(block);
  }
  for (int i = 0; i < 100; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, NULL) != 0) return 2;
    pthread_join(thread, NULL);
  }
  puts("all is well");
  return 0;
}
