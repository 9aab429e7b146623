// RDMALLOC_STATS=FILE: all counters at exit, as one line of JSON behind what the file has.
//
// Many processes may name one file: each opens it for appending and writes its line by one
// write(2), so that no line is cut and none is lost (on one machine; NFS has no such promise, so
// that jobs of several put %h, %p or %r into the name). Nothing is allocated, and all calls are
// raw.
#pragma once

#include "alloc/api/rank.h"

namespace rdmalloc {

// Settles the name, in which %p stands for this process, %h for the host, %r for the rank ("none"
// without one) and %% for %. A relative one begins where the process does, wherever it goes later.
// False when it is not understood, or too long.
bool statistics_file_name(const char* pattern, const Rank& rank);

// Of a rank: leaves an empty file, so that one that is killed leaves that behind, and says now what
// is wrong with the place and not when the job has ended.
void statistics_file_begin();

// At exit. Nothing in a child of fork, whose counters are its parent's up to the fork.
void statistics_file_write();

}  // namespace rdmalloc
