#include "bench/cores/schedule.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>

namespace rdmalloc::bench {
namespace {

using std::chrono::milliseconds;

// How long the holder of the turn may stand still before a waiting thread looks what it does. A
// switch to it takes microseconds where the host has a processor for it.
constexpr milliseconds kStandstill{5};

// Of a thread without a turn, so that the holder gets the mutex when it goes on.
constexpr std::chrono::microseconds kUnorderedPause{20};

// A thread that is ready to run, and only gets no processor, is not asleep.
bool is_asleep(pid_t thread) {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/self/task/%d/stat", thread);
  const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  std::array<char, 256> text{};
  const ssize_t length = read(file, text.data(), text.size() - 1);
  close(file);
  // "id (name) state …"; the name may hold anything.
  const char* name_end = length > 0 ? std::strrchr(text.data(), ')') : nullptr;
  return name_end != nullptr && std::strncmp(name_end, ") S", 3) == 0;
}

}  // namespace

void Schedule::begin_turn(unsigned core) {
  holder_ = static_cast<int>(core);
  seats_[core].left = accesses_a_turn_;
}

void Schedule::take_seat(unsigned core) {
  Seat& seat = seats_[core];
  seat.thread = gettid();
  seat.is_ready = true;
  seats_used_ = std::max(seats_used_, core + 1);
  ++entries_;
  entered_.notify_all();
}

void Schedule::enter(unsigned core) {
  Lock lock(mutex_);
  await_turn(lock, core);
}

void Schedule::leave(unsigned core) {
  const Lock lock(mutex_);
  seats_[core].is_ready = false;
  if (holder_ == static_cast<int>(core)) pass_on(core);
}

// QEMU lets one thread alone do what can't be done beside others (the first clone(), wide atomics):
// it waits for all others to leave translated code, which those that wait here have not. They
// notice it as they go on. So once the holder of the turn sleeps, the others run without turns
// until it goes on.
void Schedule::await_turn(Lock& lock, unsigned core) {
  if (core >= seats_used_ || !seats_[core].is_ready) take_seat(core);
  if (holder_ == kNone) begin_turn(core);
  Seat& seat = seats_[core];
  while (holder_ != static_cast<int>(core)) {
    if (is_draining_) {
      ++counts_.unordered;
      seat.called.wait_for(lock, kUnorderedPause);
      return;
    }
    const std::uint64_t accesses = accesses_;
    const bool was_called = seat.called.wait_for(lock, kStandstill) == std::cv_status::no_timeout;
    if (!was_called && accesses == accesses_) drain_if_stuck(lock);
  }
}

void Schedule::drain_if_stuck(Lock& lock) {
  // Twice: a holder that was called just now sleeps for a moment on the mutex.
  const int holder = holder_;
  const std::uint64_t accesses = accesses_;
  for (int look = 0; look < 2; ++look) {
    if (holder_ == kNone || holder_ != holder || accesses_ != accesses || is_draining_) return;
    const pid_t thread = seats_[static_cast<unsigned>(holder)].thread;
    lock.unlock();
    const bool sleeps = is_asleep(thread);
    if (look == 0) usleep(1000);
    lock.lock();
    if (!sleeps) return;
  }
  if (holder_ != holder || accesses_ != accesses) return;
  is_draining_ = true;
  ++counts_.drains;
  for (unsigned other = 0; other < seats_used_; ++other) seats_[other].called.notify_all();
}

void Schedule::end_access(Lock& lock, unsigned core) {
  if (holder_ != static_cast<int>(core)) return;
  is_draining_ = false;
  if (--seats_[core].left != 0) return;
  pass_on(core);
  if (holder_ != static_cast<int>(core)) await_turn(lock, core);
}

void Schedule::pass_on(unsigned core) {
  is_draining_ = false;
  const int next = next_after(core);
  if (next == kNone) {
    holder_ = kNone;
    return;
  }
  begin_turn(static_cast<unsigned>(next));
  if (next == static_cast<int>(core)) return;
  ++counts_.turns;
  seats_[static_cast<unsigned>(next)].called.notify_one();
}

// The core itself comes last.
int Schedule::next_after(unsigned core) const {
  for (unsigned step = 1; step <= seats_used_; ++step) {
    const unsigned other = (core + step) % seats_used_;
    if (seats_[other].is_ready) return static_cast<int>(other);
  }
  return kNone;
}

std::uint64_t Schedule::entries() {
  const Lock lock(mutex_);
  return entries_;
}

void Schedule::wait_for_entries(std::uint64_t count, int limit_ms) {
  Lock lock(mutex_);
  entered_.wait_for(lock, milliseconds(limit_ms), [&] { return entries_ >= count; });
}

}  // namespace rdmalloc::bench
