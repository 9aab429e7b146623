// Which chunks of the arena are backed by huge pages.
//
// A huge page makes 512 page faults one, and is paid for at its first touch. That is right for what
// will be touched all over, and wrong for a program of 1 MB in slabs of forty classes: 24 MiB of
// addresses, of which huge pages would back every byte. So:
//
//   below 2 MiB              small pages: what /bin/ls and git status stay under
//   below 64 MiB, sparse     small pages, but for chunks that one large block covers
//   the rest                 huge pages, from the moment on that what is in use fills most of the
//                            addresses, or of the last 8 MiB of them where a buffer wants more; and
//                            beyond 64 MiB in any case
//
// A chunk is asked for before any page of it is used, never later (I1). All calls under the page
// heap's lock.
#pragma once

#include "alloc/pages/span.h"

namespace rdmalloc {

// Whether the first touch of any part of the chunk that begins at this slice backs all of it.
bool huge_is_chunk(SliceIndex chunk);
// Whether any chunk that [begin, end) touches is such a one.
bool huge_is_any(SliceIndex begin, SliceIndex end);

// To be called before the slices from the frontier to `end` are committed: chooses, when a chunk
// is entered, whether huge pages begin here; `is_for_buffer`: for a span of kBufferSlices and more,
// that is no slab. Returns the end to commit instead: where that lies in
// a huge page, its rest, which is backed with its first slice.
SliceIndex huge_choose_end(SliceIndex frontier, SliceIndex end, bool is_for_buffer);
// To be called after, for the slices that one span is to take: asks for its whole chunks.
void huge_ask_for_whole(SliceIndex begin, SliceIndex end);
// To be called for whole chunks whose mapping is a new one: asks for those that had them.
void huge_ask_again(SliceIndex begin, SliceIndex end);

}  // namespace rdmalloc
