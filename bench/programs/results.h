// What bench_programs is asked for and what its runs gave.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/comparison.h"

namespace rdmalloc::bench {

// A row of the table.
struct Row {
  std::string name;
  std::string manner;
  std::vector<std::string> command;
};

struct ProgramsOptions : DriverOptions {
  ProgramsOptions() { backed_mib = 640; }  // malloc-large has 332 MiB at its peak
  std::vector<Row> rows;
  std::vector<std::string> traces;  // names of workloads, or paths
  int threads = 2;
  double scale = 1;
  bool count_calls = false;
};

// For each repetition one value, NaN where the run failed.
struct Measured {
  std::vector<double> cpu_s;
  std::vector<double> wall_s;
  std::vector<double> rss_mib;
};
using Values = std::vector<double> Measured::*;

using Key = std::pair<std::string, std::string>;  // program and allocator

struct ProgramsResults : Results {
  std::map<Key, Measured> cells;
  std::map<Key, nlohmann::json> calls;  // what bench_launch counted
};

// How often threads of the program gave memory back; -1 where it was not counted.
long calls_giving_back(const ProgramsResults& results, const Key& key);
std::string programs_tables(const ProgramsOptions& options, const ProgramsResults& results);
nlohmann::json programs_json(const ProgramsOptions& options, const ProgramsResults& results);
std::string programs_picture(const ProgramsOptions& options, const ProgramsResults& results,
                             const std::string& picture);

}  // namespace rdmalloc::bench
