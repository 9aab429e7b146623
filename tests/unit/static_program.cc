// SPDX-License-Identifier: BSD-3-Clause
//
// A program with nothing but static libraries, librdmalloc.a among them: malloc of libc's own
// callers, of C++ and of threads is ours, and the purge thread runs.
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

static std::atomic<int> wrong{0};

static void work(size_t seed) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < 20000; i++) {
    auto* block = static_cast<char*>(malloc((i * 7919 + seed) % 30000 + 1));
    block[0] = 1;
    if (!rdmalloc_owns(block)) wrong++;
    free(block);
    if (i % 10 == 0) texts.emplace_back(i % 1000 + 100, 'x');
    if (i % 10 == 0 && !rdmalloc_owns(texts.back().data())) wrong++;
  }
}

int main() {
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; i++) threads.emplace_back(work, i);
  work(5);
  for (std::thread& thread : threads) thread.join();
  char* line = nullptr;
  size_t capacity = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (getline(&line, &capacity, maps) > 0) {
  }
  fclose(maps);
  if (!rdmalloc_owns(line)) wrong++;
  free(line);
  char* copy = strdup("libc's own");
  if (!rdmalloc_owns(copy)) wrong++;
  free(copy);
  if (rdmalloc_purge(0) < 0) wrong++;
  printf("%d wrong\n", wrong.load());
  return wrong.load() == 0 ? 0 : 1;
}
