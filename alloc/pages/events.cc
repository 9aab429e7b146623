#include "alloc/pages/events.h"

#include <errno.h>

#include "alloc/core/lock.h"
#include "alloc/fork.h"
#include "alloc/init.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/purge.h"

struct rdmalloc_observer {
  // kFree -> kActive (add) -> kRemoved (remove) -> kFree (once no call runs).
  std::atomic<std::uint32_t> state;
  rdmalloc_observer_ops ops;
  void* arg;
  rdmalloc::SliceIndex reserved_told;  // slices told by reserve(); purge turn only
  bool agreed;                         // to the purge under way; purge turn only
};

namespace rdmalloc {
namespace {

constexpr std::uint32_t kFree = 0, kActive = 1, kRemoved = 2, kFilling = 3;
constexpr int kObservers = 16;
constinit rdmalloc_observer observers[kObservers] = {};
constinit std::atomic<int> active_observers{0};

// Bits of arena.page_events.
constexpr std::uint8_t kTellUse = 1;    // handed out for the first time, to be told
constexpr std::uint8_t kTellReuse = 2;  // handed out again after a purge, to be told
constexpr std::uint8_t kWasPurged = 4;  // purged since it was last handed out
constexpr std::uint8_t kTell = kTellUse | kTellReuse;

// Slices with something to tell lie in [low, high). Written under the page heap's lock (widened)
// and with the purge turn (emptied); the exchange makes sure that nothing noted meanwhile is lost:
// what is noted after it widens again.
constinit std::atomic<std::uint32_t> low{~0u}, high{0};

template <typename Call>
void for_each_observer(Call call) {
  for (rdmalloc_observer& observer : observers) {
    // Acquire: pairs with the release in observer_add; ops and arg are there.
    if (observer.state.load(std::memory_order_acquire) != kActive) continue;
    assert_no_lock_held("page event");
    call(observer);
  }
}

void* address_of(SliceIndex slice) {
  return reinterpret_cast<void*>(arena.address_of(slice));
}
std::size_t bytes_of(std::uint32_t slices) {
  return std::size_t{slices} << kSliceShift;
}

void tell_reserved() {
  SliceIndex reserved = arena.reserved;
  for_each_observer([&](rdmalloc_observer& observer) {
    if (observer.reserved_told >= reserved) return;
    SliceIndex from = observer.reserved_told;
    observer.reserved_told = reserved;
    if (observer.ops.reserve != nullptr)
      observer.ops.reserve(observer.arg, address_of(from), bytes_of(reserved - from));
  });
}

void tell_use(SliceIndex slice, std::uint32_t slices, std::uint8_t what) {
  for_each_observer([&](rdmalloc_observer& observer) {
    auto* tell = what == kTellUse ? observer.ops.use : observer.ops.reuse;
    if (tell != nullptr) tell(observer.arg, address_of(slice), bytes_of(slices));
  });
}

}  // namespace

void events_note_use(SliceIndex slice, std::uint32_t slices) {
  if (active_observers.load(std::memory_order_relaxed) == 0) return;
  for (SliceIndex s = slice; s < slice + slices; ++s) {
    std::uint8_t bits = arena.page_events[s].load(std::memory_order_relaxed);
    arena.page_events[s].store(bits & kWasPurged ? kTellReuse : kTellUse,
                               std::memory_order_relaxed);
  }
  // Release: pairs with the acquire exchange in events_deliver_all().
  if (slice < low.load(std::memory_order_relaxed)) low.store(slice, std::memory_order_relaxed);
  if (slice + slices > high.load(std::memory_order_relaxed))
    high.store(slice + slices, std::memory_order_release);
}

bool events_are_pending() {
  return active_observers.load(std::memory_order_relaxed) != 0 &&
         high.load(std::memory_order_relaxed) != 0;
}

void events_deliver(SliceIndex slice, std::uint32_t slices) {
  for (SliceIndex s = slice; s < slice + slices;) {
    std::uint8_t what = arena.page_events[s].load(std::memory_order_relaxed) & kTell;
    if (what == 0) {
      ++s;
      continue;
    }
    SliceIndex begin = s;
    // One call for a run of equal news. The bits are taken before the call: each is told once.
    while (s < slice + slices &&
           (arena.page_events[s].load(std::memory_order_relaxed) & kTell) == what) {
      arena.page_events[s].fetch_and(static_cast<std::uint8_t>(~kTell), std::memory_order_relaxed);
      ++s;
    }
    tell_use(begin, s - begin, what);
  }
}

void events_deliver_all() {
  if (active_observers.load(std::memory_order_relaxed) == 0) return;
  tell_reserved();
  SliceIndex end = high.exchange(0, std::memory_order_acquire);
  SliceIndex begin = low.exchange(~0u, std::memory_order_relaxed);
  // A note between the two exchanges, or one that saw the old low, would be cut short: never trust
  // `begin` alone when something was noted meanwhile.
  if (high.load(std::memory_order_relaxed) != 0) begin = 0;
  if (end > begin) events_deliver(begin, end - begin);
}

int events_ask_purge(SliceIndex slice, std::uint32_t slices, enum rdmalloc_purge_reason reason) {
  events_deliver(slice, slices);
  int refusal = 0;
  for (rdmalloc_observer& observer : observers) observer.agreed = false;
  for_each_observer([&](rdmalloc_observer& observer) {
    if (refusal != 0) return;
    if (observer.ops.purge != nullptr)
      refusal = observer.ops.purge(observer.arg, address_of(slice), bytes_of(slices), reason);
    observer.agreed = refusal == 0;
  });
  if (refusal != 0) events_tell_purged(slice, slices, -ECANCELED);
  return refusal;
}

void events_tell_purged(SliceIndex slice, std::uint32_t slices, int result) {
  if (result == 0 && active_observers.load(std::memory_order_relaxed) != 0)
    for (SliceIndex s = slice; s < slice + slices; ++s)
      arena.page_events[s].store(kWasPurged, std::memory_order_relaxed);
  for_each_observer([&](rdmalloc_observer& observer) {
    if (!observer.agreed) return;
    observer.agreed = false;
    if (observer.ops.purged != nullptr)
      observer.ops.purged(observer.arg, address_of(slice), bytes_of(slices), result);
  });
}

void events_after_fork() {
  for (rdmalloc_observer& observer : observers) observer.state.store(kFree);
  active_observers.store(0);
}

}  // namespace rdmalloc

