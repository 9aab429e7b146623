// A process that lives on in its second thread, for the self-test of with_stacks.
#include <pthread.h>
#include <unistd.h>

#include <thread>

namespace {

__attribute__((noinline)) void thread_that_lives_on() {
  for (;;) pause();
}

}  // namespace

int main() {
  std::thread(thread_that_lives_on).detach();
  pthread_exit(nullptr);
}
