#include "alloc/cache/loans.h"

#include "alloc/cache/shares.h"

namespace rdmalloc {

constinit Loans loans;

namespace {

std::uint32_t threads() {
  return loans.threads.load(std::memory_order_relaxed);
}

bool borrow(ThreadCache& cache, std::uint64_t missing) {
  std::uint64_t loan = (missing + kLoanBytes - 1) / kLoanBytes * kLoanBytes;
  if (share_bytes(cache) + loan > kMostShareBytes) return false;
  // Looked at before it is written by a cache that was refused: where all is lent, the line stays
  // with all that read it. Not by others: it would come twice, to be read and to be written.
  if (cache.was_refused &&
      loans.lent_bytes.load(std::memory_order_relaxed) + loan > lent_bytes_of(threads()))
    return false;
  std::uint64_t before = loans.lent_bytes.fetch_add(loan, std::memory_order_relaxed);
  cache.was_refused = before + loan > lent_bytes_of(threads());
  if (cache.was_refused) {
    loans.lent_bytes.fetch_sub(loan, std::memory_order_relaxed);
    return false;
  }
  cache.lent_bytes += loan;
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
  give_back(cache, unused < cache.lent_bytes ? unused : cache.lent_bytes);
}

void return_loan(ThreadCache& cache) {
  give_back(cache, cache.lent_bytes);
}

}  // namespace rdmalloc
