// A program linked with librdmalloc.so, built twice: with it before libc, whose malloc it then is,
// and behind libc, where the loader finds libc's malloc first and ours is what the program calls by
// its own names. Both must work, and beside each other.
//
//   link_order ours|libcs
//
// Seen to fail: with the two programs exchanged; with rdmalloc_owns() true of all; with a
// destructor of the library that gives the arena back.
#include <malloc.h>
#include <pthread.h>
#include <rdmalloc/rdmalloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace {

int wrong = 0;
void expect(bool is_right, const char* what) {
  if (is_right) return;
  std::printf("not so: %s\n", what);
  wrong++;
}

void* made_before_constructors = nullptr;
void* ours_before_constructors = nullptr;
bool malloc_is_ours = false;

// Before those of the C++ library, and after.
__attribute__((constructor(101))) void first_constructor() {
  made_before_constructors = std::malloc(3000);
  ours_before_constructors = rdmalloc_malloc(3000);
}
__attribute__((destructor(101))) void last_destructor() {
  std::free(made_before_constructors);
  rdmalloc_free(ours_before_constructors);
  for (std::size_t bytes = 1; bytes < 3 << 20; bytes *= 3) {
    std::free(std::memset(std::malloc(bytes), 1, bytes));
    rdmalloc_free(std::memset(rdmalloc_malloc(bytes), 1, bytes));
  }
  if (rdmalloc_owns(ours_before_constructors)) std::puts("end");
}

// In the destructors of a thread's variables, run round after round.
pthread_key_t key;
void allocate_at_thread_exit(void* round) {
  auto left = reinterpret_cast<std::uintptr_t>(round);
  std::free(std::malloc(100 * left));
  rdmalloc_free(rdmalloc_malloc(100 * left));
  if (left > 1) pthread_setspecific(key, reinterpret_cast<void*>(left - 1));
}

void work() {
  pthread_setspecific(key, reinterpret_cast<void*>(std::uintptr_t{4}));
  std::vector<void*> plain, ours;
  for (std::size_t i = 0; i < 20000; i++) {
    plain.push_back(std::malloc(i % 500 + 1));
    ours.push_back(rdmalloc_malloc(i % 5000 + 1));
    if (rdmalloc_owns(plain.back()) != malloc_is_ours || !rdmalloc_owns(ours.back())) std::abort();
    if (i % 3 != 0) continue;
    rdmalloc_free(std::exchange(ours[i / 2], nullptr));
    std::free(std::exchange(plain[i / 2], nullptr));
  }
  for (void* block : plain) std::free(block);
  for (void* block : ours) rdmalloc_free(block);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  malloc_is_ours = std::strcmp(argv[1], "ours") == 0;
  expect(rdmalloc_owns(made_before_constructors) == malloc_is_ours, "malloc is whose it should be");
  expect(rdmalloc_owns(ours_before_constructors), "rdmalloc_malloc() is ours before constructors");
  char* line = nullptr;  // of libc's own call of malloc
  expect(asprintf(&line, "%0300d", 7) == 300, "asprintf");
  expect(rdmalloc_owns(line) == malloc_is_ours, "libc calls the same malloc");
  expect(malloc_usable_size(line) >= 301, "malloc_usable_size");
  std::free(line);
  pthread_key_create(&key, allocate_at_thread_exit);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  expect(rdmalloc_purge(0) >= 0, "a purge");
  return wrong == 0 ? 0 : 1;
}
