// A program that hangs for the self-test of with_stacks: two threads that wait for each other's
// lock, in functions whose names must appear in the stacks, and a child process in a session of its
// own, which hangs as well.
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace {

std::mutex first, second;
std::mutex gate;
std::condition_variable both_hold;
int holders = 0;

void wait_until_both_hold() {
  std::unique_lock<std::mutex> lock(gate);
  ++holders;
  both_hold.notify_all();
  both_hold.wait(lock, [] { return holders == 2; });
}

__attribute__((noinline)) void takes_first_then_second() {
  std::lock_guard<std::mutex> outer(first);
  wait_until_both_hold();
  std::lock_guard<std::mutex> inner(second);
}

__attribute__((noinline)) void takes_second_then_first() {
  std::lock_guard<std::mutex> outer(second);
  wait_until_both_hold();
  std::lock_guard<std::mutex> inner(first);
}

__attribute__((noinline)) void child_that_left_the_group() {
  for (;;) pause();
}

}  // namespace

int main() {
  if (fork() == 0) {
    setsid();
    child_that_left_the_group();
  }
  std::thread other(takes_second_then_first);
  takes_first_then_second();
  other.join();
  return 0;
}
