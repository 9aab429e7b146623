// micro_compare: micro_malloc under each allocator in turn, repetition by repetition; then, once a
// repetition, micro_keys, which measures the registration cache and needs no peer; with --rss-bytes
// also rss_return (docs/bench.md).
//
// Exit status: 0; 1 when rdmalloc failed, or was asked for and is not there; 2 for wrong arguments;
// 3 when nothing could be measured; 130 when interrupted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "bench/micro/results.h"
#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

int refuse(const std::string& message) {
  fmt::print(stderr, "micro_compare: {}\n", message);
  return 2;
}

void add_options(CLI::App& app, MicroOptions& options, std::string& allocators,
                 std::string& rss_bytes) {
  app.add_option(
      "--allocators", allocators,
      fmt::format("of {} (default: all that are installed)", fmt::join(allocator_names(), ", ")));
  app.add_option("--peer", options.allocators.peers,
                 "a further allocator, NAME=PATH of its library");
  app.add_option("--rdmalloc", options.allocators.rdmalloc_library, "path of librdmalloc.so")
      ->capture_default_str();
  app.add_option("--base", options.base, "the allocator that ratios are taken to")
      ->capture_default_str();
  app.add_option("--filter", options.filter, "a regular expression over the benchmarks' names")
      ->capture_default_str();
  app.add_option("--repetitions", options.repetitions, "runs of each allocator, in turn")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--min-time-s", options.min_time_s, "seconds of each benchmark in each run")
      ->check(CLI::Range(0.001, 100.0))
      ->capture_default_str();
  app.add_option("--limit-s", options.limit_s, "seconds a run may take before it counts as hung")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  app.add_option(
      "--rss-bytes", rss_bytes,
      "also let each allocator use this much (as in 4G), free it, and watch it come back");
  app.add_option("--output", options.output_folder, "folder of the picture and the JSON file")
      ->capture_default_str();
  app.add_option("--json", options.json_path, "the JSON file (default: micro.json in the folder)");
  app.add_flag("--quick", options.quick, "a look in seconds: one repetition, short");
  app.add_flag("--list", options.list, "show what is here and what is left out, run nothing");
  app.add_flag("--quiet", options.quiet, "no progress");
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, MicroOptions& options) {
  std::error_code ignored;
  options.program_folder = fs::read_symlink("/proc/self/exe", ignored).parent_path().string();
  options.allocators.rdmalloc_library =
      (fs::path(options.program_folder) / ".." / "lib" / "librdmalloc.so")
          .lexically_normal()
          .string();
  std::string allocators;
  std::string rss_bytes;
  CLI::App app("Single operations of malloc under different allocators, measured in turn.",
               "micro_compare");
  add_options(app, options, allocators, rss_bytes);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (!rss_bytes.empty() && (options.rss_bytes = parse_bytes(rss_bytes)) == 0)
    return refuse(fmt::format("--rss-bytes {}: a size is wanted, as in 512M or 4G", rss_bytes));
  if (options.quick && app.count("--repetitions") == 0) options.repetitions = 1;
  if (options.quick && app.count("--min-time-s") == 0) options.min_time_s = 0.005;
  options.allocators.names = split_list(allocators);
  if (options.json_path.empty()) options.json_path = options.output_folder + "/micro.json";
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
  const std::string json = micro_json(options, results).dump(1) + "\n";
  if (const std::string problem = write_file(options.json_path, json); !problem.empty())
    fmt::print(stderr, "micro_compare: {}\n", problem);
  else
    fmt::print("\nJSON: {}\n", options.json_path);
  if (results.cells.empty()) return;
  const std::string picture = options.output_folder + "/micro.svg";
  if (const std::string problem = draw(picture, micro_picture(options, results, picture));
      !problem.empty())
    fmt::print("{}\n", problem);
  else
    fmt::print("picture: {}\n", picture);
}

int exit_status(const MicroOptions& options, const MicroResults& results) {
  if (results.interrupted) return 130;
  const auto& names = options.allocators.names;
  const bool wanted = std::find(names.begin(), names.end(), "rdmalloc") != names.end();
  const bool there = std::any_of(results.allocators.begin(), results.allocators.end(),
                                 [](const Allocator& found) { return found.name == "rdmalloc"; });
  const bool failed = std::any_of(results.failures.begin(), results.failures.end(),
                                  [](const MicroFailure& f) { return f.allocator == "rdmalloc"; });
  if (failed || (wanted && !there)) return 1;
  if (!results.cells.empty() || !results.keys.empty()) return 0;
  if (results.failures.empty())
    fmt::print(stderr, "micro_compare: no benchmark matches --filter '{}'\n", options.filter);
  return 3;
}

int compare(int argc, char** argv) {
  MicroOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  end_children_on_interrupt();
  AllocatorChoice choice = choose_allocators(options.allocators);
  if (!choice.error.empty()) return refuse(choice.error);
  MicroResults results;
  results.allocators = std::move(choice.found);
  results.left_out = std::move(choice.left_out);
  fmt::print("{} repetitions of at least {} s for each benchmark, interleaved\n",
             options.repetitions, options.min_time_s);
  for (const Allocator& allocator : results.allocators)
    fmt::print("  allocator {}: {}\n", allocator.name,
               allocator.library.empty() ? "libc's own" : allocator.library);
  for (const LeftOut& left_out : results.left_out)
    fmt::print("  LEFT OUT {}: {}\n", left_out.what, left_out.why);
  settle_base(options, results);
  std::fflush(stdout);
  if (options.list) return 0;
  run_micro(options, results);
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("{}", micro_tables(options, results));
  write_reports(options, results);
  return exit_status(options, results);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare(argc, argv);
}
