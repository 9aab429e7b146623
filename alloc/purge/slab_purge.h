// Giving back pages of slabs in use: the walk over all slabs, on the purge turn.
//
// A slab from which nothing was taken and to which nothing came back for a while has free blocks
// that are not needed: its pages without a live or cached block go (slabs/slab_pages.h). The walk
// remembers what it saw, and when nothing is left to be done asks to be notified of the next change
// (slab_watch).
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstddef>
#include <cstdint>

#include "alloc/pages/give_back.h"

namespace rdmalloc {

struct SlabPurge {
  bool everything;  // whatever the age, in one walk
  // For how long nothing was taken and nothing came back; and the same for a part of a huge page,
  // which frees little at once.
  std::uint32_t still_ms, still_huge_ms;
  enum rdmalloc_purge_reason reason;
  // Purges pages that are in flight: asks, decommits, notifies. Not kDone: they stay.
  GiveBack (*purge)(std::uintptr_t base, std::size_t length, enum rdmalloc_purge_reason reason);
  bool (*must_stop)();  // asked after each slab
};
// A part of a walk over all slabs, all of it with `everything`. Returns the bytes given back.
std::uint64_t slab_purge_walk(const SlabPurge& how);
// Whether the last whole walk left nothing to come back for, and nothing has changed since. If so,
// purge_note_slab_change() is called at the next change.
bool slab_purge_is_done();

}  // namespace rdmalloc
