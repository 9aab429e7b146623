// latency_compare: how long single calls of malloc, free, calloc and realloc take, as percentiles,
// under each allocator in turn, repetition by repetition (docs/bench.md). Reported, never judged:
// on cores that others use as well, what is rare is mostly theirs.
//
// Exit status: 0; 1 when rdmalloc failed, or was asked for and is not there; 2 for wrong arguments;
// 3 when nothing could be measured; 130 when interrupted.
#include <fmt/format.h>

#include <algorithm>

#include "bench/latency/results.h"
#include "bench/support/process.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kLargestSize = std::size_t{1} << 30;

void add_options(CommandLine& line, LatencyOptions& options, std::string& sizes) {
  line.text("--sizes", sizes, "of the blocks (default: 16,64,1K,16K,256K,4M)");
  line.number("--threads", options.threads, 2, 256,
              "that hand blocks over; each row is measured with one thread as well");
  line.number("--scale", options.scale, 0.001, 1000.0, "times the usual number of calls");
  line.flag("--quick", options.quick, "a look in seconds: one repetition, few calls");
}

// What is wrong with the list, or nothing.
std::string parse_sizes(const std::string& text, LatencyOptions& options) {
  if (text.empty()) return {};
  options.sizes.clear();
  for (const std::string& part : split_list(text)) {
    const std::size_t bytes = parse_bytes(part);
    if (bytes == 0 || bytes > kLargestSize)
      return fmt::format("--sizes {}: sizes up to 1G are wanted, as in 64,4K", part);
    options.sizes.push_back(bytes);
  }
  return options.sizes.empty() ? fmt::format("--sizes {}: there is no size", text) : "";
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, LatencyOptions& options) {
  std::string sizes;
  CommandLine line("Percentiles of single calls under different allocators, measured in turn.",
                   "latency_compare");
  add_options(line, options, sizes);
  if (const int status = parse_driver_options(line, argc, argv, options, "latency.json");
      status >= 0)
    return status;
  if (const std::string problem = parse_sizes(sizes, options); !problem.empty())
    return refuse(options, problem);
  if (options.quick && !line.is_given("--repetitions")) options.repetitions = 1;
  if (options.quick && !line.is_given("--scale")) options.scale = 0.02;
  return -1;
}

void print_reports(const LatencyOptions& options, const LatencyResults& results) {
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("{}", latency_tables(results));
  write_json(options, latency_json(options, results));
  const std::string picture = options.output_folder + "/latency.svg";
  if (!results.cells.empty()) write_picture(picture, latency_picture(results, picture));
}

int compare(int argc, char** argv) {
  LatencyOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  end_children_on_interrupt();
  AllocatorChoice choice = choose_allocators(options.allocators);
  if (!choice.error.empty()) return refuse(options, choice.error);
  LatencyResults results;
  results.allocators = std::move(choice.found);
  results.left_out = std::move(choice.left_out);
  fmt::print("{} sizes, 1 and {} threads, {} repetitions, interleaved\n", options.sizes.size(),
             options.threads, options.repetitions);
  print_allocators(results.allocators, results.left_out);
  if (options.list) return 0;
  run_latency(options, results);
  print_reports(options, results);
  const bool rdmalloc_failed =
      std::any_of(results.failures.begin(), results.failures.end(),
                  [](const LatencyFailure& f) { return f.allocator == "rdmalloc"; });
  return exit_status(options, results.allocators,
                     {results.interrupted, rdmalloc_failed, !results.cells.empty()});
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare(argc, argv);
}
