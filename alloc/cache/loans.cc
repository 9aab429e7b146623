#include "alloc/cache/loans.h"

#include "alloc/cache/shares.h"

namespace rdmalloc {

constinit Loans loans;

namespace {

std::uint32_t threads() {
  return loans.threads.load(std::memory_order_relaxed);
}

// What is lent beyond what is missing: of what is left half, if all threads came for their part
// now. So a thread comes for a few loans, not for one for each class that it opens.
std::uint64_t ahead_of(std::uint64_t left_bytes, std::uint64_t share) {
  std::uint64_t most = share < kMostShareBytes ? kMostShareBytes - share : 0;
  std::uint64_t ahead = left_bytes / (2 * std::uint64_t{threads()});
  if (ahead > kMostAheadBytes) ahead = kMostAheadBytes;
  if (ahead > most) ahead = most;
  return ahead / kLoanBytes * kLoanBytes;
}

std::uint64_t lent() {
  return loans.lent_bytes.load(std::memory_order_relaxed);
}

// What each may borrow in any case.
std::uint64_t part_of_each(std::uint64_t most) {
  return most / threads() / kLoanBytes * kLoanBytes;
}

// What is lent beyond that.
std::uint64_t most_beyond_parts(std::uint64_t most) {
  return most - most / kLeftForParts;
}

bool refuse(ThreadCache& cache) {
  cache.was_refused = true;
  return false;
}

bool borrow(ThreadCache& cache, std::uint64_t missing) {
  std::uint64_t loan = (missing + kLoanBytes - 1) / kLoanBytes * kLoanBytes;
  std::uint64_t share = share_bytes(cache) + loan;
  if (share > kMostShareBytes) return false;
  // Where all is lent, the line stays with all that read it: a cache that was refused asks again
  // after some trips to its slow path, and looks first. Not others: it would come twice, to be read
  // and to be written.
  std::uint32_t events = cache.slow_events.load(std::memory_order_relaxed);
  if (cache.was_refused && events - cache.refused_at < kEventsRefused) return false;
  cache.refused_at = events;
  std::uint64_t most = lent_bytes_of(threads());
  if (cache.lent_bytes + loan > part_of_each(most)) most = most_beyond_parts(most);
  if (cache.was_refused && lent() + loan > most) return refuse(cache);
  std::uint64_t before = loans.lent_bytes.fetch_add(loan, std::memory_order_relaxed);
  if (before + loan > most) {
    loans.lent_bytes.fetch_sub(loan, std::memory_order_relaxed);
    return refuse(cache);
  }
  cache.was_refused = false;
  cache.lent_bytes += loan;
  // The line is here now.
  std::uint64_t ahead = ahead_of(most - before - loan, share);
  if (ahead == 0) return true;
  before = loans.lent_bytes.fetch_add(ahead, std::memory_order_relaxed);
  if (before + ahead > most)
    loans.lent_bytes.fetch_sub(ahead, std::memory_order_relaxed);
  else
    cache.lent_bytes += ahead;
  return true;
}

void give_back(ThreadCache& cache, std::uint64_t bytes) {
  if (bytes == 0) return;
  cache.lent_bytes -= bytes;
  loans.lent_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace

std::uint64_t share_bytes(const ThreadCache& cache) {
  return share_of(threads()) + cache.lent_bytes;
}

bool may_hold(ThreadCache& cache, std::uint64_t more, unsigned size_class) {
  if (is_span_class(size_class)) return cache.span_bytes + more <= cache.span_share;
  std::uint64_t needed = charged(cache) + more, share = share_bytes(cache);
  return needed <= share || borrow(cache, needed - share);
}

bool may_hold_of_freed(const ThreadCache& cache, std::uint64_t more) {
  return charged(cache) + more <= free_only_share_of(threads());
}

void return_unused(ThreadCache& cache) {
  std::uint64_t needed = charged(cache) + kLoanBytes, share = share_bytes(cache);
  if (cache.lent_bytes == 0 || needed >= share) return;
  std::uint64_t unused = (share - needed) / kLoanBytes * kLoanBytes;
  if (unused > cache.lent_bytes) unused = cache.lent_bytes;
  // What it has a use for by turns stays.
  if (unused * 2 > cache.lent_bytes) give_back(cache, unused);
}

// Cold: only where nearly all is lent.
[[gnu::cold]] bool return_excess(ThreadCache& cache) {
  std::uint64_t most = lent_bytes_of(threads());
  std::uint64_t all = lent(), free_for_all = most_beyond_parts(most);
  if (all <= free_for_all) return false;
  // Threads that have ended since the caller looked make the part of each larger.
  if (cache.lent_bytes <= part_of_each(most)) return false;
  std::uint64_t excess = cache.lent_bytes - part_of_each(most);
  if (excess > all - free_for_all) excess = all - free_for_all;
  if (excess > kMostReturnedBytes) excess = kMostReturnedBytes;
  cache.was_refused = true;
  give_back(cache, excess);
  return true;
}

void return_loan(ThreadCache& cache) {
  give_back(cache, cache.lent_bytes);
}

}  // namespace rdmalloc
