// What the runs of bcast_compare gave: collected by the runner, read by the report.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bcast/options.h"
#include "bench/bcast/transports.h"

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
  std::size_t broadcasts = 0;
};

struct BcastFailure {
  std::string transport;
  std::string patterns;
  std::string allocator;
  int repetition = 0;
  std::string what;
  std::string standard_error;
  std::string stacks;
};

struct BcastResults {
  Mpi mpi;
  std::vector<Allocator> allocators;
  std::vector<Transport> transports;
  std::vector<LeftOut> left_out;
  std::map<Cell, Measured> cells;
  std::map<std::string, double> peak_rss_mib;  // by allocator, over all runs
  std::vector<BcastFailure> failures;
  std::size_t checked_broadcasts = 0;
  std::string mpi_library;  // as the worker reports it
  double wall_s = 0;
  bool interrupted = false;
};

void run_all(const CompareOptions& options, BcastResults& results);

std::string bcast_failures_text(const BcastResults& results);
nlohmann::json results_json(const CompareOptions& options, const BcastResults& results);

}  // namespace rdmalloc::bench
