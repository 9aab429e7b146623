#include "alloc/cache/loans.h"

#include <algorithm>

#include "alloc/cache/shares.h"
#include "alloc/pages/dirty.h"

namespace rdmalloc {

constinit Loans loans;

namespace {

std::uint32_t threads() {
  return loans.threads.load(std::memory_order_relaxed);
}

// What a cache borrows of one kind, and from what.
struct Kind {
  Loan& loan;
  std::atomic<std::uint64_t>& lent_bytes;  // to all
  std::uint64_t most_lent;
  std::uint64_t share;  // the cache's, with its loan
  std::uint64_t most_share;
  std::uint64_t most_ahead;

  std::uint64_t lent() const { return lent_bytes.load(std::memory_order_relaxed); }
};

Kind blocks_of(ThreadCache& cache) {
  return {cache.loan,         loans.lent_bytes, lent_bytes_of(threads()),
          share_bytes(cache), kMostShareBytes,  kMostAheadBytes};
}

Kind spans_of(ThreadCache& cache) {
  std::uint64_t backed = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  return {cache.span_loan,
          loans.lent_span_bytes,
          lent_span_bytes_of(backed),
          span_share_bytes(cache),
          most_span_share_of(threads(), backed),
          0};
}

// What is lent beyond what is missing: of what is left half, if all threads came for their part
// now. So a thread comes for a few loans, not for one for each class that it opens. Not of spans,
// of which a class wants many kilobytes at once.
std::uint64_t ahead_of(const Kind& kind, std::uint64_t left_bytes, std::uint64_t share) {
  std::uint64_t most = share < kind.most_share ? kind.most_share - share : 0;
  std::uint64_t ahead = left_bytes / (2 * std::uint64_t{threads()});
  if (ahead > kind.most_ahead) ahead = kind.most_ahead;
  if (ahead > most) ahead = most;
  return ahead / kLoanBytes * kLoanBytes;
}

// What each may borrow in any case.
std::uint64_t part_of_each(std::uint64_t most) {
  return most / threads() / kLoanBytes * kLoanBytes;
}

// What is lent beyond that.
std::uint64_t most_beyond_parts(std::uint64_t most) {
  return most - most / kLeftForParts;
}

bool refuse(Loan& loan) {
  loan.was_refused = true;
  return false;
}

// What was lent, 0 if it could not be. Not a part of may_hold(), which a start runs: it borrows
// nothing.
[[gnu::noinline]] std::uint64_t borrow(const ThreadCache& cache, const Kind& kind,
                                       std::uint64_t missing) {
  Loan& loan = kind.loan;
  std::uint64_t wanted = (missing + kLoanBytes - 1) / kLoanBytes * kLoanBytes;
  std::uint64_t share = kind.share + wanted;
  if (share > kind.most_share) return 0;
  // Where all is lent, the line stays with all that read it: a cache that was refused asks again
  // after some trips to its slow path, and looks first. Not others: it would come twice, to be read
  // and to be written.
  std::uint32_t events = cache.slow_events.load(std::memory_order_relaxed);
  if (loan.was_refused && events - loan.refused_at < kEventsRefused) return 0;
  loan.refused_at = events;
  std::uint64_t most = kind.most_lent;
  if (loan.bytes + wanted > part_of_each(most)) most = most_beyond_parts(most);
  if (loan.was_refused && kind.lent() + wanted > most) return refuse(loan);
  std::uint64_t before = kind.lent_bytes.fetch_add(wanted, std::memory_order_relaxed);
  if (before + wanted > most) {
    kind.lent_bytes.fetch_sub(wanted, std::memory_order_relaxed);
    return refuse(loan);
  }
  loan.was_refused = false;
  // The line is here now.
  std::uint64_t ahead = ahead_of(kind, most - before - wanted, share);
  if (ahead != 0 && kind.lent_bytes.fetch_add(ahead, std::memory_order_relaxed) + ahead > most) {
    kind.lent_bytes.fetch_sub(ahead, std::memory_order_relaxed);
    ahead = 0;
  }
  loan.bytes += wanted + ahead;
  return wanted + ahead;
}

std::uint64_t give_back(const Kind& kind, std::uint64_t bytes) {
  if (bytes == 0) return 0;
  kind.loan.bytes -= bytes;
  kind.lent_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  return bytes;
}

// Of a loan of which so much is needed.
void give_unused_back(const Kind& kind, std::uint64_t needed) {
  needed += kLoanBytes;
  if (kind.loan.bytes == 0 || needed >= kind.share) return;
  std::uint64_t unused = (kind.share - needed) / kLoanBytes * kLoanBytes;
  if (unused > kind.loan.bytes) unused = kind.loan.bytes;
  // What it has a use for by turns stays.
  if (unused * 2 > kind.loan.bytes) give_back(kind, unused);
}

// What is beyond the cache's part, where others may miss it.
std::uint64_t excess_of(const Kind& kind) {
  std::uint64_t part = part_of_each(kind.most_lent);
  if (kind.loan.bytes <= part) return 0;
  std::uint64_t all = kind.lent(), free_for_all = most_beyond_parts(kind.most_lent);
  if (all <= free_for_all) return 0;
  std::uint64_t excess = kind.loan.bytes - part;
  if (excess > all - free_for_all) excess = all - free_for_all;
  return excess;
}

}  // namespace

std::uint64_t share_bytes(const ThreadCache& cache) {
  return share_of(threads()) + cache.loan.bytes;
}

bool may_hold(ThreadCache& cache, std::uint64_t more, unsigned size_class) {
  bool is_span = is_span_class(size_class);
  std::uint64_t needed = (is_span ? cache.span_bytes : charged(cache)) + more;
  std::uint64_t share = is_span ? span_share_bytes(cache) : share_bytes(cache);
  if (needed <= share) return true;
  // One that has no share of spans may have none.
  if (is_span && cache.span_share == 0) return false;
  return borrow(cache, is_span ? spans_of(cache) : blocks_of(cache), needed - share) != 0;
}

std::uint64_t span_room(const ThreadCache& cache) {
  std::uint64_t backed = dirty_limits.backed_bytes.load(std::memory_order_relaxed);
  std::uint64_t most = most_span_share_of(threads(), backed), share = span_share_bytes(cache);
  if (most < share || cache.span_share == 0) most = share;
  return most > cache.span_bytes ? most - cache.span_bytes : 0;
}

std::uint32_t more_spans(ThreadCache& cache, unsigned size_class, std::uint32_t wanted) {
  std::uint64_t bytes = class_info(size_class).block_bytes, room = span_room(cache);
  if (wanted * bytes > room) wanted = static_cast<std::uint32_t>(room / bytes);
  if (wanted == 0 || may_hold(cache, wanted * bytes + sizeof(Magazine), size_class)) return wanted;
  // Refused: what its share has left.
  std::uint64_t share = span_share_bytes(cache), left = share - std::min(share, cache.span_bytes);
  return static_cast<std::uint32_t>(std::min(left / bytes, std::uint64_t{wanted}));
}

bool may_hold_of_freed(const ThreadCache& cache, std::uint64_t more) {
  return charged(cache) + more <= free_only_share_of(threads());
}

void return_unused(ThreadCache& cache) {
  give_unused_back(blocks_of(cache), charged(cache));
  give_unused_back(spans_of(cache), cache.span_bytes);
}

// Cold: only where nearly all is lent.
[[gnu::cold]] bool return_excess(ThreadCache& cache) {
  Kind blocks = blocks_of(cache);
  std::uint64_t excess = excess_of(blocks);
  if (excess == 0) return false;
  cache.loan.was_refused = true;
  give_back(blocks, excess < kMostReturnedBytes ? excess : kMostReturnedBytes);
  return true;
}

bool return_span_excess(ThreadCache& cache) {
  Kind spans = spans_of(cache);
  std::uint64_t excess = excess_of(spans);
  if (spans.share > spans.most_share && excess < spans.share - spans.most_share)
    excess = spans.share - spans.most_share;
  if (excess > cache.span_loan.bytes) excess = cache.span_loan.bytes;
  return give_back(spans, excess) != 0;
}

bool return_loans(ThreadCache& cache) {
  std::uint64_t blocks = give_back(blocks_of(cache), cache.loan.bytes);
  return give_back(spans_of(cache), cache.span_loan.bytes) + blocks != 0;
}

}  // namespace rdmalloc
