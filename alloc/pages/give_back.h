// Giving pages back: the one way, in the order of I3 and no other.
//
//   1. the caller takes the range, which is in flight then       page_heap_purge_begin: kPurging
//   2. phase "agree": listeners hear what was noted of it and    events_ask_purge
//      may refuse. Our registration cache deregisters here
//   3. phase "decommit": other caches, which can't refuse, are   events_notify_decommit, and
//      notified; then the pages go                               madvise(MADV_DONTNEED)
//   4. the caller's last step: it notes that the pages went,     events_note_purged
//      or puts others there
//   5. listeners that agreed hear the end                        events_notify_purged
//   6. the caller puts the range back                            page_heap_purge_end
//
// With the purge turn (purge_turn.h), held over all six, and no lock. The listeners come before the
// range is back: the next malloc may hand it out, and a registration of it, or news of its reuse,
// must not meet a purge that has not ended yet.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstddef>
#include <cstdint>

#include "alloc/pages/events.h"

namespace rdmalloc {

enum class GiveBack : std::uint8_t { kDone, kRefused, kFailed };

// Step 3. 0, or an error of the kernel; then a part of the pages may be gone (locked ones stay).
int notify_and_decommit(std::uintptr_t base, std::size_t length);

// Steps 2 to 5. `last_step` gets the error of the decommit and returns that of the whole.
template <class LastStep>
GiveBack give_back(std::uintptr_t base, std::size_t length, enum rdmalloc_purge_reason reason,
                   LastStep last_step) {
  if (events_ask_purge(base, length, reason) != 0) return GiveBack::kRefused;
  int error = last_step(notify_and_decommit(base, length));
  events_notify_purged(base, length, error);
  return error == 0 ? GiveBack::kDone : GiveBack::kFailed;
}

}  // namespace rdmalloc
