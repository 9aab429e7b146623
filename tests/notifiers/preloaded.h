// For programs under the preloaded library: what it says of itself, asked by its functions' names,
// and purges for it to make.
#pragma once

#include <pthread.h>
#include <rdmalloc/notifier.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>

#include "tests/notifiers/expect.h"

namespace rdmalloc_test {

inline rdmalloc_notifier_info state_of(rdmalloc_notifier which) {
  rdmalloc_notifier_info info = {};
  info.size = sizeof info;
  auto state = find<decltype(&rdmalloc_notifier_state)>("rdmalloc_notifier_state");
  expect(state(which, &info) == 0, "rdmalloc_notifier_state works");
  return info;
}

inline uint64_t counter(const char* name) {
  uint64_t value = 0;
  size_t size = sizeof value;
  auto ctl = find<decltype(&rdmalloc_ctl)>("rdmalloc_ctl");
  expect(ctl(name, &value, &size, nullptr, 0) == 0, name);
  return value;
}

// Something to purge, a thousand times a second, with RDMALLOC_DECAY_MS=0.
class Churn {
 public:
  Churn() { pthread_create(&thread_, nullptr, churn, this); }
  Churn(const Churn&) = delete;
  Churn& operator=(const Churn&) = delete;
  ~Churn() {
    ends_ = true;
    pthread_join(thread_, nullptr);
  }
  // Returns when purges go on; ctest's limit is what ends it if they never do.
  static void wait_for_purges(uint64_t count) {
    const uint64_t begin = purges();
    while (purges() < begin + count) usleep(200);
  }
  static uint64_t purges() { return counter("stats.purges"); }

 private:
  static void* churn(void* self) {
    while (!static_cast<Churn*>(self)->ends_) {
      constexpr size_t kBytes = size_t{1} << 20;
      auto* block = static_cast<volatile char*>(malloc(kBytes));
      for (size_t i = 0; i < kBytes; i += 65536) block[i] = 1;
      free(const_cast<char*>(block));
      usleep(1000);
    }
    return nullptr;
  }

  std::atomic<bool> ends_{false};
  pthread_t thread_;
};

}  // namespace rdmalloc_test
