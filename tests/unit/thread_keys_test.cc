// SPDX-License-Identifier: BSD-3-Clause
//
// A thread that only frees, where libc needs memory to note that the thread has a cache, and has
// none: a program with many keys. errno stays (POSIX.1-2024).
//
// Seen to fail without the errno that make_cache() keeps.
#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>
#include <stdlib.h>

#include <thread>

extern "C" void* __libc_calloc(size_t count, size_t bytes);

namespace {
thread_local bool calloc_fails = false;
int failures = 0;
}  // namespace

// libc takes memory for keys from the program's calloc.
extern "C" void* calloc(size_t count, size_t bytes) {
  if (!calloc_fails) return __libc_calloc(count, bytes);
  failures++;
  errno = ENOMEM;
  return nullptr;
}

TEST(ThreadKeys, free_keeps_errno_where_libc_has_no_memory_for_a_key) {
  pthread_key_t key;
  for (int i = 0; i < 40; i++) ASSERT_EQ(pthread_key_create(&key, nullptr), 0);
  void* blocks[32];
  for (void*& block : blocks) block = rdmalloc_malloc(100);
  int after = 0;
  std::thread([&] {
    calloc_fails = true;
    errno = 4711;
    for (void* block : blocks) rdmalloc_free(block);  // few bring no cache
    after = errno;
    calloc_fails = false;
  }).join();
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(after, 4711);
}
