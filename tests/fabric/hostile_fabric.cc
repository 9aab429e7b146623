// SPDX-License-Identifier: BSD-3-Clause
#include "tests/fabric/hostile_fabric.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <vector>

namespace hostile {
namespace {

pthread_mutex_t the_mutex = PTHREAD_MUTEX_INITIALIZER;  // plain: the same thread twice hangs
// First byte to end of each registration; its nodes come from the malloc under test.
std::map<uintptr_t, uintptr_t>* cache;
std::atomic<uint64_t> made{0}, told{0};
std::atomic<int> notifying{0}, looking{0};
constexpr size_t kMostCached = 512;

struct Held {
  Held() { pthread_mutex_lock(&the_mutex); }
  ~Held() { pthread_mutex_unlock(&the_mutex); }
};

// Where a thread of that kind asks for the mutex and has it.
struct Inside {
  explicit Inside(std::atomic<int>& kind) : count(kind) {
    count.fetch_add(1, std::memory_order_release);
  }
  ~Inside() { count.fetch_sub(1, std::memory_order_release); }
  std::atomic<int>& count;
};

bool covered(uintptr_t start, uintptr_t end) {
  if (cache == nullptr) return false;
  auto above = cache->upper_bound(start);
  return above != cache->begin() && std::prev(above)->second >= end;
}

void drop_overlapping(uintptr_t start, uintptr_t end) {
  if (cache == nullptr) return;
  auto at = cache->lower_bound(start);
  while (at != cache->begin() && std::prev(at)->second > start) --at;
  while (at != cache->end() && at->first < end) at = cache->erase(at);
}

}  // namespace

// noinline, both: a test reads the two names in one stack.
__attribute__((noinline)) void register_memory(void* addr, size_t length,
                                               const std::function<void()>& under_lock) {
  auto start = reinterpret_cast<uintptr_t>(addr);
  Held held;
  if (cache == nullptr) cache = new std::map<uintptr_t, uintptr_t>;
  if (!covered(start, start + length)) {
    drop_overlapping(start, start + length);
    if (cache->size() >= kMostCached) cache->erase(cache->begin());
    cache->emplace(start, start + length);
    // A provider's descriptor and its page list, made and dropped under the lock.
    std::vector<uint64_t> page_list(length / 4096 + 1);
    void* descriptor = malloc(length / 8 + 64);
    memset(descriptor, 0x44, 64);
    free(descriptor);
    made.fetch_add(1, std::memory_order_relaxed);
  }
  if (under_lock) under_lock();
}

__attribute__((noinline)) void notify(void* addr, size_t length) {
  Inside here(notifying);
  Held held;
  told.fetch_add(1, std::memory_order_relaxed);
  auto start = reinterpret_cast<uintptr_t>(addr);
  drop_overlapping(start, start + length);
}

bool touches_registered(const void* addr, size_t length) {
  Inside here(looking);
  Held held;
  if (cache == nullptr) return false;
  auto start = reinterpret_cast<uintptr_t>(addr);
  auto above = cache->lower_bound(start);
  if (above != cache->end() && above->first < start + length) return true;
  return above != cache->begin() && std::prev(above)->second > start;
}

uint64_t registrations() {
  return made.load(std::memory_order_relaxed);
}
uint64_t notifications() {
  return told.load(std::memory_order_relaxed);
}
int notifiers_inside() {
  return notifying.load(std::memory_order_acquire);
}
int observers_inside() {
  return notifiers_inside() + looking.load(std::memory_order_acquire);
}

}  // namespace hostile
