// A thread's short magazines (magazine.h) and the sheets they are cut from. No bin is written here:
// that is bins.h's. Of a cache whose owner calls, or is gone.
#pragma once

#include <cstdint>

#include "alloc/cache/thread_cache.h"

namespace rdmalloc {

// Whether the class begins with one in a thread beside many: whole magazines of longer blocks would
// not fit into it.
constexpr bool begins_short(unsigned size_class) {
  return class_info(size_class).whole > kShortSlots;
}

// What of a sheet is the thread's own, beside what its share allows.
inline std::uint64_t own_part_of_sheet(const ThreadCache& cache) {
  return cache.own_blocks == 0 ? 0 : sizeof(Magazine);
}

// One for a class; nullptr when there is none to be had.
Magazine* take_short(ThreadCache& cache);
// One that no class works on.
inline void put_short(ThreadCache& cache, Magazine* piece) {
  piece->slots[0] = cache.free_short;
  cache.free_short = piece;
}
// What a short magazine holds goes where that of another would, and the line to its sheet.
void hand_over_short(ThreadCache& cache, unsigned size_class, Magazine* piece, bool is_taken_from);
// Of a cache none of whose classes has a short magazine any more.
void return_sheets(ThreadCache& cache);

}  // namespace rdmalloc
