// SPDX-License-Identifier: BSD-3-Clause
//
// A thread that only frees, where libc needs memory to note that the thread has a cache, and has
// none: a program with many keys. errno stays (POSIX.1-2024).
//
// And a program that has all keys, the library's too, when that is first called: each call fails,
// and none takes address space beyond the first's.
//
// Seen to fail without the errno that make_cache() keeps; with tables that each try reserves anew
// (1,280 MiB a try).
#include <errno.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "alloc/os/fault.h"

extern "C" void* __libc_calloc(size_t count, size_t bytes);

namespace {
thread_local bool calloc_fails = false;
int failures = 0;

// Before the library's constructors, where it would have its key: it is to want one later, of which
// the program has all, or the first that libc has to take memory for.
void refuse_the_first_key() {
  rdmalloc::os::arm_fault(rdmalloc::os::Site::kThreadKey, 1);
}
__attribute__((section(".preinit_array"),
               used)) void (*const before_constructors)() = refuse_the_first_key;

size_t mapped_bytes() {
  FILE* file = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  EXPECT_EQ(fscanf(file, "%zu", &pages), 1);
  fclose(file);
  return pages * 4096;
}
}  // namespace

// libc takes memory for keys from the program's calloc.
extern "C" void* calloc(size_t count, size_t bytes) {
  if (!calloc_fails) return __libc_calloc(count, bytes);
  failures++;
  errno = ENOMEM;
  return nullptr;
}

// Before the library is first called; what is wrong, or nullptr.
const char* use_without_keys() {
  std::vector<pthread_key_t> keys;
  pthread_key_t key;
  while (pthread_key_create(&key, nullptr) == 0) keys.push_back(key);
  if (rdmalloc_malloc(100) != nullptr) return "there was a key";
  size_t bytes = mapped_bytes();
  for (int i = 0; i < 3; i++)
    if (rdmalloc_malloc(100) != nullptr) return "there was a key";
  if (mapped_bytes() != bytes) return "a try took address space";
  for (pthread_key_t one : keys) pthread_key_delete(one);
  if (rdmalloc_malloc(100) == nullptr) return "no block with keys";
  if (mapped_bytes() >= bytes + (size_t{64} << 20)) return "the try that succeeds took it";
  return nullptr;
}

TEST(ThreadKeys, I10_a_try_in_vain_keeps_what_the_next_one_needs) {
  pid_t child = fork();
  if (child == 0) {
    const char* wrong = use_without_keys();
    if (wrong != nullptr) dprintf(2, "%s\n", wrong);
    _exit(wrong == nullptr ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
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
