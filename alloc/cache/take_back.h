// The last resort of an allocation: nothing is refused while free memory lies in caches.
//
// Free blocks in magazines, in the depot and in heaps keep their slabs in use, so they count
// against RDMALLOC_LIMIT, and under RLIMIT_AS, RLIMIT_DATA, strict overcommit or at the arena's end
// they may be all there is. An allocation that found nothing gives them back and tries once more:
//
//   the calling thread's magazines, the depots, what heaps keep   go to their slabs
//   empty slabs                                                   go to the page heap
//   free spans of all families and shards                         are looked at by the page heap
//   if that was not enough: other threads' magazines, but for     go to their slabs
//   one block of each class and the one freed last (reclaim.h)
//
// No system call is made but to wake the purge thread, to sleep, and membarrier() (I1). There are
// two waits, each of 100 ms at most. One is for a purge that has pages of slabs in flight. The
// other is for threads that were in a slow path, so that nothing could be taken from them: such a
// thread gives up its cache at its next slow path, where it sees that the number of take-backs has
// changed. No lock and no word of that thread's is waited for.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/pages/in_flight.h"

namespace rdmalloc {

namespace detail {
// Relaxed: a thread that sees it late gives up later.
extern constinit std::atomic<std::uint32_t> take_backs;
// Empties what heaps of the user keep; they leave it here when the first is made. Relaxed: a
// function; a thread that sees it late finds no more than it found before there were heaps.
extern constinit std::atomic<bool (*)(bool everything)> age_heaps;
}  // namespace detail

// How often memory was taken back; changes each time threads are to empty their caches.
inline std::uint32_t take_backs() {
  return detail::take_backs.load(std::memory_order_relaxed);
}
// All threads are to empty their caches at their next slow path: memory is short.
inline void take_backs_ask() {
  detail::take_backs.fetch_add(1, std::memory_order_relaxed);
}

// One allocation that found no memory. To be made after its first attempt.
class TakeBack {
 public:
  // After an attempt in vain, with no lock held: whether another one is worth it. `slices`: what
  // the page heap was asked for. errno is kept.
  bool again(std::uint32_t slices);

 private:
  bool others_give_up();

  MemoryWait wait_;
  int rounds_ = 0, naps_ = 0, room_tries_ = 0;
  bool has_reclaimed_ = false;
};

// Times a thread slept in TakeBack.
std::uint64_t take_back_naps();

// A free block of a longer class, in a slab that is there: where addresses or RDMALLOC_LIMIT leave
// room for no other slab, such a block serves for one of this class. nullptr: there is none.
void* take_longer(unsigned size_class, unsigned* longer);

}  // namespace rdmalloc
