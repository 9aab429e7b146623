// Page events: notifying observers of what happens to pages, and asking them before pages go.
//
// malloc and free may call no observer (I1), so the hand-out of pages is only noted there, as bits
// in a byte for each slice (noting can't fail and needs no memory, I7), and notified later on the
// thread that holds the purge turn: at its next turn, and for a range before that range is purged.
//
// One list has all that listen: the program's observers, our registration cache as one of them, and
// the notifiers of other caches. Before pages go it is called in two phases (give_back.h).
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "alloc/pages/span.h"

namespace rdmalloc {

struct PageListener {
  static constexpr std::uint32_t kFree = 0, kFilling = 1, kActive = 2, kRemoved = 3;

  // Of an observer; `ops.purge` is phase "agree".
  rdmalloc_observer_ops ops = {};
  void* arg = nullptr;
  // Phase "decommit", for caches that can't refuse: every observer has agreed. True: each cache
  // there is was notified, so the pages may go by a raw call. Else they go by libc's madvise, which
  // others may have hooked.
  bool (*decommit)(std::uintptr_t base, std::size_t length) = nullptr;

  // Of an observer kFree -> kFilling -> kActive (add) -> kRemoved (remove) -> kFree (once no call
  // runs). kActive by its release, which pairs with the acquire of a walk: ops and arg are there.
  std::atomic<std::uint32_t> state{kFree};
  SliceIndex reserved_notified = 0;  // slices that ops.reserve was called for; purge turn only
  bool has_agreed = false;           // to the purge under way; purge turn only
  // Written once, release; walks acquire. A listener stays in the list.
  std::atomic<PageListener*> next{nullptr};
};

// Puts a listener in the list, after those that are there; one that is there stays. Its functions
// are called once its state is kActive, in children of fork too. Lock-free; any thread.
void events_listen(PageListener& listener);

// Pages of a clean span were handed out. Under the page heap's lock; lock-free.
void events_note_use(SliceIndex slice, std::uint32_t slices);
// Pages of a slab in use that had been purged (a bit for each page of the slice) are touched again.
// Under the slab's class's lock; lock-free.
void events_note_reuse_pages(SliceIndex slice, std::uint16_t pages);

// The functions below are called by the holder of the purge turn only, with no lock held.

// Notifies of what was noted: everything, or what lies in a range.
void events_deliver_all();
void events_deliver(SliceIndex slice, std::uint32_t slices);
// Asks every observer whether the pages may be purged. 0, or the refusal; observers who had agreed
// are notified of it.
int events_ask_purge(std::uintptr_t base, std::size_t length, enum rdmalloc_purge_reason reason);
// A free span's pages are gone: the next to get them reuses them. Before the notification.
void events_note_purged(SliceIndex slice, std::uint32_t slices);
// Every observer has agreed, and the pages go next. Whether a raw call will do.
bool events_notify_decommit(std::uintptr_t base, std::size_t length);
// Notifies of the end of a purge that was agreed to.
void events_notify_purged(std::uintptr_t base, std::size_t length, int result);

// Whether this thread is inside a function of a listener: calls that wait for what a purge may be
// waiting for return -EDEADLK there.
bool is_in_page_event();
// Whether there is something to notify of; without the turn.
bool events_are_pending();
// In a fork child: observers of the parent are not called; what they watch is not there.
void events_after_fork();

}  // namespace rdmalloc