using namespace rdmalloc;

extern "C" int rdmalloc_observer_add(const struct rdmalloc_observer_ops* ops, void* arg,
                                     struct rdmalloc_observer** out) {
  if (ops == nullptr || out == nullptr || ops->size != sizeof *ops) return -EINVAL;
  if (!ensure_initialised()) return -ENOMEM;
  // Now, not later: recovery forgets the parent's observers, and ours would go with them.
  fork_check();
  for (rdmalloc_observer& observer : observers) {
    std::uint32_t expected = kFree;
    if (!observer.state.compare_exchange_strong(expected, kFilling, std::memory_order_acquire))
      continue;
    observer.ops = *ops;
    observer.arg = arg;
    observer.reserved_told = 0;
    active_observers.fetch_add(1, std::memory_order_relaxed);
    // Release: pairs with the acquire in for_each_observer().
    observer.state.store(kActive, std::memory_order_release);
    *out = &observer;
    purge_wake();
    return 0;
  }
  return -ENOSPC;
}

extern "C" int rdmalloc_observer_remove(struct rdmalloc_observer* observer) {
  if (observer < observers || observer >= observers + kObservers) return -EINVAL;
  if (purge_turn_is_mine()) return -EDEADLK;
  std::uint32_t expected = kActive;
  if (!observer->state.compare_exchange_strong(expected, kRemoved, std::memory_order_relaxed))
    return -EINVAL;
  active_observers.fetch_sub(1, std::memory_order_relaxed);
  // Its functions run with the purge turn only: once we had the turn, none runs and none will.
  purge_turn_wait();
  observer->state.store(kFree, std::memory_order_release);
  return 0;
}
