// What the runs of bcast_compare gave: kept by the plan, read by the report.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bcast/options.h"
#include "bench/bcast/transports.h"
#include "bench/support/comparison.h"

namespace rdmalloc::bench {

// One cell of the tables.
struct Cell {
  std::string transport;
  std::string pattern;
  std::size_t bytes = 0;  // 0 for mixed
  std::string allocator;
  auto operator<=>(const Cell&) const = default;
};

// Per repetition one value; NaN where the run gave none.
struct Measured {
  std::vector<double> bcast_us;
  std::vector<double> cycle_us;
  std::vector<double> after_pause_us;
  std::vector<double> faults_per_broadcast;
  std::vector<double> kernel_us;   // of a broadcast
  std::vector<double> huge_pages;  // at the end of all
  std::size_t broadcasts = 0;
};

struct BcastResults : Results {
  Mpi mpi;
  std::vector<Transport> transports;
  std::map<Cell, Measured> cells;
  std::map<std::string, double> peak_rss_mib;  // by allocator, over all runs
  std::size_t checked_broadcasts = 0;
  std::string mpi_library;  // as the worker reports it
};

// In the driver's order: no allocator has the machine to itself.
std::vector<Run> bcast_runs(const CompareOptions& options, BcastResults& results);
// Seconds of a run, by its kind.
std::map<std::string, double> bcast_expected(const CompareOptions& options,
                                             const std::vector<Transport>& transports);

// For the terminal: what failed and the end of what it wrote. The details, stacks of each thread
// among them, are long enough to push the tables off the screen: they go to a file.
std::string bcast_failures_text(const BcastResults& results, const std::string& details_file);
std::string bcast_failure_details(const BcastResults& results);
nlohmann::json results_json(const CompareOptions& options, const BcastResults& results);

}  // namespace rdmalloc::bench
