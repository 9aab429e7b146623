// What a thread's cache holds, may hold, and borrows for it (shares.h). Of a cache whose owner
// calls, or is kept out of it (reclaim.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/cache/shares.h"
#include "alloc/cache/thread_cache.h"

namespace rdmalloc {

struct Loans {
  // Relaxed: counts, they order nothing.
  std::atomic<std::uint32_t> threads{0};  // that have caches
  // On a line of its own: each slow path reads the count beside it.
  alignas(64) std::atomic<std::uint64_t> lent_bytes{0};
  alignas(64) std::atomic<std::uint64_t> lent_span_bytes{0};
};
extern constinit Loans loans;

// Written by the owner alone, so no read-modify-write is needed.
inline std::uint64_t held(const ThreadCache& cache) {
  return cache.held_bytes.load(std::memory_order_relaxed);
}
// Without its own blocks: what its share limits.
inline std::uint64_t charged(const ThreadCache& cache) {
  return held(cache) - cache.own_bytes;
}
// `own` of the bytes are of its own blocks. Spans are all its own.
inline void add_held(ThreadCache& cache, unsigned size_class, std::uint64_t more,
                     std::uint64_t own) {
  if (is_span_class(size_class)) {
    cache.span_bytes += more;
    own = more;
  }
  cache.own_bytes += own;
  cache.held_bytes.store(held(cache) + more, std::memory_order_relaxed);
}
inline void subtract_held(ThreadCache& cache, unsigned size_class, std::uint64_t less,
                          std::uint64_t own) {
  add_held(cache, size_class, 0 - less, 0 - own);
}

// With what it has borrowed.
std::uint64_t share_bytes(const ThreadCache& cache);
inline std::uint64_t span_share_bytes(const ThreadCache& cache) {
  return cache.span_share + cache.span_loan.bytes;
}
// Whether the cache may hold so much more of the class than now, beside its own blocks; borrows
// what is missing, for spans as for blocks.
bool may_hold(ThreadCache& cache, std::uint64_t more, unsigned size_class);
// The same of a class that the thread only frees, for which it does not borrow.
bool may_hold_of_freed(const ThreadCache& cache, std::uint64_t more);
// How much more of spans it may hold at most, if it is lent that. A thread that has all it may ends
// its trips to the slow path here.
std::uint64_t span_room(const ThreadCache& cache);
// How many more of that length, up to `wanted`; borrows for them.
std::uint32_t more_spans(ThreadCache& cache, unsigned size_class, std::uint32_t wanted);
// What the cache does not need of its loans goes back, but for one part, if that is more than half.
void return_unused(ThreadCache& cache);
// Whether the cache has borrowed more than its part.
inline bool has_excess(const ThreadCache& cache) {
  std::uint64_t threads = loans.threads.load(std::memory_order_relaxed);
  return cache.loan.bytes > kLoanBytes && cache.loan.bytes * threads > lent_bytes_of(threads);
}
// Then, and where little is left of what is lent, it gives back some of that: whether it had to.
// Its owner makes room at once. Of spans also what is beyond the most that one may have, which is
// less since there are more threads.
bool return_excess(ThreadCache& cache);
bool return_span_excess(ThreadCache& cache);
// Whether there was one.
bool return_loans(ThreadCache& cache);

}  // namespace rdmalloc
