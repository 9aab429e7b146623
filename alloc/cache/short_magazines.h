// What bins work on, by its length: a thread's short magazines (magazine.h), with the sheets they
// are cut from, whole ones and pairs. No bin is written here: that is bins.h's. Of a cache whose
// owner calls, or is gone.
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

// What a bin of that length works on; nullptr when there is none to be had.
Magazine* take_of_length(ThreadCache& cache, Length length);
// One that no bin works on, and that has no blocks.
void put_of_length(ThreadCache& cache, Magazine* magazine, Length length);
// Of a cache none of whose classes has a short magazine any more.
void return_sheets(ThreadCache& cache);

}  // namespace rdmalloc
