#include "alloc/pages/events.h"

#include <errno.h>

#include <bit>

#include "alloc/core/fork.h"
#include "alloc/core/init.h"
#include "alloc/core/lock.h"
#include "alloc/core/purge_signal.h"
#include "alloc/core/sized_struct.h"
#include "alloc/os/at_start.h"
#include "alloc/os/fault.h"
#include "alloc/pages/arena.h"
#include "alloc/pages/page_heap.h"
#include "alloc/pages/places.h"
#include "alloc/pages/purge_turn.h"

struct rdmalloc_observer : rdmalloc::PageListener {};

namespace rdmalloc {
namespace {

constexpr int kObservers = 16;
constinit rdmalloc_observer observers[kObservers] = {};
constinit std::atomic<int> active_observers{0};
// The list. The notifiers enter it at each program's start.
RDMALLOC_AT_START constinit std::atomic<PageListener*> first{nullptr};

// Bits of arena.page_events.
constexpr std::uint8_t kNotifyUse = 1;    // handed out for the first time, to be notified
constexpr std::uint8_t kNotifyReuse = 2;  // handed out again after a purge, to be notified
constexpr std::uint8_t kWasPurged = 4;    // purged since it was last handed out
constexpr std::uint8_t kNotifyPages = 8;  // some pages of it (Arena::reused_pages), to be notified
constexpr std::uint8_t kNotify = kNotifyUse | kNotifyReuse;

// Slices with something to notify of lie in [low, high): widened by the thread that notes
// something, emptied with the purge turn. Both ends are one word: a delivery between the writes of
// two would find one end without the other, and lose what was noted.
struct alignas(8) Noted {
  SliceIndex low, high;
};
static_assert(std::atomic<Noted>::is_always_lock_free);
constexpr Noted kNothing = {~SliceIndex{0}, 0};
constinit std::atomic<Noted> noted{kNothing};

void widen(SliceIndex begin, SliceIndex end) {
  Noted was = noted.load(std::memory_order_relaxed);
  auto widened = [&] {
    return Noted{begin < was.low ? begin : was.low, end > was.high ? end : was.high};
  };
  // Written even where it stays as it is: a delivery that empties it afterwards finds what was
  // noted, and after one that came before this widens it again. Release: pairs with the acquire
  // exchange in events_deliver_all().
  while (!noted.compare_exchange_weak(was, widened(), std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
}

constinit thread_local bool in_page_event = false;

template <typename Call>
void for_each_listener(Call call) {
  for (PageListener* at = first.load(std::memory_order_acquire); at != nullptr;
       at = at->next.load(std::memory_order_acquire)) {
    if (at->state.load(std::memory_order_acquire) != PageListener::kActive) continue;
    assert_no_lock_held("page event");
    in_page_event = true;
    call(*at);
    in_page_event = false;
    // It may have forked, and this be the child: no lock before that is known. The purge goes on.
    fork_check();
  }
}

void* address_of(SliceIndex slice) {
  return reinterpret_cast<void*>(arena.address_of(slice));
}
std::size_t bytes_of(std::uint32_t slices) {
  return std::size_t{slices} << kSliceShift;
}

void notify_reserved() {
  SliceIndex reserved = page_heap_reserved();
  for_each_listener([&](PageListener& observer) {
    if (observer.reserved_notified >= reserved) return;
    SliceIndex from = observer.reserved_notified;
    observer.reserved_notified = reserved;
    if (observer.ops.reserve != nullptr)
      observer.ops.reserve(observer.arg, address_of(from), bytes_of(reserved - from));
  });
}

void notify_use(void* base, std::size_t length, std::uint8_t what) {
  for_each_listener([&](PageListener& observer) {
    auto* notify = what == kNotifyUse ? observer.ops.use : observer.ops.reuse;
    if (notify != nullptr) notify(observer.arg, base, length);
  });
}

void notify_reused_pages(SliceIndex slice) {
  unsigned pages = arena.reused_pages[slice].exchange(0, std::memory_order_relaxed);
  for (unsigned page = 0; pages >> page != 0; ++page) {
    if ((pages >> page & 1) == 0) continue;
    auto run = static_cast<unsigned>(std::countr_one(pages >> page));
    notify_use(static_cast<char*>(address_of(slice)) + page * arena.page_bytes,
               run * arena.page_bytes, kNotifyReuse);
    page += run;
  }
}

}  // namespace

void events_listen(PageListener& listener) {
  std::atomic<PageListener*>* end = &first;
  // The release of the exchange makes what the listener holds visible to walks.
  for (PageListener* at = nullptr;
       !end->compare_exchange_strong(at, &listener, std::memory_order_acq_rel) && at != &listener;
       at = nullptr)
    end = &at->next;
}

void events_note_use(SliceIndex slice, std::uint32_t slices) {
  if (active_observers.load(std::memory_order_relaxed) == 0) return;
  for (SliceIndex s = slice; s < slice + slices; ++s) {
    std::uint8_t bits = arena.page_events[s].load(std::memory_order_relaxed);
    arena.reused_pages[s].store(0, std::memory_order_relaxed);
    arena.page_events[s].store(bits & kWasPurged ? kNotifyReuse : kNotifyUse,
                               std::memory_order_relaxed);
  }
  widen(slice, slice + slices);
}

void events_note_reuse_pages(SliceIndex slice, std::uint16_t pages) {
  if (active_observers.load(std::memory_order_relaxed) == 0) return;
  // Release: the thread that takes the bit in events_deliver() finds the pages.
  arena.reused_pages[slice].fetch_or(pages, std::memory_order_relaxed);
  arena.page_events[slice].fetch_or(kNotifyPages, std::memory_order_release);
  widen(slice, slice + 1);
}

bool is_in_page_event() {
  return in_page_event;
}

bool events_are_pending() {
  return active_observers.load(std::memory_order_relaxed) != 0 &&
         noted.load(std::memory_order_relaxed).high != 0;
}

void events_deliver(SliceIndex slice, std::uint32_t slices) {
  for (SliceIndex s = slice; s < slice + slices;) {
    std::uint8_t bits = arena.page_events[s].load(std::memory_order_relaxed), what = bits & kNotify;
    if (what == 0) {
      if (bits & kNotifyPages) {
        // Acquire: pairs with the release in events_note_reuse_pages().
        arena.page_events[s].fetch_and(static_cast<std::uint8_t>(~kNotifyPages),
                                       std::memory_order_acquire);
        notify_reused_pages(s);
      }
      ++s;
      continue;
    }
    SliceIndex begin = s;
    // One call for a run of equal news. The bits are taken before the call: each is notified once.
    while (s < slice + slices &&
           (arena.page_events[s].load(std::memory_order_relaxed) & kNotify) == what) {
      arena.page_events[s].fetch_and(static_cast<std::uint8_t>(~kNotify),
                                     std::memory_order_relaxed);
      ++s;
    }
    notify_use(address_of(begin), bytes_of(s - begin), what);
  }
}

void events_deliver_all() {
  if (active_observers.load(std::memory_order_relaxed) == 0) return;
  notify_reserved();
  // Acquire: pairs with the release in widen(), by which what was noted there is found.
  Noted all = noted.exchange(kNothing, std::memory_order_acquire);
  if (all.high > all.low) events_deliver(all.low, all.high - all.low);
}

int events_ask_purge(std::uintptr_t base, std::size_t length, enum rdmalloc_purge_reason reason) {
  SliceIndex slice = arena.slice_of(base);
  events_deliver(slice, arena.slice_of(base + length - 1) + 1 - slice);
  int refusal = 0;
  for (rdmalloc_observer& observer : observers) observer.has_agreed = false;
  for_each_listener([&](PageListener& observer) {
    if (refusal != 0) return;
    if (observer.ops.purge != nullptr)
      refusal =
          os::should_fail(os::Site::kPurgeEvent)
              ? -EBUSY
              : observer.ops.purge(observer.arg, reinterpret_cast<void*>(base), length, reason);
    observer.has_agreed = refusal == 0;
  });
  if (refusal != 0) events_notify_purged(base, length, -ECANCELED);
  return refusal;
}

void events_note_purged(SliceIndex slice, std::uint32_t slices) {
  if (active_observers.load(std::memory_order_relaxed) == 0) return;
  for (SliceIndex s = slice; s < slice + slices; ++s)
    arena.page_events[s].store(kWasPurged, std::memory_order_relaxed);
}

bool events_notify_decommit(std::uintptr_t base, std::size_t length) {
  bool is_raw_enough = false;
  for_each_listener([&](PageListener& listener) {
    if (listener.decommit != nullptr && listener.decommit(base, length)) is_raw_enough = true;
  });
  return is_raw_enough;
}

void events_notify_purged(std::uintptr_t base, std::size_t length, int result) {
  for_each_listener([&](PageListener& observer) {
    if (!observer.has_agreed) return;
    observer.has_agreed = false;
    if (observer.ops.purged != nullptr)
      observer.ops.purged(observer.arg, reinterpret_cast<void*>(base), length, result);
  });
}

void events_after_fork() {
  for (rdmalloc_observer& observer : observers) observer.state.store(PageListener::kFree);
  active_observers.store(0);
}

}  // namespace rdmalloc

using namespace rdmalloc;

extern "C" int rdmalloc_observer_add(const struct rdmalloc_observer_ops* ops, void* arg,
                                     struct rdmalloc_observer** out) {
  rdmalloc_observer_ops known = {};
  if (int error = read_struct(ops, &known)) return error;
  if (out == nullptr) return -EINVAL;
  if (!ensure_initialised()) return -ENOMEM;
  // Now, not later: recovery forgets the parent's observers, and ours would go with them.
  fork_check();
  for (rdmalloc_observer& observer : observers) {
    std::uint32_t expected = PageListener::kFree;
    if (!observer.state.compare_exchange_strong(expected, PageListener::kFilling,
                                                std::memory_order_acquire))
      continue;
    observer.ops = known;
    observer.arg = arg;
    observer.reserved_notified = 0;
    active_observers.fetch_add(1, std::memory_order_relaxed);
    events_listen(observer);
    page_heap_keep_places();
    // Release: pairs with the acquire in for_each_listener().
    observer.state.store(PageListener::kActive, std::memory_order_release);
    *out = &observer;
    purge_wake();
    return 0;
  }
  return -ENOSPC;
}

extern "C" int rdmalloc_observer_remove(struct rdmalloc_observer* observer) {
  if (observer < observers || observer >= observers + kObservers) return -EINVAL;
  if (purge_turn_is_mine()) return -EDEADLK;
  std::uint32_t expected = PageListener::kActive;
  if (!observer->state.compare_exchange_strong(expected, PageListener::kRemoved,
                                               std::memory_order_relaxed))
    return -EINVAL;
  active_observers.fetch_sub(1, std::memory_order_relaxed);
  // Its functions run with the purge turn only: once we had the turn, none runs and none will.
  purge_turn_wait();
  observer->state.store(PageListener::kFree, std::memory_order_release);
  return 0;
}
