#include "bench/bcast/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <set>

#include "bench/bcast/transports.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kPatterns = {"fresh", "reused", "growing", "mixed", "phases"};
constexpr std::size_t kLargestBytes = std::size_t{1} << 30;  // MPI_Bcast counts in an int

struct Texts {
  std::string sizes, patterns, transports, allocators;
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

void apply_quick(const CLI::App& app, Texts& texts, CompareOptions& options) {
  if (app.count("--sizes") == 0) texts.sizes = "64K,1M";
  if (app.count("--patterns") == 0) texts.patterns = "fresh,reused,growing,mixed";
  if (app.count("--repetitions") == 0) options.repetitions = 1;
  if (app.count("--scale") == 0) options.scale = 0.1;
}

void add_options(CLI::App& app, CompareOptions& options, Texts& texts) {
  app.add_option("--sizes", texts.sizes, "bytes of a broadcast, with K, M or G")
      ->capture_default_str();
  app.add_option("--patterns", texts.patterns, fmt::format("of {}", fmt::join(kPatterns, ", ")))
      ->capture_default_str();
  app.add_option("--transports", texts.transports,
                 fmt::format("of {}, or all", fmt::join(transport_names(), ", ")))
      ->capture_default_str();
  app.add_option(
      "--allocators", texts.allocators,
      fmt::format("of {} (default: all that are installed)", fmt::join(allocator_names(), ", ")));
  app.add_option("--peer", options.allocators.peers,
                 "a further allocator, NAME=PATH of its library");
  app.add_option("--rdmalloc", options.allocators.rdmalloc_library, "path of librdmalloc.so")
      ->capture_default_str();
  app.add_option("--repetitions", options.repetitions,
                 "runs of each allocator, in turn with the others")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--ranks", options.ranks, "MPI processes")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  app.add_option("--scale", options.scale, "times the usual number of broadcasts")
      ->check(CLI::Range(0.01, 1000.0))
      ->capture_default_str();
  app.add_option("--pause-ms", options.pause_ms, "the pause of the pattern phases")
      ->check(CLI::Range(0, 600'000))
      ->capture_default_str();
  app.add_option("--limit-s", options.limit_s, "seconds a run may take before it counts as hung")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  app.add_option("--output", options.output_folder, "folder of the picture and the JSON file")
      ->capture_default_str();
  app.add_option("--json", options.json_path, "the JSON file (default: bcast.json in the folder)");
  app.add_option("--mpirun", options.mpirun, "which mpirun")->capture_default_str();
  app.add_flag("--quick", options.quick, "a look in seconds: one repetition, two sizes, no phases");
  app.add_flag("--list", options.list, "show what is here and what is left out, run nothing");
  app.add_flag("--quiet", options.quiet, "no progress");
  app.add_option("--worker", options.worker)->group("");
  app.add_option("--worker-fault", options.worker_fault)->group("");
}

}  // namespace

int parse_options(int argc, char** argv, CompareOptions& options) {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  options.worker = (here / "bcast_worker").string();
  options.allocators.rdmalloc_library =
      (here / ".." / "lib" / "librdmalloc.so").lexically_normal().string();
  options.mpirun = RDMALLOC_BENCH_MPIRUN;
  Texts texts{.sizes = "4K,64K,258048,1M,16M,64M",
              .patterns = fmt::format("{}", fmt::join(kPatterns, ",")),
              .transports = "shm",
              .allocators = ""};

  CLI::App app("MPI broadcasts under different allocators, measured in turn, every byte checked.",
               "bcast_compare");
  add_options(app, options, texts);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (options.quick) apply_quick(app, texts, options);
  std::string problem = check_sizes(texts, options);
  if (problem.empty()) problem = check_patterns(texts, options);
  if (!problem.empty()) {
    fmt::print(stderr, "bcast_compare: {}\n", problem);
    return 2;
  }
  if (texts.transports != "all") options.transports = split_list(texts.transports);
  options.allocators.names = split_list(texts.allocators);
  if (options.json_path.empty()) options.json_path = options.output_folder + "/bcast.json";
  return -1;
}

}  // namespace rdmalloc::bench
