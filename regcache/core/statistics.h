// Counters of all domains, for the allocator's statistics, which print them.
#pragma once

#include "alloc/for_regcache.h"
#include "regcache/core/state.h"

namespace rdmalloc::regcache {

extern const RegistrationStatistics domain_statistics;

// Adds what the domain counted to the sums of the closed ones. By close, when nothing is left in
// the domain and its place is not taken again.
void count_closed(State& all, Domain& domain);

}  // namespace rdmalloc::regcache
