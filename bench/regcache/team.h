// Threads that do the same at the same time, and a clock for what each of them did.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "bench/micro/threads.h"

namespace rdmalloc::bench {

inline double now_ns() {
  using namespace std::chrono;
  return duration<double, std::nano>(steady_clock::now().time_since_epoch()).count();
}

class Team {
 public:
  explicit Team(int threads) : count_(threads) {
    for (int thread = 1; thread < threads; ++thread)
      members_.emplace_back([this, thread] { serve(thread); });
  }
  ~Team() {
    work_ = nullptr;
    call();
    for (std::thread& member : members_) member.join();
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return count_; }
  // Runs work(thread) on all of them at once, the caller among them.
  void run(std::function<void(int)> work) {
    work_ = std::move(work);
    done_.store(0, std::memory_order_relaxed);
    arrived_.store(0, std::memory_order_relaxed);
    call();
    work_(0);
    spin_until([&] { return done_.load(std::memory_order_acquire) == count_ - 1; });
  }
  // Inside `work`, once: returns when all have come here.
  void meet() {
    arrived_.fetch_add(1, std::memory_order_acq_rel);
    spin_until([&] { return arrived_.load(std::memory_order_acquire) == count_; });
  }

 private:
  void call() {
    turn_.fetch_add(1, std::memory_order_release);  // pairs with the acquire in serve()
    turn_.notify_all();
  }
  void serve(int thread) {
    for (unsigned seen = 0;;) {
      turn_.wait(seen, std::memory_order_acquire);
      seen = turn_.load(std::memory_order_acquire);
      if (work_ == nullptr) return;
      work_(thread);
      done_.fetch_add(1, std::memory_order_release);  // pairs with the acquire in run()
    }
  }

  const int count_;
  std::function<void(int)> work_;
  std::atomic<unsigned> turn_{0};
  std::atomic<int> done_{0};
  std::atomic<int> arrived_{0};
  std::vector<std::thread> members_;
};

}  // namespace rdmalloc::bench
