// How many blocks a class may hold in a thread: few at first, more with each trip to the slow path,
// as far as the thread's share goes (shares.h).
#pragma once

#include <cstdint>

#include "alloc/cache/thread_cache.h"

namespace rdmalloc {

// Gives the class its first magazine. False when there is none to be had.
bool open_class(ThreadCache& cache, unsigned size_class);
// Blocks that the class's bin works on at most: bin_max; in a program of one thread all that a pair
// has room for, however long, if it takes or frees many in one go.
std::uint32_t most_of_bin(const ThreadCache& cache, unsigned size_class);
// Doubles what the class may hold, up to `most` and what the cache may hold. Whether it did.
bool grow_limit(ThreadCache& cache, unsigned size_class, std::uint32_t most);
// Whether a thread beside others has no more of the class than it usually may hold (most_of_few,
// most_of_many): that goes to and fro about its half.
bool is_kept_short(unsigned size_class, const ColdBin& cold);
// Halves it, of a thread that frees what threads of another node had.
void shrink_limit(ThreadCache& cache, unsigned size_class);

}  // namespace rdmalloc
