// bench_programs: every program of program_set under every allocator, repetition by repetition in
// turn: processor time and peak memory of the whole process as ratios to glibc, their geometric
// means, and how rdmalloc stands among the others (docs/bench.md).
//
// Exit status: 0; 1 when rdmalloc failed, or was asked for and is not there; 2 for wrong arguments;
// 3 when nothing could be measured; 130 when interrupted.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "bench/programs/results.h"
#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

void add_options(CLI::App& app, ProgramsOptions& options, std::string& programs) {
  app.add_option("--programs", programs, "which, by name (default: all; --list names them)");
  app.add_option("--threads", options.threads, "of the programs that have several")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--scale", options.scale, "times the usual work")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
  app.add_flag("--count-calls", options.count_calls,
               "also count, in a run apart, the system calls that give memory back");
}

// Every program there is, as program_set names them itself.
std::vector<Row> rows_there(const ProgramsOptions& options) {
  const std::string program_set = options.program_folder + "/program_set";
  Command command;
  command.arguments = {program_set, "--list"};
  std::vector<Row> rows;
  std::istringstream lines(run(command).standard_output);
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line, nullptr, false);
    if (object.is_discarded()) continue;
    const std::string name = object.at("name");
    rows.push_back({name,
                    object.at("manner"),
                    {program_set, name, "--threads", fmt::format("{}", options.threads), "--scale",
                     fmt::format("{}", options.scale)}});
  }
  return rows;
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, ProgramsOptions& options) {
  std::string programs;
  CLI::App app("Whole programs under different allocators, measured in turn.", "bench_programs");
  add_options(app, options, programs);
  if (const int status = parse_driver_options(app, argc, argv, options, "programs.json");
      status >= 0)
    return status;
  std::vector<Row> rows = rows_there(options);
  if (rows.empty())
    return refuse(options, fmt::format("no {}/program_set: build the target program_set",
                                       options.program_folder));
  for (const std::string& name : split_list(programs)) {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.name == name; });
    if (found == rows.end())
      return refuse(options,
                    fmt::format("--programs {}: there is none of that name; see --list", name));
    options.rows.push_back(*found);
  }
  if (programs.empty()) options.rows = std::move(rows);
  return -1;
}

void print_reports(const ProgramsOptions& options, const ProgramsResults& results) {
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("{}", programs_tables(options, results));
  write_json(options, programs_json(options, results));
  const bool glibc = std::any_of(results.cells.begin(), results.cells.end(),
                                 [](const auto& cell) { return cell.first.second == "glibc"; });
  const std::string picture = options.output_folder + "/programs.svg";
  if (glibc)
    write_picture(picture, programs_picture(options, results, picture));
  else
    fmt::print("no picture and no ratios: glibc is not among the allocators\n");
}

int compare(int argc, char** argv) {
  ProgramsOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  end_children_on_interrupt();
  AllocatorChoice choice = choose_allocators(options.allocators);
  if (!choice.error.empty()) return refuse(options, choice.error);
  ProgramsResults results;
  results.allocators = std::move(choice.found);
  results.left_out = std::move(choice.left_out);
  fmt::print("{} programs, {} threads, {} repetitions, interleaved\n", options.rows.size(),
             options.threads, options.repetitions);
  if (options.list)
    for (const Row& row : options.rows) fmt::print("  program {}: {}\n", row.name, row.manner);
  print_allocators(results.allocators, results.left_out);
  if (options.list) return 0;
  run_programs(options, results);
  print_reports(options, results);
  const bool rdmalloc_failed =
      std::any_of(results.failures.begin(), results.failures.end(),
                  [](const ProgramFailure& f) { return f.allocator == "rdmalloc"; });
  return exit_status(options, results.allocators,
                     {results.interrupted, rdmalloc_failed, !results.cells.empty()});
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare(argc, argv);
}
