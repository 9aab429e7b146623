// Regions of heaps of the user on pages of another kind than the arena has at that place: those of
// the kernel's pools of huge pages (hugetlb), transparent huge ones, or small ones for certain.
//
// Pages are exchanged as a purge gives them back (I3), for a registration may know the old ones:
//
//    a new heap's    in flight -> observers agree -> decommit -> the new ones put there -> notified
//    a dead heap's   in flight (kRetired) -> observers agree -> decommit -> plain ones -> notified
//
// So it takes the purge turn, and happens when a heap is made, grows or ends, never in malloc or
// free (I1). New pages of a pool are mapped elsewhere first: what the pool can't give is found out
// while nothing has changed. A retired region that is refused, or that the kernel has no mapping
// for at the moment, is offered again by each round of the purge thread and by rdmalloc_purge();
// until then it counts as used and as retired. The whole region is offered at once: no part of a
// huge page is ever given back.
//
// In the child of a fork the regions of its parent's heaps are there, copied as other memory, and
// end in the same way. One that was on its way to a heap is out of the child's reach for ever: it
// may have no mapping there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "alloc/core/report.h"
#include "alloc/pages/span.h"

namespace rdmalloc {

enum class PageKind : std::uint8_t { kAny, kSmall, kTransparent, kHuge2M, kHuge1G };

// Bytes of one page of the kernel's pool; 0: not of a pool.
constexpr std::size_t pool_page_bytes(PageKind kind) {
  if (kind == PageKind::kHuge2M) return std::size_t{1} << 21;
  return kind == PageKind::kHuge1G ? std::size_t{1} << 30 : 0;
}

// All with no lock held.

// Puts pages of that kind in the place of those of a region that no thread can reach. They
// are not backed yet. 0; -ENOMEM: the pool has too few, or there is no mapping to be had; -ENOTSUP:
// the kernel has no such pool or can't exchange its pages; -EBUSY: refused by an observer, or
// purging is paused; -EDEADLK in a page event. `*is_changed`: the region's pages are not what they
// were, or may be, so it is to be retired at its end.
int region_pages_put(SliceIndex slice, std::uint32_t slices, PageKind kind, bool* is_changed);

// Puts plain pages back in retired regions, as far as nothing refuses; what is left waits for the
// purge thread, or the next purge.
void region_pages_restore();
// The same, by the holder of the turn.
void region_pages_restore_in_turn();

// What of a failure to get `bytes` of pages of a pool would help: the numbers of the pool, and the
// line that makes it large enough. `node`: as in RegionLimits.
void region_pages_explain(Message& message, PageKind kind, std::uint64_t bytes, std::uint32_t node);

}  // namespace rdmalloc
