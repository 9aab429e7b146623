// micro_compare: micro_malloc under each allocator in turn, repetition by repetition; then, once a
// repetition, micro_keys, which measures the registration cache and needs no peer; with --rss-bytes
// also rss_return (docs/bench.md).
//
// Exit status: 0; 1 when rdmalloc failed, or was asked for and is not there; 2 for wrong arguments;
// 3 when nothing could be measured; 130 when interrupted.
#include <fmt/format.h>

#include <algorithm>

#include "bench/micro/results.h"
#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

void add_options(CommandLine& line, MicroOptions& options, std::string& rss_bytes) {
  line.text("--base", options.base, "the allocator that ratios are taken to");
  line.text("--filter", options.filter, "a regular expression over the benchmarks' names");
  line.number("--min-time-s", options.min_time_s, 0.001, 100.0,
              "seconds of each benchmark in each run");
  line.text("--rss-bytes", rss_bytes,
            "also let each allocator use this much (as in 4G), free it, and watch it come back");
  line.flag("--quick", options.quick, "a look in seconds: one repetition, short");
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, MicroOptions& options) {
  std::string rss_bytes;
  CommandLine line("Single operations of malloc under different allocators, measured in turn.",
                   "micro_compare");
  add_options(line, options, rss_bytes);
  if (const int status = parse_driver_options(line, argc, argv, options, "micro.json"); status >= 0)
    return status;
  if (!rss_bytes.empty() && (options.rss_bytes = parse_bytes(rss_bytes)) == 0)
    return refuse(options,
                  fmt::format("--rss-bytes {}: a size is wanted, as in 512M or 4G", rss_bytes));
  if (options.quick && !line.is_given("--repetitions")) options.repetitions = 1;
  if (options.quick && !line.is_given("--min-time-s")) options.min_time_s = 0.005;
  return -1;
}

// The base of the ratios must be among those found; glibc is everywhere.
void settle_base(MicroOptions& options, MicroResults& results) {
  const auto is_there = [&](const std::string& name) {
    return std::any_of(results.allocators.begin(), results.allocators.end(),
                       [&](const Allocator& allocator) { return allocator.name == name; });
  };
  if (is_there(options.base) || results.allocators.empty()) return;
  const std::string instead = is_there("glibc") ? "glibc" : results.allocators.front().name;
  fmt::print("  no {} in this run: ratios are to {}\n", options.base, instead);
  options.base = instead;
}

void write_reports(const MicroOptions& options, const MicroResults& results) {
  write_json(options, micro_json(options, results));
  const std::string picture = options.output_folder + "/micro.svg";
  if (!results.cells.empty()) write_picture(picture, micro_picture(options, results, picture));
}

int status_of(const MicroOptions& options, const MicroResults& results) {
  const bool rdmalloc_failed =
      std::any_of(results.failures.begin(), results.failures.end(),
                  [](const MicroFailure& f) { return f.allocator == "rdmalloc"; });
  const bool measured = !results.cells.empty() || !results.keys.empty();
  const int status =
      exit_status(options, results.allocators, {results.interrupted, rdmalloc_failed, measured});
  if (status == 3 && results.failures.empty())
    fmt::print(stderr, "micro_compare: no benchmark matches --filter '{}'\n", options.filter);
  return status;
}

int compare(int argc, char** argv) {
  MicroOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  end_children_on_interrupt();
  AllocatorChoice choice = choose_allocators(options.allocators);
  if (!choice.error.empty()) return refuse(options, choice.error);
  MicroResults results;
  results.allocators = std::move(choice.found);
  results.left_out = std::move(choice.left_out);
  fmt::print("{} repetitions of at least {} s for each benchmark, interleaved\n",
             options.repetitions, options.min_time_s);
  print_allocators(results.allocators, results.left_out);
  settle_base(options, results);
  std::fflush(stdout);
  if (options.list) return 0;
  run_micro(options, results);
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("{}", micro_tables(options, results));
  write_reports(options, results);
  return status_of(options, results);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare(argc, argv);
}
