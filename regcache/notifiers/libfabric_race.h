// A release of libfabric whose registration cache can't safely hear of a purge.
#pragma once

namespace rdmalloc {

// Warns, once in a process, when libfabric 2.6 is loaded and would hear of the purge thread's work:
// its cache takes nodes from a list that all threads share without holding its lock, so that the
// two can crash or hang (docs/deadlock-matrix.md). Nothing is changed: what to do is the user's
// choice, and the warning names the choices. Takes the loader's lock.
void libfabric_race_warn();

}  // namespace rdmalloc
