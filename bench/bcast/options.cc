#include "bench/bcast/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "bench/bcast/transports.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

const std::vector<std::string> kPatterns = {"fresh", "reused", "growing", "mixed", "phases"};
constexpr std::size_t kLargestBytes = std::size_t{1} << 30;  // MPI_Bcast counts in an int

struct Texts {
  std::string sizes, patterns, transports;
};

std::string check_sizes(const Texts& texts, CompareOptions& options) {
  std::set<std::size_t> sizes;
  for (const std::string& part : split_list(texts.sizes)) {
    const std::size_t bytes = parse_bytes(part);
    if (bytes == 0 || bytes > kLargestBytes)
      return fmt::format(
          "--sizes {}: sizes are 1 to 1G, as in --sizes 4K,258048,1M separated by commas", part);
    sizes.insert(bytes);
  }
  if (sizes.empty()) return "--sizes names no size";
  options.sizes.assign(sizes.begin(), sizes.end());
  return {};
}

std::string check_patterns(const Texts& texts, CompareOptions& options) {
  options.patterns = split_list(texts.patterns);
  for (const std::string& pattern : options.patterns)
    if (std::find(kPatterns.begin(), kPatterns.end(), pattern) == kPatterns.end())
      return fmt::format("--patterns {}: there are {}", pattern, fmt::join(kPatterns, ", "));
  return options.patterns.empty() ? "--patterns names no pattern" : "";
}

void apply_quick(const CommandLine& line, Texts& texts, CompareOptions& options) {
  if (!line.is_given("--sizes")) texts.sizes = "64K,1M";
  if (!line.is_given("--patterns")) texts.patterns = "fresh,reused,growing,mixed";
  if (!line.is_given("--repetitions")) options.repetitions = 1;
  if (!line.is_given("--scale")) options.scale = 0.1;
  if (!line.is_given("--backed-mib")) options.backed_mib = 64;  // at that scale a rank has less
}

void add_options(CommandLine& line, CompareOptions& options, Texts& texts) {
  line.text("--sizes", texts.sizes, "bytes of a broadcast, with K, M or G");
  line.text("--patterns", texts.patterns, fmt::format("of {}", fmt::join(kPatterns, ", ")));
  line.text("--transports", texts.transports,
            fmt::format("of {}, or all", fmt::join(transport_names(), ", ")));
  line.number("--ranks", options.ranks, 2, 4096, "MPI processes");
  line.number("--scale", options.scale, 0.01, 1000.0, "times the usual number of broadcasts");
  line.number("--pause-ms", options.pause_ms, 0, 600'000, "the pause of the pattern phases");
  line.text("--mpirun", options.mpirun, "which mpirun");
  line.flag("--quick", options.quick, "a look in seconds: one repetition, two sizes, no phases");
  line.flag("--all-tables", options.all_tables,
            "also MPI_Bcast alone, and what the kernel did for every row");
  line.hidden("--worker", options.worker);
  line.hidden("--worker-fault", options.worker_fault);
}

}  // namespace

int parse_options(int argc, char** argv, CompareOptions& options) {
  options.mpirun = RDMALLOC_BENCH_MPIRUN;
  Texts texts{.sizes = "4K,64K,258048,1M,16M,64M",
              .patterns = fmt::format("{}", fmt::join(kPatterns, ",")),
              .transports = "shm"};

  CommandLine line(
      "MPI broadcasts under different allocators, measured in turn, every byte checked.",
      "bcast_compare");
  add_options(line, options, texts);
  if (const int status = parse_driver_options(line, argc, argv, options, "bcast.json"); status >= 0)
    return status;
  if (options.worker.empty()) options.worker = options.program_folder + "/bcast_worker";
  if (options.quick) apply_quick(line, texts, options);
  std::string problem = check_sizes(texts, options);
  if (problem.empty()) problem = check_patterns(texts, options);
  if (!problem.empty()) return refuse(options, problem);
  if (texts.transports != "all") options.transports = split_list(texts.transports);
  return -1;
}

}  // namespace rdmalloc::bench
