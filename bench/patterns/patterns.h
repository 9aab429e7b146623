// How threads use an allocator, each way with any number of threads, sizes and live blocks. The
// threads of a pattern begin together once they are warm.
#pragma once

#include <vector>

#include "bench/patterns/team.h"

namespace rdmalloc::bench {

struct Pattern {
  const char* name;
  const char* what;
  void (*run)(Team& team);
};

const std::vector<Pattern>& own_patterns();     // each thread its own blocks
const std::vector<Pattern>& shared_patterns();  // blocks go from thread to thread

}  // namespace rdmalloc::bench
