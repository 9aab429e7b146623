#include "bench/patterns/team.h"

#include <sched.h>

#include <cstdio>
#include <ctime>
#include <thread>
#include <vector>

#include "bench/support/marks.h"
#include "bench/support/resident.h"

namespace rdmalloc::bench {
namespace {

double thread_cpu_s() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

void Meeting::wait() {
  const unsigned generation = generation_.load(std::memory_order_acquire);
  // acq_rel: what each thread did before is seen by all after it.
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);         // released by the next line
    generation_.fetch_add(1, std::memory_order_release);  // pairs with the loads below
    if (!spins_) generation_.notify_all();
    return;
  }
  while (generation_.load(std::memory_order_acquire) == generation)
    if (!spins_) generation_.wait(generation, std::memory_order_acquire);
}

Member::Member(Team& team, unsigned its_number)
    : number(its_number), random(its_number + 1), team_(team) {}

void Member::begin(std::size_t operations_before) {
  // Relaxed: who reads it has met or joined all threads.
  team_.operations_before_.fetch_add(operations_before, std::memory_order_relaxed);
  meet_unmeasured();
  begin_alone();
}

void Member::end(std::size_t operations) {
  end_alone(operations);
}

void Member::begin_alone() {
  cpu_at_begin_s_ = thread_cpu_s();
  mark(Mark::begin);
}

void Member::end_alone(std::size_t operations) {
  mark(Mark::end, operations);
  team_.add(operations, thread_cpu_s() - cpu_at_begin_s_);
}

void Member::meet_unmeasured() {
  team_.meeting_.wait();
}

void Member::meet() {
  end_alone(0);
  begin(0);
}

void Member::idle() const {
  if (!team_.shape_.spins) sched_yield();
}

Team::Team(const Shape& shape) : shape_(shape), meeting_(shape.threads, shape.spins) {}

void Team::add(std::size_t operations, double cpu_s) {
  const std::lock_guard lock(mutex_);
  measured_.operations += operations;
  measured_.cpu_s += cpu_s;
}

void Team::run(const std::function<void(Member&)>& work) {
  Meeting done(shape_.threads + 1, false);
  Meeting leave(shape_.threads + 1, false);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < shape_.threads; ++number)
    threads.emplace_back([&, number] {
      Member member(*this, number);
      work(member);
      if (!shape_.rests) return;
      done.wait();
      leave.wait();
    });
  if (shape_.rests) {
    done.wait();
    report();
    leave.wait();
  }
  for (std::thread& thread : threads) thread.join();
  if (!shape_.rests) report();
}

void Team::report() const {
  const Residence found = look_and_settle(shape_.settle_s);
  std::printf(
      "{\"operations\":%zu,\"operations_before\":%zu,\"steady_cpu_s\":%.9f,\"peak_mib\":%.3f,"
      "\"end_mib\":%.3f,\"settled_mib\":%.3f}\n",
      measured_.operations, operations_before_.load(std::memory_order_relaxed), measured_.cpu_s,
      found.peak_mib, found.end_mib, found.settled_mib);
}

}  // namespace rdmalloc::bench
