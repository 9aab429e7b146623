#include "alloc/pages/in_flight.h"

#include <atomic>
#include <climits>

#include "alloc/os/os.h"
#include "alloc/pages/purge_turn.h"

namespace rdmalloc {
namespace {

// As long as a purge of 16 MiB may take on a loaded machine, and short for a hang.
constexpr std::int64_t kLongestWaitNs = 100'000'000;

struct Flight {
  // Odd while something is out of flight. Changed with the turn; waited for by futex.
  //
  // seq_cst: a thread that misses a span or a block that went out sees the odd value; once that is
  // back, a thread that sees the even value finds it.
  std::atomic<std::uint32_t> epoch{0};
  // seq_cst, against `epoch`: a waiter raises it and then sleeps only while the epoch is the one it
  // saw; a purge changes the epoch and then looks here.
  std::atomic<bool> is_awaited{false};
  // Written before the epoch becomes odd; seq_cst, as that.
  std::atomic<InFlight> what{InFlight::kSpans};
  // The odd value for which a thread has waited in vain. Relaxed: orders nothing.
  std::atomic<std::uint32_t> in_vain{0};
};
constinit Flight flight;

}  // namespace

void memory_goes_out(InFlight what) {
  flight.what.store(what, std::memory_order_seq_cst);
  // A thread that waited for the flight before may have raised it after that flight's end. A thread
  // that waits for this one raises it later, once it has seen the odd value.
  flight.is_awaited.store(false, std::memory_order_seq_cst);
  flight.epoch.fetch_add(1, std::memory_order_seq_cst);
}

bool memory_is_back() {
  flight.epoch.fetch_add(1, std::memory_order_seq_cst);
  if (!flight.is_awaited.exchange(false, std::memory_order_seq_cst)) return false;
  os::futex_wake(reinterpret_cast<const std::uint32_t*>(&flight.epoch), INT_MAX);
  return true;
}

bool memory_is_awaited() {
  return flight.is_awaited.load(std::memory_order_relaxed);
}

MemoryWait::MemoryWait() : seen_(flight.epoch.load(std::memory_order_seq_cst)) {}

bool MemoryWait::again() {
  std::uint32_t now = flight.epoch.load(std::memory_order_seq_cst);
  if (now == seen_ && now % 2 == 0) return false;  // nothing was in flight
  // What this thread purges itself, it can't wait for.
  if (purge_turn_is_mine()) return false;
  std::int64_t now_ns = os::monotonic_ns();
  if (deadline_ns_ == 0) deadline_ns_ = now_ns + kLongestWaitNs;
  while (now % 2 != 0) {
    if (now == flight.in_vain.load(std::memory_order_relaxed)) return false;
    if (now_ns >= deadline_ns_) {
      flight.in_vain.store(now, std::memory_order_relaxed);
      return false;
    }
    flight.is_awaited.store(true, std::memory_order_seq_cst);
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&flight.epoch), now,
                   deadline_ns_ - now_ns);
    std::uint32_t before = now;
    now = flight.epoch.load(std::memory_order_seq_cst);
    if (now != before) break;  // it came back, and the next piece may have gone out already
    now_ns = os::monotonic_ns();
  }
  seen_ = now;
  return os::monotonic_ns() < deadline_ns_;
}

bool MemoryWait::again_for_slabs() {
  bool is_out = flight.epoch.load(std::memory_order_seq_cst) % 2 != 0;
  if (is_out && flight.what.load(std::memory_order_seq_cst) != InFlight::kPagesOfSlabs)
    return false;
  return again();
}

void memory_after_fork(bool purge_goes_on) {
  std::uint32_t epoch = flight.epoch.load(std::memory_order_relaxed);
  if (!purge_goes_on) flight.epoch.store(epoch + epoch % 2, std::memory_order_relaxed);
  flight.is_awaited.store(false, std::memory_order_relaxed);
}

}  // namespace rdmalloc
