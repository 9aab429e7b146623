// SPDX-License-Identifier: BSD-3-Clause
//
// Threads that first come to malloc or free when nothing can tell any more that they end.
//
//   late_caches frees    detached threads that never call malloc: libc frees their dtv after the
//                        key destructors, on the thread itself where its cache of stacks is full
//   late_caches third    the first malloc comes in the third round of key destructors
//   late_caches fourth   in the fourth, from a key behind ours: our destructor is not called
//   late_caches limit    as many as RDMALLOC_LIMIT lets have caches left theirs like that: threads
//                        that come after them have caches again, and end those
//   late_caches consumer a thread that only frees, and much, has a cache, and its end is noticed
//
// Seen to fail before: `frees` had 1,795 caches after 2,048 threads, `third` and `fourth` one for
// each thread. Without kFreesWithoutCache `frees` has as many as lived at once, and without
// caches_by_tls.h the other two have all; `limit` keeps 65 where a thread asks whether it is one
// too many before it ends what its storage's last one left; `consumer` has none where no free()
// ever makes one.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/support/process.h"

namespace {

using rdmalloc_test::thread_count;

constexpr int kBursts = 32;
constexpr int kThreads = 64;  // at once, in each burst
// Main's and the purge thread's.
constexpr uint64_t kOthers = 2;

[[noreturn]] void fail(const char* what, uint64_t value) {
  std::fprintf(stderr, "late_caches: %s: %llu\n", what, static_cast<unsigned long long>(value));
  std::_Exit(1);
}

// Threads that have magazines.
uint64_t caches() {
  using Ctl = int (*)(const char*, void*, size_t*, const void*, size_t);
  auto ctl = reinterpret_cast<Ctl>(dlsym(RTLD_DEFAULT, "rdmalloc_ctl"));
  uint64_t value = 0;
  size_t size = sizeof value;
  if (ctl == nullptr || ctl("stats.threads", &value, &size, nullptr, 0) != 0)
    fail("rdmalloc_ctl() told nothing", 0);
  return value;
}

// Runs `run` on so many threads, all alive at once, a burst at a time; ends when all are gone.
void in_bursts(void* (*run)(void*)) {
  static pthread_barrier_t barrier;
  static void* (*what)(void*);
  what = run;
  pthread_barrier_init(&barrier, nullptr, kThreads);
  pthread_attr_t detached;
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  for (int burst = 0; burst < kBursts; burst++) {
    for (int i = 0; i < kThreads; i++) {
      auto start = [](void*) -> void* {
        pthread_barrier_wait(&barrier);
        return what(nullptr);
      };
      pthread_t thread;
      if (int error = pthread_create(&thread, &detached, start, nullptr))
        fail("pthread_create", static_cast<uint64_t>(error));
    }
    // What never ends is for the test's own limit.
    while (thread_count() > static_cast<int>(kOthers)) usleep(1000);
  }
}

void never_malloc() {
  in_bursts([](void*) -> void* { return nullptr; });
  if (caches() > kOthers) fail("caches of threads that never called malloc", caches());
}

// A destructor of ours that runs in each round, and takes a block in one.
pthread_key_t key;
uintptr_t wanted_round;
void destroy(void* value) {
  auto round = reinterpret_cast<uintptr_t>(value);
  if (round == wanted_round) {
    auto* block = static_cast<char*>(std::malloc(100));
    if (block == nullptr) fail("malloc", round);
    std::memset(block, 1, 100);
    std::free(block);
    return;
  }
  pthread_setspecific(key, reinterpret_cast<void*>(round + 1));
}
void allocate_in_round(uintptr_t round) {
  std::free(std::malloc(100));  // our key comes first
  wanted_round = round;
  pthread_key_create(&key, destroy);
  in_bursts([](void*) -> void* {
    pthread_setspecific(key, reinterpret_cast<void*>(1));
    return nullptr;
  });
  // As many as lived at once, and not as many as lived.
  if (caches() > kThreads + kOthers) fail("caches of threads that are gone", caches());
}

void come_after_those_at_a_limit(char** argv) {
  rdmalloc_test::ensure_environment(argv, {"RDMALLOC_LIMIT=16M"});  // 64 caches
  allocate_in_round(4);
  if (caches() < kThreads / 2) fail("so few threads left their caches", caches());
  in_bursts([](void*) -> void* {
    std::free(std::malloc(100));
    return nullptr;
  });
  if (caches() > kThreads / 4) fail("caches that no thread ends", caches());
}

void free_on_another_thread() {
  std::vector<void*> blocks(1000);
  for (void*& block : blocks) block = std::malloc(100);
  uint64_t before = caches();
  static uint64_t meanwhile;
  pthread_t thread;
  auto run = [](void* argument) -> void* {
    for (void* block : *static_cast<std::vector<void*>*>(argument)) std::free(block);
    meanwhile = caches();
    return nullptr;
  };
  if (pthread_create(&thread, nullptr, run, &blocks) != 0) fail("pthread_create", 0);
  pthread_join(thread, nullptr);
  if (meanwhile <= before) fail("a thread that frees 1,000 blocks has no cache", meanwhile);
  if (caches() >= meanwhile) fail("its cache outlives it", caches());
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  if (std::strcmp(what, "frees") == 0)
    never_malloc();
  else if (std::strcmp(what, "third") == 0)
    allocate_in_round(3);
  else if (std::strcmp(what, "fourth") == 0)
    allocate_in_round(4);
  else if (std::strcmp(what, "limit") == 0)
    come_after_those_at_a_limit(argv);
  else if (std::strcmp(what, "consumer") == 0)
    free_on_another_thread();
  else
    fail("the first argument is none of the cases that this file's head lists", 0);
  std::puts("all is well");
  return 0;
}
