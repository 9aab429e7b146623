// How rdmalloc stands among the others over a set of programs, from each one's ratio to glibc.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace rdmalloc::bench {

struct Ratios {
  std::vector<std::string> programs;
  std::vector<std::string> allocators;
  std::map<std::pair<std::string, std::string>, double> to_glibc;  // by program and allocator

  // 0 where there is none: the program failed, or glibc was not run.
  double at(const std::string& program, const std::string& allocator) const;
  // Geometric mean over the programs; 0 when one has no ratio, since a mean without it would
  // flatter.
  double mean(const std::string& allocator) const;
};

// A name, empty where there is none to compare with, and rdmalloc's ratio to its figure.
struct Standing {
  std::string name;
  double ratio = 0;
};

struct Verdict {
  Standing best_peer;      // by its mean
  double to_best_of_each;  // to the best peer of each program, geometric mean; 0: no peer
  Standing worst_program;  // where rdmalloc's ratio to `rival` is largest
  std::string rival;
};

// `rival`: whom the worst program is sought against; may be empty.
Verdict judge(const Ratios& ratios, const std::string& rival);
std::string verdict_text(const Verdict& verdict);
nlohmann::json to_json(const Verdict& verdict);

}  // namespace rdmalloc::bench
