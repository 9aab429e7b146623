// The control of latency_compare: libc's malloc, but one call in SLOW_MALLOC_EVERY (default 1000)
// sleeps for 2 ms. For tests only.
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <atomic>

// libc's own name for its malloc: dlsym could allocate, and would come back to us.
extern "C" void* __libc_malloc(size_t bytes);

namespace {

unsigned every() {
  const char* text = getenv("SLOW_MALLOC_EVERY");
  return text != nullptr && atoi(text) > 0 ? static_cast<unsigned>(atoi(text)) : 1000;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* malloc(size_t bytes) {
  static const unsigned period = every();
  static std::atomic<unsigned> calls{0};  // relaxed: a count that orders nothing
  if ((calls.fetch_add(1, std::memory_order_relaxed) + 1) % period == 0) {
    const timespec pause{0, 2'000'000};
    nanosleep(&pause, nullptr);
  }
  return __libc_malloc(bytes);
}
