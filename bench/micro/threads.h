// How two threads of a benchmark hand blocks to each other, cheaply: no lock, no system call while
// both have a core.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace rdmalloc::bench {

// Spins, and gives the core away when the other thread seems to have none.
template <typename Condition>
void spin_until(Condition condition) {
  for (int spins = 0; !condition(); ++spins)
    if (spins > 2000) sched_yield();
}

// One writer, one reader. Each side keeps its own copy of the other's position, so that a cache
// line moves once for many blocks (the idea is FastForward's and MCRingBuffer's).
class Ring {
 public:
  void push(void* block) {
    const std::size_t at = written_.load(std::memory_order_relaxed);
    if (at - read_seen_ == kSlots)
      spin_until([&] {
        read_seen_ = read_.load(std::memory_order_acquire);  // pairs with pop's release
        return at - read_seen_ < kSlots;
      });
    slots_[at % kSlots] = block;
    written_.store(at + 1, std::memory_order_release);  // pairs with pop's acquire
  }
  // nullptr is what the writer pushes last.
  void* pop() {
    const std::size_t at = read_.load(std::memory_order_relaxed);
    if (at == written_seen_)
      spin_until([&] {
        written_seen_ = written_.load(std::memory_order_acquire);  // pairs with push's release
        return written_seen_ != at;
      });
    void* block = slots_[at % kSlots];
    read_.store(at + 1, std::memory_order_release);  // pairs with push's acquire
    return block;
  }
  // Called by the writer. The reader may still be freeing the last block.
  void wait_until_empty() {
    const std::size_t at = written_.load(std::memory_order_relaxed);
    spin_until([&] { return read_.load(std::memory_order_acquire) == at; });
  }

 private:
  static constexpr std::size_t kSlots = 1024;
  alignas(64) std::atomic<std::size_t> written_{0};
  std::size_t read_seen_ = 0;  // the writer's
  alignas(64) std::atomic<std::size_t> read_{0};
  std::size_t written_seen_ = 0;  // the reader's
  alignas(64) std::array<void*, kSlots> slots_{};
};

// Two batches; after each meeting of the two threads each works on the batch that was the other's.
class Swap {
 public:
  explicit Swap(std::size_t count)
      : batches_{std::vector<void*>(count), std::vector<void*>(count)} {}

  // Waits for the other thread; false when it is over.
  bool meet(int side) {
    const unsigned round = ++rounds_[static_cast<std::size_t>(side)].mine;
    arrived_.fetch_add(1, std::memory_order_acq_rel);  // the batch goes over with it
    spin_until(
        [&] { return arrived_.load(std::memory_order_acquire) >= 2 * round || stopped_.load(); });
    return !stopped_.load();
  }
  void free_and_allocate(int side, std::size_t bytes) {
    const unsigned round = rounds_[static_cast<std::size_t>(side)].mine;
    for (void*& block : batches_[(static_cast<std::size_t>(side) + round) % 2]) {
      std::free(block);
      block = std::malloc(bytes);
    }
  }
  void stop() { stopped_.store(true); }
  void free_all() {
    for (auto& batch : batches_)
      for (void*& block : batch) {
        std::free(block);
        block = nullptr;
      }
  }

 private:
  struct alignas(64) Rounds {
    unsigned mine = 0;
  };
  std::array<std::vector<void*>, 2> batches_;
  std::array<Rounds, 2> rounds_{};
  alignas(64) std::atomic<unsigned> arrived_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace rdmalloc::bench
