// In librdmalloc.so only: a program that makes a thread gets the purge thread too, outside malloc
// and with no lock held. After its own, and only where that was made: a process that may have one
// thread more has its own. What libc makes for itself (timers, aio) passes by here.
#include <errno.h>
#include <pthread.h>
#include <threads.h>

#include <algorithm>
#include <atomic>

#include "alloc/cache/shards.h"
#include "alloc/core/init.h"
#include "alloc/interpose/address_limit.h"
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

// A refusal says no more than that there is no room: for one more thread, where ours may be in the
// way; or for such a stack, which no end of ours changes. The latter shows where the purge thread,
// stopped in vain, could be made anew. It stays then for some time, each time twice as long,
// however often such a stack is asked for: a program may do so for each of its requests. Hints, all
// relaxed.
struct InVain {
  std::atomic<std::size_t> stack_bytes{SIZE_MAX};
  std::atomic<std::int64_t> until_ms{0}, for_ms{kShortestMs};
  static constexpr std::int64_t kShortestMs = 50, kLongestMs = 5000;
};
constinit InVain in_vain;

constexpr std::size_t kDefaultStack = 0;
constexpr auto kRelaxed = std::memory_order_relaxed;

std::size_t stack_bytes_of(const pthread_attr_t* attributes) {
  std::size_t bytes = kDefaultStack;
  if (attributes != nullptr) pthread_attr_getstacksize(attributes, &bytes);
  return bytes;
}

// Whether a stack of so many bytes is as long as that, or longer.
bool is_as_long_as_in_vain(std::size_t stack_bytes) {
  std::size_t known = in_vain.stack_bytes.load(kRelaxed);
  return stack_bytes == known || (known != kDefaultStack && stack_bytes > known);
}

void note_made(const pthread_attr_t* attributes) {
  if (in_vain.until_ms.load(kRelaxed) == 0) [[likely]]
    return;
  if (!is_as_long_as_in_vain(stack_bytes_of(attributes))) return;
  in_vain.until_ms.store(0, kRelaxed);
  in_vain.for_ms.store(InVain::kShortestMs, kRelaxed);
}

void note_in_vain(std::size_t stack_bytes, std::int64_t for_ms) {
  in_vain.stack_bytes.store(stack_bytes, kRelaxed);
  in_vain.until_ms.store(rdmalloc::os::coarse_ms() + for_ms, kRelaxed);
  in_vain.for_ms.store(std::min(2 * for_ms, InVain::kLongestMs), kRelaxed);
}

// A thread that was joined counts until the kernel has taken it away, a moment later.
constexpr int kTries = 20;

// Calls create(), which was refused, again without the purge thread: the last thread that a limit
// allows is the program's. Returns whether it was made.
template <typename Create>
bool make_way_for(const pthread_attr_t* attributes, Create create) {
  std::size_t stack_bytes = stack_bytes_of(attributes);
  if (is_as_long_as_in_vain(stack_bytes) &&
      rdmalloc::os::coarse_ms() < in_vain.until_ms.load(kRelaxed))
    return false;
  if (!rdmalloc::purge_thread_make_way()) return false;
  for (int tries = 0; tries < kTries; ++tries) {
    if (create()) return true;
    rdmalloc::os::sleep_ns(1000000);
  }
  // Read before ours is made anew, which is noted as any thread (note_made()).
  std::int64_t for_ms =
      is_as_long_as_in_vain(stack_bytes) ? in_vain.for_ms.load(kRelaxed) : InVain::kShortestMs;
  if (rdmalloc::purge_thread_start() == 0) note_in_vain(stack_bytes, for_ms);
  return false;
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
  if (error == EAGAIN && rdmalloc::fit_limit_set_past_us())
    error = create(thread, attributes, start, argument);
  if (error == EAGAIN) {
    make_way_for(attributes, [&] {
      error = create(thread, attributes, start, argument);
      return error != EAGAIN;
    });
    // Refused for another cause once there was room: no thread has taken the purge thread's place.
    if (error != 0 && error != EAGAIN) rdmalloc::purge_thread_start();
  } else if (error == 0) {
    rdmalloc::purge_thread_start();
  }
  if (error == 0) note_made(attributes);
  return error;
}

EXPORT int thrd_create(thrd_t* thread, thrd_start_t start, void* argument) {
  learn_places();
  auto create = next_of(next_thrd_create, "thrd_create");
  int result = create(thread, start, argument);
  // libc says no more of a limit on threads.
  if (result == thrd_error && rdmalloc::fit_limit_set_past_us())
    result = create(thread, start, argument);
  if (result == thrd_error) {
    make_way_for(nullptr, [&] {
      result = create(thread, start, argument);
      return result != thrd_error;
    });
    if (result != thrd_error && result != thrd_success) rdmalloc::purge_thread_start();
  } else if (result == thrd_success) {
    rdmalloc::purge_thread_start();
  }
  if (result == thrd_success) note_made(nullptr);
  return result;
}
