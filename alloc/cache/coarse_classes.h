// Beside other threads every second size class serves no size (bin_table.h). A thread of few live
// blocks caches one to three of each class that it uses, which is most of what it holds; with half
// of the classes it caches less, and leaves the fast path less often, as a free block serves for
// more sizes. What that costs is the ends of live blocks, so it is for threads that have little
// live. decisions/0019-coarse-classes.md
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/cache/bin_table.h"
#include "alloc/cache/loans.h"
#include "alloc/cache/shares.h"
#include "alloc/cache/thread_cache.h"

namespace rdmalloc {

// Classes become coarse for more threads than that ...
inline constexpr std::uint64_t kFineThreads = 1;
// ... while slabs are fewer slices than so many for each thread: what lives in the other classes
// then leaves places that few sizes have a use for. Eight slabs with free blocks of each class do
// not count (slab_slices_held()). With full slabs counted only, 432 MiB of blocks of 4 KiB, of
// which 30 % had been freed, some in each slab, were nothing: 64 threads that took them again had
// 677 MiB resident.
inline constexpr std::uint64_t kFewSlices = (std::size_t{384} << 10) / kSliceBytes;
// They stay so, whatever lives then and as threads end: what lived in coarse classes leaves places
// that other sizes can't use. With a limit, four threads that passed it and went on replacing came
// to 1.4 times the memory, with blocks of 4,200 B to 1.9 times; without, blocks of one size take a
// ninth more at most.
//
// A thread looks when its shard's spans in use are more or less than at the shard's last look by
// more than so many slices.
inline constexpr std::uint64_t kSlicesPerLook = (std::size_t{2} << 20) / kSliceBytes;

namespace detail {
// Written under the lock of coarse_classes.cc. Relaxed: without it hints. The second: once at
// least.
extern constinit std::atomic<bool> are_coarse, were_coarse;
void coarse_note_thread(std::uint64_t threads);
void coarse_look(const ThreadCache& cache);
void coarse_end_refused();
}  // namespace detail

// Of a thread that begins: `threads` is how many there are with it. Inlined, as is the next: a
// program of one thread maps no page of the rest, 64 KiB with what the kernel maps around it.
inline void coarse_note_thread(std::uint64_t threads) {
  if (threads > kFineThreads && !detail::are_coarse.load(std::memory_order_relaxed)) [[unlikely]]
    detail::coarse_note_thread(threads);
}
// At trips to the slow path.
inline void coarse_look(const ThreadCache& cache) {
  if (loans.threads.load(std::memory_order_relaxed) > kFineThreads &&
      !detail::are_coarse.load(std::memory_order_relaxed)) [[unlikely]]
    detail::coarse_look(cache);
}
// The class that a size of the class `own` was served by while classes were of the other kind than
// the one by which `size_class` serves it now; `size_class` where there is none.
inline unsigned class_of_other_kind(unsigned size_class, unsigned own) {
  if (size_class != own) return own;
  return detail::were_coarse.load(std::memory_order_relaxed) ? coarse_class_for(own) : own;
}
// Memory was refused, but for free blocks of the other kind: classes become fine, by which each
// block serves the sizes that it was made for, until there are few threads and then many again.
inline void coarse_end_refused() {
  if (detail::are_coarse.load(std::memory_order_relaxed)) detail::coarse_end_refused();
}
// In a child: the lock is free, and the table all of one kind.
void coarse_after_fork();

}  // namespace rdmalloc
