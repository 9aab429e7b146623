// What bench_memory runs.
#pragma once

#include <string>
#include <vector>

#include "bench/memory/cgroup.h"
#include "bench/support/grid.h"

namespace rdmalloc::bench {

struct MemoryOptions : GridOptions {
  MemoryOptions() {
    repetitions = 1;
    limit_s = 600;
  }
  std::string parts;  // of memory_parts(), by commas; empty: all
  int sizes_a_doubling = 20;
  double settle_s = 13;
  double until_s = 60;
  double scale = 1;
  std::string huge_pages = "as-is";
  std::string cgroup = "any";
  bool lab = false;
  std::string lab_memory = "12G";
};

std::vector<std::string> memory_parts();
bool has_part(const MemoryOptions& options, const std::string& part);

// The rows of the parts that are asked for. `cgroups` must live as long as the rows are run.
std::vector<GridRow> memory_rows(const MemoryOptions& options, const MemoryCgroups* cgroups);

}  // namespace rdmalloc::bench
