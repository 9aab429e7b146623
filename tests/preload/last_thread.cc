// A process ends when its last thread does, also when the purge thread runs: pthread_exit() in
// main, and a fork child whose only thread, not the first of its parent, returns. Python's
// test_threading found it; without purge_note_first_thread_ends() both processes here live for
// ever.
//
// Built over the prefixed library too (PREFIXED): there these threads take large blocks only, and
// nothing tells of their end. Both live for ever without first_thread_notifies.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#ifdef PREFIXED
#include <rdmalloc/rdmalloc.h>
#define ALLOCATE rdmalloc_malloc
#define RELEASE rdmalloc_free
#else
#define ALLOCATE std::malloc
#define RELEASE std::free
#endif

namespace {

// The purge thread comes with the program's own, or where it is asked for.
void bring_the_purge_thread() {
#ifdef PREFIXED
  if (rdmalloc_init() != 0) std::abort();
#else
  std::thread([] {}).join();
#endif
}

void allocate_and_free() {
  for (int i = 0; i < 20; ++i) {
    constexpr std::size_t kBytes = 4 << 20;
    void* block = ALLOCATE(kBytes);
    if (block == nullptr) std::abort();
    std::memset(block, i, kBytes);
    RELEASE(block);
  }
}

void* fork_and_return(void*) {
  allocate_and_free();
  const pid_t child = fork();
  bring_the_purge_thread();
  allocate_and_free();
  // In the child this is the last thread: to return from it is to exit(0).
  if (child == 0) return nullptr;
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) {
    std::fprintf(stderr, "the child ended with status %d\n", status);
    std::_Exit(1);
  }
  usleep(200000);  // main's thread is gone by now, and has been looked at
  return nullptr;
}

}  // namespace

int main() {
  bring_the_purge_thread();
  allocate_and_free();
  // On the purge thread, which has left. Seen to hang where the next one's maker, for which the
  // handler waits, waits for it without a limit.
  std::atexit([] {
    std::thread([] {
      bring_the_purge_thread();
      allocate_and_free();
    }).join();
    std::puts("exit handlers ran");
  });
  pthread_t thread;
  if (pthread_create(&thread, nullptr, fork_and_return, nullptr) != 0) return 1;
  pthread_exit(nullptr);
}
