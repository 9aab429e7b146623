#include "alloc/core/file_thread.h"

#include <atomic>

#include "alloc/core/helper_threads.h"
#include "alloc/os/cancel.h"
#include "alloc/os/file.h"
#include "alloc/os/os.h"

namespace rdmalloc {
namespace {

// What the thread is about: a word that both sides wait on.
constexpr std::uint32_t kNone = 0, kStarting = 1, kIdle = 2, kWorking = 3, kStopping = 4;

struct FileThread {
  std::atomic<std::uint32_t> state{kNone};
  int error = 0;  // of giving it its own descriptors: it will be the same the next time
  void (*work)(void*) = nullptr;
  void* arg = nullptr;
  pthread_t handle{};
  HelperStack stack;
};
constinit FileThread thread;

const std::uint32_t* word() {
  return reinterpret_cast<const std::uint32_t*>(&thread.state);
}
// Release: what was written before is there for the side that waits.
void go_to(std::uint32_t state) {
  thread.state.store(state, std::memory_order_release);
  os::futex_wake(word(), 1);
}
// Acquire: pairs with go_to(). Returns the state that is not `from` any more.
std::uint32_t wait_while(std::uint32_t from) {
  std::uint32_t seen = 0;
  while ((seen = thread.state.load(std::memory_order_acquire)) == from)
    os::futex_wait(word(), from, -1);
  return seen;
}

void* serve(void*) {
  helper_thread_begins("rdmalloc-files");
  thread.error = os::own_descriptors();
  go_to(kIdle);
  while (wait_while(kIdle) == kWorking) {
    thread.work(thread.arg);
    go_to(kIdle);
  }
  return nullptr;
}

}  // namespace

int file_thread_run(void (*work)(void* arg), void* arg) {
  if (thread.error != 0) return thread.error;
  if (thread.state.load(std::memory_order_relaxed) == kNone) {
    thread.state.store(kStarting, std::memory_order_relaxed);
    helper_threads.fetch_add(1, std::memory_order_relaxed);
    if (int error =
            helper_thread_create(&thread.stack, kFileStackBytes, serve, nullptr, &thread.handle)) {
      helper_threads.fetch_sub(1, std::memory_order_relaxed);
      thread.state.store(kNone, std::memory_order_relaxed);
      return error;
    }
    wait_while(kStarting);
  }
  if (thread.error != 0) {
    file_thread_stop();
    return thread.error;
  }
  thread.work = work;
  thread.arg = arg;
  go_to(kWorking);
  wait_while(kWorking);
  return 0;
}

void file_thread_stop() {
  if (thread.state.load(std::memory_order_relaxed) == kNone) return;
  os::NoCancelScope scope;
  go_to(kStopping);
  pthread_join(thread.handle, nullptr);
  helper_threads.fetch_sub(1, std::memory_order_relaxed);
  thread.state.store(kNone, std::memory_order_relaxed);
}

void file_thread_after_fork() {
  thread.state.store(kNone, std::memory_order_relaxed);
}

}  // namespace rdmalloc
