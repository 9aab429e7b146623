// SPDX-License-Identifier: BSD-3-Clause
//
// A program on the hostile fabric, to be run under the malloc of one's choice:
//
//   hostile_program ROUNDS THREADS [passive]
//
// Each thread in each round gets a fresh buffer, registers it, and allocates and frees under the
// fabric's lock, while a purge is forced from another thread (rdmalloc_purge, when this process
// runs on rdmalloc) whose observer needs that lock. With one thread a round goes on under the lock
// only when the observer is seen to wait for it, so that the two really meet. `passive`: no thread
// asks for purges, the allocator's own thread makes them (RDMALLOC_DECAY_MS=0).
//
// Prints what it saw and ends with 0; or it hangs, which is the finding.
#include <dlfcn.h>
#include <rdmalloc/rdmalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/fabric/hostile_fabric.h"

namespace {

constexpr size_t kKiB = 1024;

// rdmalloc's calls by name: the same program runs under mallocs that have none.
decltype(&rdmalloc_purge) purge_now;
decltype(&rdmalloc_observer_add) observer_add;
decltype(&rdmalloc_observer_remove) observer_remove;

std::atomic<uint64_t> purge_events{0};
std::atomic<uint64_t> meetings{0};  // rounds in which the observer waited while we allocated
std::atomic<uint64_t> stale{0};     // registrations made in a range that is being purged
bool passive;

// Asleep, not by sched_yield(), which waits for a turn of everybody else on a loaded machine.
void let_others_run() {
  usleep(1);
}

int on_purge(void*, void* base, size_t length, rdmalloc_purge_reason) {
  purge_events.fetch_add(1, std::memory_order_relaxed);
  hostile::notify(base, length);
  // In flight: no thread can get, and so none can register, what lies here.
  for (int i = 0; i < 8; i++) {
    if (i % 4 == 0) let_others_run();
    if (hostile::touches_registered(base, length)) stale.fetch_add(1);
  }
  return 0;
}

// Purges once for each tick, on a thread that holds no lock.
class Purger {
 public:
  Purger() : thread_([this] { run(); }) {}
  ~Purger() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void tick() {
    std::lock_guard<std::mutex> guard(mutex_);
    asked_++;
    changed_.notify_all();
  }
  bool is_idle() {
    std::lock_guard<std::mutex> guard(mutex_);
    return done_ == asked_;
  }
  void wait_for_all() {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [this] { return done_ == asked_; });
  }

 private:
  void run() {
    std::unique_lock<std::mutex> guard(mutex_);
    for (;;) {
      changed_.wait(guard, [this] { return ends_ || done_ != asked_; });
      if (done_ == asked_) return;
      uint64_t upto = asked_;
      guard.unlock();
      purge_now(0);
      guard.lock();
      done_ = upto;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t asked_ = 0, done_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

void allocate_and_free(size_t round) {
  void* blocks[24];
  for (size_t i = 0; i < 24; i++) {
    size_t bytes = i < 20 ? 16 + i * 40 + round % 100 : (64 + round % 200) * kKiB;
    blocks[i] = malloc(bytes);
    memset(blocks[i], 1, 16);
  }
  blocks[3] = realloc(blocks[3], 40 * kKiB);
  for (void* block : blocks) free(block);
}

void one_round(size_t round, Purger* purger, bool alone) {
  size_t bytes = (64 + (round * 37) % 512) * kKiB;
  auto* dirty = static_cast<char*>(malloc(bytes));
  memset(dirty, 2, bytes);
  hostile::register_memory(dirty, bytes, nullptr);
  free(dirty);  // registered and free: the purge must tell the cache
  auto* buffer = static_cast<char*>(malloc(2 * bytes));
  memset(buffer, 3, 64);
  hostile::register_memory(buffer, 2 * bytes, [&] {
    if (purger != nullptr) {
      allocate_and_free(round);  // what is purged now is purged into the held lock
      purger->tick();
      // The purge may find nothing to do.
      while (alone && hostile::observers_inside() == 0 && !purger->is_idle()) let_others_run();
      if (hostile::notifiers_inside() > 0) meetings.fetch_add(1, std::memory_order_relaxed);
    }
    allocate_and_free(round);
  });
  free(buffer);
  if (purger != nullptr) purger->wait_for_all();
}

// Passive runs go on until the allocator's own thread, which a loaded machine may not let run, has
// purged a thousand times; not for ever, and not on mallocs that have no such thread.
bool wants_more(size_t round, size_t rounds) {
  if (!passive || observer_add == nullptr || round > 200 * rounds) return false;
  if (round % 64 == 0) usleep(200);
  return purge_events.load(std::memory_order_relaxed) < 1000;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s ROUNDS THREADS [passive]\n", argv[0]);
    return 2;
  }
  const size_t rounds = strtoull(argv[1], nullptr, 10);
  const size_t thread_count = strtoull(argv[2], nullptr, 10);
  passive = argc > 3 && strcmp(argv[3], "passive") == 0;
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // the test looks at our stacks
  prctl(PR_SET_TIMERSLACK, 1);                // let_others_run() is short

  purge_now = reinterpret_cast<decltype(purge_now)>(dlsym(RTLD_DEFAULT, "rdmalloc_purge"));
  observer_add =
      reinterpret_cast<decltype(observer_add)>(dlsym(RTLD_DEFAULT, "rdmalloc_observer_add"));
  observer_remove =
      reinterpret_cast<decltype(observer_remove)>(dlsym(RTLD_DEFAULT, "rdmalloc_observer_remove"));
  rdmalloc_observer* observer = nullptr;
  if (observer_add != nullptr) {
    rdmalloc_observer_ops ops = {};
    ops.size = sizeof ops;
    ops.purge = on_purge;
    int error = observer_add(&ops, nullptr, &observer);
    if (error != 0) {
      fprintf(stderr, "rdmalloc_observer_add: %d\n", error);
      return 3;
    }
  }
  {
    Purger* purger = purge_now != nullptr && !passive ? new Purger : nullptr;
    std::vector<std::thread> threads;
    for (size_t t = 0; t < thread_count; t++) {
      threads.emplace_back([=] {
        for (size_t round = 0; round < rounds || wants_more(round, rounds); round++)
          one_round(round + t * 7, purger, thread_count == 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    delete purger;
  }
  if (observer != nullptr) observer_remove(observer);
  printf(
      "rounds=%zu threads=%zu registrations=%zu notifications=%zu purge_events=%zu "
      "meetings=%zu stale=%zu\n",
      rounds, thread_count, static_cast<size_t>(hostile::registrations()),
      static_cast<size_t>(hostile::notifications()), static_cast<size_t>(purge_events.load()),
      static_cast<size_t>(meetings.load()), static_cast<size_t>(stale.load()));
  return stale.load() == 0 ? 0 : 1;
}
