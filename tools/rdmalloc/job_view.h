// `rdmalloc job`: one table of what the ranks of a job left (docs/launchers.md).
//
// How far a rank is off: for each measured column the distance of its value from the median of all
// ranks, divided by that median, or by the column's least difference where the median is smaller;
// of these the largest. 1.0: as far from the median as the median is from zero.
#pragma once

#include <string>
#include <vector>

namespace rdmalloc::tool {

constexpr int kExitNoJob = 2;

struct JobViewOptions {
  std::vector<std::string> places;  // folders and files
  bool is_json = false;
};

// The exit status: 0; 1 when not every rank has left its statistics, or a file is broken.
int job_view(const JobViewOptions& options);

}  // namespace rdmalloc::tool
