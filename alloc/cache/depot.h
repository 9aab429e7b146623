// The depot: full magazines on their way between threads, a lock-free stack for each class. Bounded
// in bytes; what does not fit flows down to the slabs. One compare-and-swap moves a whole magazine.
#pragma once

#include "alloc/cache/magazine.h"

namespace rdmalloc {

// Leaves a magazine with `count` blocks; false when the class's share is used up.
bool depot_put(unsigned size_class, Magazine* magazine);
// Takes one, or nullptr.
Magazine* depot_take(unsigned size_class);
// Empties every class that nobody used since the last call into the slabs; with `everything`, all
// of them. Called by the purge thread and rdmalloc_purge(), so that memory comes back when a
// program makes no further call. Returns whether something is left.
bool depot_age(bool everything);
// Blocks of the class in the depot now; a moment's truth.
std::uint64_t depot_blocks(unsigned size_class);

}  // namespace rdmalloc
