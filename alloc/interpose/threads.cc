// In librdmalloc.so only: a program that makes a thread gets the purge thread too, outside malloc
// and with no lock held. After its own, and only where that was made: a process that may have one
// thread more has its own. What libc makes for itself (timers, aio) passes by here.
#include <errno.h>
#include <pthread.h>
#include <threads.h>

#include "alloc/cache/shards.h"
#include "alloc/core/init.h"
#include "alloc/interpose/next_of.h"
#include "alloc/os/os.h"
#include "alloc/purge/purge.h"

// All of RDMALLOC_FINDS; the linker makes the names.
extern "C" {
// NOLINTBEGIN(readability-identifier-naming)
extern void (*const __start_rdmalloc_finders[])() __attribute__((visibility("hidden")));
extern void (*const __stop_rdmalloc_finders[])() __attribute__((visibility("hidden")));
// NOLINTEND(readability-identifier-naming)
}

namespace {

using rdmalloc::next_of;

void find_everything() {
  // Relaxed: two that look find the same.
  static constinit std::atomic<bool> has_looked{false};
  if (has_looked.exchange(true, std::memory_order_relaxed)) return;
  for (auto* find = __start_rdmalloc_finders; find != __stop_rdmalloc_finders; ++find) (*find)();
}

constinit std::atomic<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>
    next_pthread_create{nullptr};
constinit std::atomic<int (*)(thrd_t*, thrd_start_t, void*)> next_thrd_create{nullptr};

RDMALLOC_FINDS(find_all) {
  next_of(next_pthread_create, "pthread_create");
  next_of(next_thrd_create, "thrd_create");
}

// The first time the program has one thread.
void learn_places() {
  find_everything();
  if (rdmalloc::ensure_initialised()) rdmalloc::shards_learn();
}

// A thread that was joined counts until the kernel has taken it away, a moment later.
constexpr int kTries = 20;
template <typename Create>
int try_again(Create create) {
  int result = create();
  if (result != 0) rdmalloc::os::sleep_ns(1000000);
  return result;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// A refusal of ours (manual mode, no thread to be had) is counted and reported there; it is none of
// the program's. The purge thread's own creation comes through here as well and finds that it is
// being made.
EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                          void* (*start)(void*), void* argument) noexcept {
  learn_places();
  auto create = next_of(next_pthread_create, "pthread_create");
  int error = create(thread, attributes, start, argument);
  if (error == 0) rdmalloc::purge_thread_start();
  // The last thread that a limit allows is the program's.
  if (error == EAGAIN && rdmalloc::purge_thread_make_way()) {
    for (int tries = 0; tries < kTries && error == EAGAIN; ++tries)
      error = try_again([&] { return create(thread, attributes, start, argument); });
    // The cause was another one: a stack without room, as many threads of other processes.
    if (error != 0) rdmalloc::purge_thread_start();
  }
  return error;
}

EXPORT int thrd_create(thrd_t* thread, thrd_start_t start, void* argument) {
  learn_places();
  auto create = next_of(next_thrd_create, "thrd_create");
  int result = create(thread, start, argument);
  if (result == thrd_success) rdmalloc::purge_thread_start();
  // libc says no more of a limit on threads.
  if (result == thrd_error && rdmalloc::purge_thread_make_way()) {
    for (int tries = 0; tries < kTries && result == thrd_error; ++tries)
      result = try_again([&] { return create(thread, start, argument); });
    if (result != thrd_success) rdmalloc::purge_thread_start();
  }
  return result;
}
