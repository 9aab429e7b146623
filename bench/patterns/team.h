// The threads of a pattern: how they begin together, what of their work is measured, and how they
// rest after it.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>

#include "bench/support/blocks.h"

namespace rdmalloc::bench {

// What a pattern is run with.
struct Shape {
  unsigned threads = 16;
  std::size_t least = 16;  // bytes of a block
  std::size_t most = 4096;
  std::size_t live = 128;         // blocks of a thread at once
  std::size_t operations = 2000;  // of a thread, measured
  std::size_t warm_up = 1000;     // and before that
  // Threads that wait spin: one that sleeps goes on when the host lets it. For counts under QEMU.
  bool spins = false;
  bool rests = false;   // threads stay when they have done their work
  double settle_s = 0;  // how long, until resident memory is looked at again
};

// Where all of `count` threads wait for each other, as often as they like.
class Meeting {
 public:
  Meeting(unsigned count, bool spins) : count_(count), spins_(spins) {}
  void wait();

 private:
  const unsigned count_;
  const bool spins_;
  alignas(64) std::atomic<unsigned> arrived_{0};
  alignas(64) std::atomic<unsigned> generation_{0};
};

struct Measured {
  std::size_t operations = 0;
  double cpu_s = 0;  // of the measured parts
};

class Team;

// One thread of the team.
class Member {
 public:
  Member(Team& team, unsigned number);

  const unsigned number;
  Random random;

  // What comes between is measured. begin() returns on all threads at once; it is told how many
  // operations this thread has done before, which the whole process has paid for as well.
  void begin(std::size_t operations_before);
  void end(std::size_t operations);
  // Waits for all; between rounds of measured work, without measuring that.
  void meet_unmeasured();
  void meet();
  // For a thread that this one starts and joins within its measured part: the same for that one
  // alone.
  void begin_alone();
  void end_alone(std::size_t operations);
  // Where there is nothing to do yet.
  void idle() const;

 private:
  Team& team_;
  double cpu_at_begin_s_ = 0;
};

class Team {
 public:
  explicit Team(const Shape& shape);

  // Runs `work` on each thread and waits for all; prints what a driver wants to know of it.
  void run(const std::function<void(Member&)>& work);
  const Shape& shape() const { return shape_; }

 private:
  friend class Member;
  void add(std::size_t operations, double cpu_s);
  void report() const;

  const Shape shape_;
  Meeting meeting_;
  std::mutex mutex_;
  Measured measured_;
  // No lock: a thread that waits for one comes late to a count under QEMU.
  std::atomic<std::size_t> operations_before_{0};
};

}  // namespace rdmalloc::bench
