// RDMALLOC_STATS=FILE: all counters at exit, as one line of JSON behind what the file has.
//
// Many processes may name one file: each opens it for appending and writes its line by one
// write(2), so that no line is cut and none is lost (on one machine; NFS has no such promise, so
// that jobs of several put %h, %p or %r into the name). Nothing is allocated, and all calls are
// raw.
#pragma once

namespace rdmalloc {

// At exit. Nothing in a child of fork (statistics_path.h).
void statistics_file_write();

}  // namespace rdmalloc
