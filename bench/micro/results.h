// What micro_compare is asked for and what its runs gave.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/comparison.h"

namespace rdmalloc::bench {

struct MicroOptions : DriverOptions {
  MicroOptions() { repetitions = 5; }
  std::string base = "mimalloc";
  std::string filter = ".";
  double min_time_s = 0.03;
  std::size_t rss_bytes = 0;  // 0: without rss_return
  bool quick = false;
};

struct RssCurve {
  double start_mib = 0;
  double peak_mib = 0;
  double end_mib = 0;
  double allowed_mib = 0;
  double decay_ms = 0;
  bool returned = false;
  std::vector<std::pair<double, double>> samples;  // ms after the last free, MiB
};

struct MicroResults : Results {
  std::vector<std::string> benchmarks;  // in the order of the program
  // Nanoseconds of an item by benchmark and allocator, one for each repetition, NaN where missing.
  std::map<std::pair<std::string, std::string>, std::vector<double>> cells;
  std::vector<std::string> key_benchmarks;
  std::map<std::string, std::vector<double>> keys;
  std::map<std::string, RssCurve> rss;
};

std::string micro_tables(const MicroOptions& options, const MicroResults& results);
nlohmann::json micro_json(const MicroOptions& options, const MicroResults& results);
std::string micro_picture(const MicroOptions& options, const MicroResults& results,
                          const std::string& picture);

}  // namespace rdmalloc::bench
