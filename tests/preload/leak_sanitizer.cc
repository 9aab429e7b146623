// SPDX-License-Identifier: BSD-3-Clause
//
// A program of GCC's LeakSanitizer, which stands in front of pthread_create() and warns of stacks
// that are small. Ends once our thread that reads files was there; without /proc none is.
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/process.h"

namespace {

void* take_and_free(void* /*unused*/) {
  void* volatile block = std::malloc(std::size_t{8} << 20);
  std::free(block);
  return nullptr;
}

}  // namespace

int main() {
  if (access("/proc/self/task", R_OK) != 0) {
    std::puts("SKIP: no /proc");
    return 77;
  }
  do {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, take_and_free, nullptr) != 0) return 1;
    pthread_join(thread, nullptr);
    usleep(1000);
  } while (rdmalloc_test::threads_named("rdmalloc-files") == 0);
  return 0;
}
