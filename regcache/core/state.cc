#include "regcache/core/state.h"

#include "alloc/for_regcache.h"
#include "regcache/core/statistics.h"
#include "regcache/core/wiped_on_fork.h"

namespace rdmalloc::regcache {

constinit Survivors survivors;

namespace {

int add_observer() {
  rdmalloc_observer_ops ops = {};
  ops.size = sizeof ops;
  ops.purge = on_purge;
  ops.purged = on_purged;
  rdmalloc_observer* observer = nullptr;
  // Never removed: closed domains may leave quarantined ranges. A fork child starts without it.
  return rdmalloc_observer_add(&ops, nullptr, &observer);
}

int prepare_once(State& all) {
  std::uintptr_t base = 0;
  std::size_t length = 0;
  if (int error = rdmalloc_arena_extent(&base, &length)) return error;
  survivors.arena_base.store(base, std::memory_order_relaxed);
  survivors.arena_length.store(length, std::memory_order_relaxed);
  std::size_t words = (length >> RDMALLOC_SLICE_SHIFT) * sizeof(std::atomic<std::uint32_t>);
  if (int error = map_wiped_once(survivors.words, words)) return error;
  all.words.use(reinterpret_cast<std::atomic<std::uint32_t>*>(survivors.words.load()));
  Domain& orphans = all.domains[kOrphans];
  orphans.index = kOrphans;
  orphans.stripes = all.stripes[kOrphans];
  orphans.ops.name = "a closed domain";
  orphans.max_bytes = orphans.max_count = UINT64_MAX;
  orphans.phase.store(Phase::kIsOpen, std::memory_order_release);
  for (const Holder* holder : holders)
    if (int error = holder->prepare()) return error;
  if (int error = watcher.prepare()) return error;
  // Release: pairs with the acquire of a thread that prints statistics.
  registration_statistics.store(&domain_statistics, std::memory_order_release);
  return add_observer();
}

}  // namespace

int state_prepare(State** ready) {
  if (int error = survivors.state.prepare()) return error;
  State* all = *ready = state();
  for (;;) {
    std::uint32_t seen = kNotReady;
    if (all->preparation.compare_exchange_strong(seen, kPreparing, std::memory_order_acquire)) {
      // Under no lock: adding an observer starts a thread.
      int error = prepare_once(*all);
      all->preparation.store(error == 0 ? kReady : kNotReady, std::memory_order_release);
      os::futex_wake(reinterpret_cast<const std::uint32_t*>(&all->preparation), INT32_MAX);
      return error;
    }
    if (seen == kReady) return 0;
    os::futex_wait(reinterpret_cast<const std::uint32_t*>(&all->preparation), kPreparing, -1);
  }
}

}  // namespace rdmalloc::regcache
