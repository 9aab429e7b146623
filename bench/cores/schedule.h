// Lets the program's threads run in turns of a few memory accesses, in a circle and one at a time:
// how they interleave is then the same on any host, however many processors it has and whatever
// else runs there.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace rdmalloc::bench {

class Schedule {
 public:
  Schedule(unsigned cores, unsigned accesses_a_turn)
      : accesses_a_turn_(accesses_a_turn), seats_(new Seat[cores]) {}

  // A thread is back from the kernel: waits for its turn.
  void enter(unsigned core);
  // It is in the kernel, or ends: the others go on without it.
  void leave(unsigned core);
  // After each access: waits for the turn where it isn't this thread's, runs `note` while no other
  // thread runs one, and passes the turn on at its end. A new thread enters by its first access.
  template <typename Note>
  void access(unsigned core, Note note) {
    Lock lock(mutex_);
    if (holder_ != static_cast<int>(core)) await_turn(lock, core);
    ++accesses_;
    note();
    end_access(lock, core);
  }

  // How often threads entered so far; and waits until so many have (`limit_ms` at most).
  std::uint64_t entries();
  void wait_for_entries(std::uint64_t count, int limit_ms);

  struct Counts {
    std::uint64_t turns;      // that went to another thread
    std::uint64_t drains;     // times that the order was given up, see await_turn()
    std::uint64_t unordered;  // accesses without a turn, in such a time
  };
  Counts counts() const { return counts_; }

 private:
  static constexpr int kNone = -1;
  using Lock = std::unique_lock<std::mutex>;

  struct Seat {
    std::condition_variable called;
    pid_t thread = 0;
    bool is_ready = false;
    unsigned left = 0;  // accesses of its turn
  };

  void take_seat(unsigned core);
  void begin_turn(unsigned core);
  void await_turn(Lock& lock, unsigned core);
  void drain_if_stuck(Lock& lock);
  void end_access(Lock& lock, unsigned core);
  void pass_on(unsigned core);
  int next_after(unsigned core) const;

  const unsigned accesses_a_turn_;
  const std::unique_ptr<Seat[]> seats_;
  unsigned seats_used_ = 0;
  std::mutex mutex_;
  std::condition_variable entered_;
  int holder_ = kNone;
  bool is_draining_ = false;
  std::uint64_t accesses_ = 0;
  std::uint64_t entries_ = 0;
  Counts counts_{};
};

}  // namespace rdmalloc::bench
