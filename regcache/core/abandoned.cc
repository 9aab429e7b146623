#include "regcache/core/abandoned.h"

#include <errno.h>

#include "regcache/core/callbacks.h"
#include "regcache/core/rooms.h"
#include "regcache/core/state.h"

namespace rdmalloc::regcache {
namespace {

constinit thread_local bool is_at_it = false;

// One pass. Whether something is left.
bool try_all(State& all) {
  bool is_some_left = false;
  for (const Holder* holder : holders) is_some_left |= holder->end_abandoned();
  for (std::size_t i = 0; i < kMostDomains; ++i) {
    Domain& domain = all.domains[i];
    if (!domain.is_abandoned.load(std::memory_order_acquire)) continue;
    // One thread at a time is here, so no other has closed it and opened another in its place.
    is_some_left |= !is_over(rdmalloc_domain_close(reinterpret_cast<rdmalloc_domain*>(&domain)));
  }
  return is_some_left;
}

}  // namespace

void end_abandoned(State& all) {
  if (all.abandoned.load(std::memory_order_seq_cst) == 0) return;
  if (is_at_it || is_in_callback() || is_in_page_event()) return;
  // seq_cst: each occasion counts itself before it looks whether a thread is at it, and that thread
  // looks at the count after it has stopped. At least one of the two sees the other.
  all.abandoned.fetch_add(1, std::memory_order_seq_cst);
  while (!all.is_ending_abandoned.exchange(true, std::memory_order_seq_cst)) {
    std::uint32_t seen = all.abandoned.load(std::memory_order_seq_cst);
    is_at_it = true;
    bool is_some_left = try_all(all);
    is_at_it = false;
    // 0: occasions need not look any more.
    std::uint32_t settled = is_some_left ? seen : 0;
    all.abandoned.compare_exchange_strong(seen, settled, std::memory_order_seq_cst);
    all.is_ending_abandoned.store(false, std::memory_order_seq_cst);
    if (all.abandoned.load(std::memory_order_seq_cst) == settled) return;
  }
}

}  // namespace rdmalloc::regcache

using namespace rdmalloc::regcache;

extern "C" RDMALLOC_API int rdmalloc_domain_abandon(rdmalloc_domain* handle) {
  Domain* domain = domain_of(handle);
  if (domain_check(domain) == -EINVAL) return -EINVAL;
  int error = rdmalloc_domain_close(handle);
  if (is_over(error)) return error;
  State& all = *state();
  domain->is_abandoned.store(true, std::memory_order_release);
  all.abandoned.fetch_add(1, std::memory_order_seq_cst);
  // What was in the way may have ended before the note was there.
  end_abandoned(all);
  return domain->is_abandoned.load(std::memory_order_relaxed) ? -EINPROGRESS : 0;
}
