// For trace_test.py: a program whose operations are counted beforehand.
//   trace_program counts | threads | fork
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

namespace {

constexpr int kBlocks = 1000;
std::atomic<char*> handed_over[kBlocks];

// Through a pointer that the compiler must not know, or it leaves the calls out.
char* volatile block;

// 1000 of each way to get and to end a block.
void counts() {
  for (int i = 0; i < kBlocks; ++i) {
    block = static_cast<char*>(malloc(100));
    block = static_cast<char*>(realloc(block, 5000));
    free(block);
    block = static_cast<char*>(calloc(10, 10));
    free(block);
    void* aligned = nullptr;
    if (posix_memalign(&aligned, 256, 1000) != 0) _exit(3);
    block = static_cast<char*>(aligned);
    free(block);
    block = static_cast<char*>(::operator new(64));
    ::operator delete(block, 64);
  }
}

void* give(void*) {
  for (auto& place : handed_over) place.store(static_cast<char*>(malloc(200)));
  return nullptr;
}

void* take(void*) {
  for (auto& place : handed_over) {
    char* taken = nullptr;
    while ((taken = place.exchange(nullptr)) == nullptr) {
    }
    free(taken);
  }
  return nullptr;
}

void threads() {
  pthread_t giver;
  pthread_t taker;
  if (pthread_create(&giver, nullptr, give, nullptr) != 0) _exit(3);
  if (pthread_create(&taker, nullptr, take, nullptr) != 0) _exit(3);
  pthread_join(giver, nullptr);
  pthread_join(taker, nullptr);
}

// The child frees a block of its parent's, and has 500 of its own. Neither flushes anything.
void fork_child() {
  block = static_cast<char*>(malloc(300));
  char* parents = block;
  const pid_t pid = fork();
  if (pid == 0) {
    free(parents);
    for (int i = 0; i < 500; ++i) {
      block = static_cast<char*>(malloc(30));
      free(block);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  free(parents);
  _exit(status);
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc == 2 ? argv[1] : "";
  if (strcmp(what, "counts") == 0)
    counts();
  else if (strcmp(what, "threads") == 0)
    threads();
  else if (strcmp(what, "fork") == 0)
    fork_child();
  else
    return 2;
  return 0;
}
