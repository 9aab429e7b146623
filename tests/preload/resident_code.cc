// SPDX-License-Identifier: BSD-3-Clause
//
// Threads that come and go, with blocks of many sizes. Prints the resident KiB of librdmalloc.so's
// code, and whether that of libc's clock_gettime() is resident, which nothing here calls.
// start_up_test runs it.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr int kThreads = 2, kWaves = 20, kBlocks = 300;

void* work(void*) {
  static thread_local void* blocks[kBlocks];
  for (int i = 0; i < kBlocks; ++i) blocks[i] = malloc(16 + static_cast<size_t>(i) * i % 5000);
  for (void* block : blocks) free(block);
  for (size_t bytes = 40'000; bytes < 2'000'000; bytes *= 2) {
    // Else the compiler leaves both calls out.
    void* volatile block = malloc(bytes);
    free(block);
  }
  return nullptr;
}

long resident_code_kib() {
  FILE* maps = fopen("/proc/self/smaps", "r");
  if (maps == nullptr) abort();
  char line[4096];
  bool is_code = false;
  long kib = 0, rss = 0;
  while (fgets(line, sizeof line, maps) != nullptr) {
    if (strstr(line, "-xp ") != nullptr)
      is_code = strstr(line, "librdmalloc.so") != nullptr;
    else if (is_code && sscanf(line, "Rss: %ld kB", &rss) == 1)
      kib += rss;
    else if (strncmp(line, "VmFlags", 7) == 0)
      is_code = false;
  }
  fclose(maps);
  return kib;
}

bool is_resident(uintptr_t address) {
  int pages = open("/proc/self/pagemap", O_RDONLY);
  uint64_t entry = 0;
  auto at = static_cast<off_t>(address / static_cast<uintptr_t>(getpagesize()) * sizeof entry);
  if (pread(pages, &entry, sizeof entry, at) != sizeof entry) abort();
  close(pages);
  return (entry >> 63) != 0;
}

}  // namespace

int main() {
  for (int wave = 0; wave < kWaves; ++wave) {
    pthread_t threads[kThreads];
    for (pthread_t& thread : threads)
      if (pthread_create(&thread, nullptr, work, nullptr) != 0) abort();
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
  }
  bool is_clock = is_resident(reinterpret_cast<uintptr_t>(&clock_gettime));
  printf("%ld %d\n", resident_code_kib(), is_clock);
}
