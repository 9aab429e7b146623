// The purge turn: who may call listeners and give pages back (give_back.h says how). What is given
// back, and when, is decided above, in alloc/purge/.
//
// A thread holds it over a whole purge: the purge thread, a caller of rdmalloc_purge(), or a thread
// that exchanges pages of a heap. It is no lock of the allocator: no thread inside malloc or free
// ever waits for it, so listeners may wait for what they like.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/core/lock.h"

namespace rdmalloc {

class PurgeTurn {
 public:
  std::uint32_t owner() const { return owner_.load(std::memory_order_relaxed); }
  bool try_begin() {
    std::uint32_t expected = 0;
    // Acquire: pairs with the release in end().
    bool is_begun =
        owner_.compare_exchange_strong(expected, thread_id(), std::memory_order_acquire);
    if (is_begun) ++number_;
    return is_begun;
  }
  void begin();
  void end();
  // In a fork child: the turn of the thread that called fork stays its own, any other has ended.
  // Returns whether it is that one's.
  bool after_fork(const Forker& forker) {
    if (owner() == forker.id) return true;
    owner_.store(0, std::memory_order_relaxed);
    return false;
  }

  // Which turn it is; its owner asks.
  std::uint64_t number() const { return number_; }

 private:
  std::atomic<std::uint32_t> owner_{0};
  std::atomic<std::uint32_t> waiters_{0};
  std::uint64_t number_ = 0;
};
extern constinit PurgeTurn purge_turn;

bool purge_turn_is_mine();
void purge_turn_wait();  // returns once no purge that began before is under way

// How often purging is paused: above 0 no purge begins. By the program, and by the library itself:
// two counters, since rdmalloc_purge_resume() ends no pause of ours. seq_cst, against the turn.
extern constinit std::atomic<std::uint32_t> program_purge_pauses, own_purge_pauses;
inline bool purge_is_paused() {
  return program_purge_pauses.load(std::memory_order_seq_cst) != 0 ||
         own_purge_pauses.load(std::memory_order_seq_cst) != 0;
}

// Runs `step` with the turn and returns what it does. -EBUSY while purging is paused, -EDEADLK when
// the turn is this thread's already.
int purge_with_turn(int (*step)(void* arg), void* arg);

}  // namespace rdmalloc
