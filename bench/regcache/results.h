// What regcache_compare is asked for and what its runs gave.
#pragma once

#include <array>
#include <compare>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/support/comparison.h"

namespace rdmalloc::bench {

struct RegcacheOptions : DriverOptions {
  RegcacheOptions() {
    compares_allocators = false;
    limit_s = 300;
  }
  std::vector<std::size_t> regions = {1, 64, 1000, 16'000, 100'000};
  std::vector<std::size_t> threads = {1, 2, 4};
  int rounds = 5;
  std::size_t least = 32'768;
  std::size_t footprint = 1'000'000;
  bool quick = false;
};

// What the worker measures, in the order of the tables.
struct Subject {
  const char* name;    // of the worker, and in JSON
  const char* column;  // in tables and pictures
};
constexpr std::array<Subject, 9> kSubjects = {{{"load", "load"},
                                               {"key", "reg_key"},
                                               {"load_chained", "load, chained"},
                                               {"key_chained", "reg_key, chained"},
                                               {"count", "count"},
                                               {"get_put", "get+put"},
                                               {"get_put_apart", "get+put apart"},
                                               {"foreign", "foreign get+put"},
                                               {"ucx", "UCX get+put"}}};

// A line of the tables.
struct RegcacheRow {
  std::size_t threads = 1;
  std::string order;
  std::size_t regions = 0;
  auto operator<=>(const RegcacheRow&) const = default;
};

// Nanoseconds, or bytes, by name; one for each repetition, NaN where it failed.
using Measured = std::map<std::string, std::vector<double>>;

struct RegcacheResults : Results {
  std::string ucx;  // its version, or empty
  std::map<RegcacheRow, Measured> rows;
  std::map<std::size_t, Measured> changes;  // by regions
  Measured bytes_each;
  Measured of_footprint;               // with as many registrations as were weighed
  std::vector<nlohmann::json> counts;  // as the worker told them, with the repetition
};

std::string regcache_tables(const RegcacheResults& results);
nlohmann::json regcache_json(const RegcacheOptions& options, const RegcacheResults& results);
std::string regcache_picture(const RegcacheResults& results, const std::string& picture);

}  // namespace rdmalloc::bench
