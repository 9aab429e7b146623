// Counters of all domains, for the allocator's statistics, which print them.
#pragma once

#include "alloc/for_regcache.h"
#include "regcache/core/state.h"

namespace rdmalloc::regcache {

extern const RegistrationStatistics domain_statistics;

// What users read of them; what is no sum over registrations that are gone reads as 0.
rdmalloc_domain_counters counters_for_user(const Counters& counters);

// Adds what the domain counted to the sums of the closed ones. By close, when nothing is left in
// the domain and its place is not taken again.
void count_closed(State& all, Domain& domain);

}  // namespace rdmalloc::regcache
