// RDMALLOC_STATS: what is written when the process ends. Nothing is torn down then: free() works
// for ever.
#pragma once

namespace rdmalloc {

// As text on standard error, or in the file that is named (core/statistics_path.h): all counters,
// as one line of JSON behind what the file has. Many processes may name one file: each opens it for
// appending and writes its line by one write(2), so that no line is cut and none is lost (on one
// machine; NFS has no such promise, so that jobs of several put %h, %p or %r into the name).
// Nothing is allocated, and all calls are raw.
//
// In api/statistics_at_exit.cc, above what calls it, and bound by the linker: every program that
// initialises has it.
void statistics_at_exit();

}  // namespace rdmalloc
