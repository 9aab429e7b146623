// Which rank of a parallel job this process is, as its launcher tells it by the environment.
#pragma once

#include <cstdint>

namespace rdmalloc {

struct Rank {
  std::int64_t rank = -1;   // -1: no rank of a job
  std::int64_t ranks = -1;  // -1: the launcher does not tell how many there are
};

// From an environment as execve(2) has it; nullptr: none.
Rank rank_in(char** environment);

}  // namespace rdmalloc
