// `rdmalloc checkpoint`: asks the processes of a tree to quiesce or to resume.
#pragma once

#include <string>

namespace rdmalloc::tool {

struct CheckpointOptions {
  std::string action;  // "quiesce", "resume"; empty: as CRIU's environment says
  int process = 0;
  int timeout_ms = 10000;
};

// 0; 1: a process could not do it, said on standard error with what would help; 2: wrong use.
int checkpoint(const CheckpointOptions& options);

}  // namespace rdmalloc::tool
