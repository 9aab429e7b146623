// Real programs that are recorded for a comparison, on this machine and in seconds.
#pragma once

#include <string>
#include <vector>

#include "bench/traces/pack.h"

namespace rdmalloc::bench {

struct Workload {
  std::string name;
  std::string what;
};
const std::vector<Workload>& workloads();

struct Recorded {
  std::string trace;    // path, empty when there is none
  std::string problem;  // why: not installed, failed
  Packed packed;
};

// Where librecord.so, bcast_compare and this program are, and where recordings may go.
struct RecordingPlace {
  std::string program_folder;
  std::string output_folder;
};

// One of workloads().
Recorded record_workload(const std::string& name, const RecordingPlace& place);
// Any command; of its processes the one that ran `program` (empty: any) and asked for most is
// taken.
Recorded record_command(const std::string& name, const std::vector<std::string>& command,
                        const std::string& program, const RecordingPlace& place);

}  // namespace rdmalloc::bench
