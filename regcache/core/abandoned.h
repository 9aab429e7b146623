// Heaps and domains whose owners could not end them and will not come back (rdmalloc_heap_abandon,
// rdmalloc_domain_abandon): the destructors of rdmalloc.hpp, above all.
//
// What was in the way passes at the end of a quiesce or a resume, or with a put. A put may not call
// registrars, so they are tried again at each end of a quiesce or resume and before each call that
// makes or unmakes something (enter_gate()).
#pragma once

#include <errno.h>

namespace rdmalloc::regcache {

struct State;

// Whether what was to be ended is gone, with an error that says so.
inline bool is_over(int error) {
  return error == 0 || error == -EINVAL;
}

// Ends what can be ended now. Nothing inside a callback or a page event. Under no lock: calls
// registrars.
void end_abandoned(State& all);

}  // namespace rdmalloc::regcache
