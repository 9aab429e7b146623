// Memory that a purge has in flight, and allocations that find no other.
//
// What is being purged can't be handed out: 16 MiB at most, for some milliseconds. Under a hard
// limit (RLIMIT_AS, RLIMIT_DATA, the arena's end) it may be all there is, and malloc must not fail
// for that. So an allocation that found nothing waits until it is back, and the purge that learns
// of it stops after the piece under way: what is wanted at once is not worth giving back.
//
// The wait is bounded, and it is not for the purge turn: an observer may itself wait for a lock of
// a fabric that our caller holds (I2). Then malloc fails after all, and until something comes back
// later allocations fail at once.
#pragma once

#include <cstdint>

namespace rdmalloc {

// Around what a purge takes in flight, with the purge turn: before the first span or block goes,
// and when the last one is back. Returns whether a thread waited.
enum class InFlight : std::uint8_t { kSpans, kPagesOfSlabs };
void memory_goes_out(InFlight what);
bool memory_is_back();

// Whether a thread waits now.
bool memory_is_awaited();

// One allocation. To be made before its first attempt.
class MemoryWait {
 public:
  MemoryWait();
  // After an attempt in vain: waits for what is in flight. True: something came back since that
  // attempt began. With no lock held that an observer of purges may want; errno is kept.
  bool again();
  // The same, but only for pages of slabs: under RDMALLOC_LIMIT, where a slab counts and a free
  // span does not.
  bool again_for_slabs();

 private:
  std::uint32_t seen_;
  std::int64_t deadline_ns_ = 0;
};

// In a fork child: no thread waits, and nothing is in flight unless the purge goes on.
void memory_after_fork(bool purge_goes_on);

}  // namespace rdmalloc
