// Page events: telling observers what happens to pages, and asking them before pages go.
//
// malloc and free may call nobody (I1), so the hand-out of pages is only noted there, as bits in a
// byte for each slice (noting can't fail and needs no memory, I7), and told later on the thread
// that holds the purge turn: at its next turn, and for a range before that range is purged.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstdint>

#include "alloc/pages/span.h"

namespace rdmalloc {

// Pages of a clean span were handed out. Under the page heap's lock; wait-free.
void events_note_use(SliceIndex slice, std::uint32_t slices);

// The functions below are called by the holder of the purge turn only, with no lock held.

// Tells what was noted: everything, or what lies in a range.
void events_deliver_all();
void events_deliver(SliceIndex slice, std::uint32_t slices);
// Asks every observer whether the range may be purged. 0, or the refusal; observers who had agreed
// are told of it.
int events_ask_purge(SliceIndex slice, std::uint32_t slices, enum rdmalloc_purge_reason reason);
// Tells the end of a purge that was agreed to.
void events_tell_purged(SliceIndex slice, std::uint32_t slices, int result);

// Whether there is something to tell; without the turn.
bool events_are_pending();
// In a fork child: observers of the parent are not called; what they watch is not there.
void events_after_fork();

}  // namespace rdmalloc
