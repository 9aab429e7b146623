// The file that RDMALLOC_STATS names: which one it is, and what is wrong with it. Apart from what
// is written there (process/exit.h), which needs the whole allocator; settings don't.
#pragma once

#include "alloc/core/rank.h"

namespace rdmalloc {

// Settles the name, in which %p stands for this process, %h for the host, %r for the rank ("none"
// without one) and %% for %. A relative one begins where the process does, wherever it goes later.
// False when it is not understood, or too long.
bool statistics_file_name(const char* pattern, const Rank& rank);

// Of a rank: leaves an empty file, so that one that is killed leaves that behind, and says now what
// is wrong with the place and not when the job has ended.
void statistics_file_begin();

// The name, of the process that settled it; nullptr in its children, whose counters are their
// parent's up to the fork.
const char* statistics_file_path();

// A name that the user wrote out may be a link of the user's, as /dev/stderr is. One that a pattern
// made can be foreseen: a link there may be another user's, to a file of this one's.
bool statistics_file_may_be_link();

// Says what is wrong (a negative errno) and what to do: once, though a place that is wrong at the
// start is wrong at the end too.
void statistics_file_warn(int error);

}  // namespace rdmalloc
