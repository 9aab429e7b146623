// What latency_compare is asked for and what its runs gave.
#pragma once

#include <array>
#include <compare>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/comparison.h"

namespace rdmalloc::bench {

struct LatencyOptions : DriverOptions {
  LatencyOptions() { limit_s = 300; }
  std::vector<std::size_t> sizes = {16, 64, 1024, 16 << 10, 256 << 10, 4 << 20};
  int threads = 2;
  double scale = 1;
  bool quick = false;
};

// A line of each table.
struct LatencyRow {
  std::string operation;  // "malloc", "realloc moved", …; "nothing": an interval with no call in it
  std::size_t bytes = 0;
  std::string set;  // "warm", "mixed"
  int threads = 1;
  auto operator<=>(const LatencyRow&) const = default;
};

// In the order of the worker's.
constexpr std::array<const char*, 5> kPercentiles = {"p50", "p90", "p99", "p99.9", "max"};

// For each repetition one value, NaN where the run failed or the operation never happened: growth
// in place is up to the allocator.
struct Latencies {
  std::array<std::vector<double>, kPercentiles.size()> ns;
  std::vector<double> samples;
};

struct LatencyResults : Results {
  std::vector<LatencyRow> rows;
  std::map<std::pair<LatencyRow, std::string>, Latencies> cells;  // by row and allocator
  std::string timer;
  std::vector<double> timer_cost_ns;  // of each run
  std::vector<double> timer_step_ns;
};

std::string latency_tables(const LatencyResults& results);
nlohmann::json latency_json(const LatencyOptions& options, const LatencyResults& results);
std::string latency_picture(const LatencyResults& results, const std::string& picture);

}  // namespace rdmalloc::bench
