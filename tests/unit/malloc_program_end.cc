// SPDX-License-Identifier: BSD-3-Clause
//
// A program for a preloaded malloc: allocates before main, in atexit handlers, in destructors of
// globals, in a detached thread that outlives main's work, and frees after main what was made
// before it. Ends with 0 and the line "end" when all that went well.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>

static void* made_before_main;
static void* made_in_main;
static void* large_made_in_main;

__attribute__((constructor(101))) static void very_early() {
  made_before_main = malloc(1000);
  memset(made_before_main, 0x21, 1000);
}
__attribute__((destructor(101))) static void very_late() {
  for (int i = 0; i < 1000; i++)
    if (static_cast<char*>(made_before_main)[i] != 0x21) _exit(3);
  free(made_before_main);
  free(malloc(5000));
  if (write(1, "end\n", 4) != 4) _exit(4);
}

struct Global {
  std::map<int, std::string> table;
  Global() {
    for (int i = 0; i < 1000; i++) table[i] = std::string(static_cast<size_t>(i), 'g');
  }
  ~Global() {
    if (table.size() != 1000 || table[999].size() != 999) _exit(5);
    table.clear();
    std::thread([] { free(malloc(12345)); }).join();
  }
};
static Global global;

static void first_handler() {
  free(made_in_main);
  free(large_made_in_main);
  free(calloc(100, 100));
}
static void second_handler() {
  made_in_main = realloc(made_in_main, 50000);
  if (strcmp(static_cast<char*>(made_in_main), "in main") != 0) _exit(6);
  atexit([] { free(malloc(77)); });
}

int main() {
  made_in_main = malloc(100);
  strcpy(static_cast<char*>(made_in_main), "in main");
  large_made_in_main = malloc(20 << 20);
  atexit(first_handler);
  atexit(second_handler);  // runs before the first
  // Still running when main returns: exit must not pull the allocator from under it.
  for (int i = 0; i < 3; i++) {
    std::thread([] {
      for (size_t k = 1;; k++) free(malloc(k * 61 % 100000));
    }).detach();
  }
  usleep(20000);
  return 0;
}
