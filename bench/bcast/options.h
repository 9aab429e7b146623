// What bcast_compare is asked to do.
#pragma once

#include <string>
#include <vector>

#include "bench/support/driver.h"

namespace rdmalloc::bench {

struct CompareOptions : DriverOptions {
  CompareOptions() {
    limit_s = 60;
    backed_mib = 640;  // two ranks of the pattern growing have 256 MiB each
  }
  std::vector<std::size_t> sizes;
  std::vector<std::string> patterns;
  std::vector<std::string> transports;
  int ranks = 2;
  double scale = 1;
  int pause_ms = 2200;
  bool quick = false;
  bool all_tables = false;
  std::string mpirun;
  std::string worker;
  std::string worker_fault;  // for the bench's own tests
};

// Fills `options`. Returns -1 to go on, otherwise the exit status: the message or the help is
// printed.
int parse_options(int argc, char** argv, CompareOptions& options);

}  // namespace rdmalloc::bench
