// Takes what the caches of threads hold without their help.
//
// A thread that is idle keeps what it cached: it makes no call that could give it up. The fast
// paths have no atomic operation and no flag, so another thread can't empty a bin as it likes; but
// it can cut one off in the middle. A NULL below blocks is what "empty" looks like (magazine.h):
//
//    slots   p0  p1  p2  p3  p4  ^top         what is there
//            p0  p1  p2 NULL p4  ^top         a mark: pops stop above it, pushes go on
//    taken:  p0 .. p3                         p4 stays; the owner closes the gap when it comes
//
//   1  ask      The taker asks for caches. An owner that comes to its slow path waits for the end.
//      barrier  Every thread passes one (membarrier). Caches whose owner is in its slow path are
//               left alone.
//   2  mark     The second block from the top becomes NULL, in each bin with two or more.
//      barrier
//   3  decide   If the bin still has a block above the mark, and the mark is there, what lies below
//               is the taker's. Else the block goes back where the NULL is.
//   4  take     Blocks are copied, the owners go on, the blocks go to their slabs, a few at once.
//               What a thread had borrowed goes back too, for others to borrow.
//
// Why step 3 is right: no pop is on its way to a marked slot. A pop that began before the second
// barrier had the slot on top; then either the bin has no block above the mark, or one was pushed
// since, over the mark. A pop that begins after the barrier finds the NULL. The block on top stays,
// since a thread may be interrupted, for however long, between its load of that block and its store
// of `top`: by a signal whose handler waits, as garbage collectors' do. So one block of each class
// is left; and the deferred one, which no other thread touches.
//
// Without membarrier (before Linux 4.14, under a filter, under ThreadSanitizer, which does not know
// it) threads keep what they have, as they do where no purge thread runs.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/cache/thread_cache.h"
#include "alloc/core/lock.h"

namespace rdmalloc {

// A thread's trip through its slow path, during which nothing is taken from its cache. Trips may be
// nested. Waits where something is being taken: for three barriers at most, none of them under
// another lock.
class SlowPath {
 public:
  explicit SlowPath(ThreadCache& cache)
      : cache_(cache), is_nested_(cache.is_in_slow_path.load(std::memory_order_relaxed)) {
    if (is_nested_) [[unlikely]]
      return;
    cache.is_in_slow_path.store(true, std::memory_order_relaxed);
    // The barrier between the two is the taker's, on this thread too: either it sees that we are
    // here, or we see that it asks.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    // Acquire: pairs with the release of the taker, which may have left gaps.
    if (cache.reclaim_state.load(std::memory_order_acquire) != 0) [[unlikely]]
      wait_and_resume();
  }
  ~SlowPath() {
    // Release: pairs with the acquire of a taker that finds us gone.
    if (!is_nested_) [[likely]]
      cache_.is_in_slow_path.store(false, std::memory_order_release);
  }
  SlowPath(const SlowPath&) = delete;
  SlowPath& operator=(const SlowPath&) = delete;

 private:
  void wait_and_resume();

  ThreadCache& cache_;
  bool is_nested_;
};

enum class ReclaimFrom { kIdle, kAll };
// Takes what idle threads hold, which are those whose caches are as they were kLookMs ago or
// earlier, when it last looked at them; or what all hold. With the purge turn, no lock held.
// `now_ms`: of os::coarse_ms(). Returns whether a later call may find more.
inline constexpr std::int64_t kLookMs = 500;
bool caches_reclaim(ReclaimFrom from, std::int64_t now_ms);
// Caches changed: two looks at the idle ones are to come, of which the second may find what was in
// use at the first. With the purge turn.
void caches_look_again();
// Takes what all other threads hold, for an allocation that found no memory; with no lock held. It
// waits for no other thread: false where one takes already, and where there was nothing.
bool caches_reclaim_for_allocation();
// What the cache of any thread holds, its magazines included: as much as it may hold, or what was
// left to it. A moment's guess.
std::uint64_t cache_bytes(ThreadCache& cache);
// Bytes of blocks taken so far.
std::uint64_t reclaimed_bytes();

// In the child of a fork, where the thread that took is gone: frees the lock and takes its marks
// away. And, with no lock held, gives the slabs what it was on its way to give them.
void reclaim_after_fork();
void reclaim_end_after_fork();

}  // namespace rdmalloc
