// What the processes of a job left in files: RDMALLOC_STATS=FOLDER/%r.%h.%p.json, or any other
// name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace rdmalloc::tool {

// One that ended by itself and left its statistics.
struct ProcessStatistics {
  std::optional<std::int64_t> rank, ranks;
  std::string host, program;
  std::int64_t pid = 0;
  nlohmann::json counters;  // the whole object
};

// One that began, and left nothing: only the name of its file is known.
struct SilentProcess {
  std::optional<std::int64_t> rank;
  std::string host, pid;  // empty where the name has another form
  std::string file;
};

struct JobFiles {
  std::vector<ProcessStatistics> processes;
  std::vector<SilentProcess> silent;
  std::vector<std::string> broken;  // a sentence each
};

// All files of the folders whose names end in .json, and those that are named themselves. Throws
// std::runtime_error for a place that can't be read.
JobFiles read_job_files(const std::vector<std::string>& places);

}  // namespace rdmalloc::tool
