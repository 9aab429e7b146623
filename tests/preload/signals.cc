// Signals that come in the middle of malloc: each thread has a timer of its own, whose handler uses
// its stack and calls nothing of ours, as POSIX asks of it; the process has one more, for whichever
// thread takes it, and which no helper thread may take. Blocks keep their bytes, and calls that the
// program makes end with EINTR as they would without us.
//
// Seen to fail: with the purge thread's signals left as its creator had them.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 4, kSignals = 3000, kPeriodNs = 500000;
std::atomic<int> of_threads{0}, of_process{0}, taken_by_helpers{0}, wrong{0};

void use_stack() {
  volatile char buffer[4096];
  for (char& byte : const_cast<char(&)[4096]>(buffer)) byte = 1;
}
void on_thread_timer(int) {
  use_stack();
  of_threads++;
}
void on_process_timer(int) {
  use_stack();
  of_process++;
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  if (std::strncmp(name, "rdmalloc-", 9) == 0) taken_by_helpers++;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;  // without SA_RESTART
  if (sigaction(signal, &action, nullptr) != 0) std::abort();
}
void start_timer(int signal, bool is_for_this_thread) {
  struct sigevent event = {};
  event.sigev_notify = is_for_this_thread ? SIGEV_THREAD_ID : SIGEV_SIGNAL;
  event.sigev_signo = signal;
  event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
  timer_t timer;
  struct itimerspec period = {{0, kPeriodNs}, {0, kPeriodNs}};
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 ||
      timer_settime(timer, 0, &period, nullptr) != 0) {
    std::perror("timer");
    std::_Exit(2);
  }
}

struct Block {
  unsigned char* start;
  std::size_t bytes;
  unsigned char value;
};

void check_and_free(Block& block) {
  for (std::size_t i = 0; i < block.bytes; i++) wrong += block.start[i] != block.value;
  std::free(block.start);
  block.start = nullptr;
}

// Blocks of all kinds, until enough signals have come.
void work(unsigned seed) {
  start_timer(SIGUSR1, true);
  std::vector<Block> blocks(200);
  for (unsigned step = seed; of_threads < kThreads * kSignals; step = step * 1103515245 + 12345) {
    Block& block = blocks[(step >> 8) % blocks.size()];
    std::size_t bytes = step % 50 == 0 ? 300000 : (step >> 16) % 4000 + 1;
    if (block.start != nullptr && step % 3 == 0) {
      auto* grown = static_cast<unsigned char*>(std::realloc(block.start, bytes));
      if (grown == nullptr) std::abort();
      if (bytes > block.bytes) std::memset(grown + block.bytes, block.value, bytes - block.bytes);
      block = {grown, bytes, block.value};
      continue;
    }
    if (block.start != nullptr) check_and_free(block);
    block = {static_cast<unsigned char*>(std::malloc(bytes)), bytes,
             static_cast<unsigned char>(step)};
    if (block.start == nullptr) std::abort();
    std::memset(block.start, block.value, bytes);
  }
  for (Block& block : blocks)
    if (block.start != nullptr) check_and_free(block);
}

}  // namespace

int main() {
  handle(SIGUSR1, on_thread_timer);
  handle(SIGALRM, on_process_timer);
  start_timer(SIGALRM, false);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; i++) threads.emplace_back(work, i + 1);
  // The first thread blocks the process's signal: the kernel looks for another that takes it.
  sigset_t alarm;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
  for (std::thread& thread : threads) thread.join();
  pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  struct timespec long_sleep = {1000, 0};
  int interrupted = nanosleep(&long_sleep, nullptr);
  std::printf("%d signals of threads, %d of the process, %d taken by helpers, %d wrong bytes\n",
              of_threads.load(), of_process.load(), taken_by_helpers.load(), wrong.load());
  std::fflush(stdout);
  bool is_right = interrupted == -1 && of_process > 0 && taken_by_helpers == 0 && wrong == 0;
  std::_Exit(is_right ? 0 : 1);
}
