// bench_programs: every program of program_set under every allocator, repetition by repetition in
// turn: processor time and peak memory of the whole process as ratios to glibc, their geometric
// means, and how rdmalloc stands among the others (docs/bench.md).
//
// Exit status: 0; 1 when rdmalloc failed, or was asked for and is not there; 2 for wrong arguments;
// 3 when nothing could be measured; 130 when interrupted.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "bench/programs/results.h"
#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/table.h"
#include "bench/traces/workloads.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

void add_options(CommandLine& line, ProgramsOptions& options, std::string& programs,
                 std::string& traces) {
  line.text("--programs", programs, "which, by name (default: all; --list names them)");
  line.number("--threads", options.threads, 1, 256, "of the programs that have several");
  line.number("--scale", options.scale, 0.001, 1000.0, "times the usual work");
  line.text("--traces", traces,
            "recorded programs to replay: gcc, python, redis, mpi, paths of traces, or none "
            "(default: the four)");
  line.flag("--count-calls", options.count_calls,
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

// Those of --traces; without it all, unless programs were chosen. What is wrong, or nothing.
std::string choose_traces(const std::string& programs, const std::string& traces,
                          ProgramsOptions& options) {
  if (traces == "none" || (traces.empty() && !programs.empty())) return {};
  options.traces = split_list(traces);
  if (traces.empty())
    for (const Workload& workload : workloads()) options.traces.push_back(workload.name);
  for (const std::string& trace : options.traces) {
    const bool known = std::any_of(workloads().begin(), workloads().end(),
                                   [&](const Workload& w) { return w.name == trace; });
    if (!known && !std::filesystem::exists(trace))
      return fmt::format("--traces {}: neither a workload (see --list) nor a file", trace);
  }
  return {};
}

// A row that replays a trace, once its order was looked at. What is wrong with it, or nothing.
std::string add_trace(const std::string& name, const std::string& manner, const std::string& path,
                      ProgramsOptions& options) {
  const std::string replay = options.program_folder + "/replay_trace";
  Command check;
  check.arguments = {replay, "--check", path};
  const Outcome outcome = run(check);
  if (!outcome.ok()) return outcome.describe() + "; " + outcome.standard_error;
  options.rows.push_back({name, manner, {replay, "--unchecked", path}});
  return {};
}

// Records what is to be replayed; each becomes a row.
void add_traces(ProgramsOptions& options, ProgramsResults& results) {
  for (const std::string& trace : options.traces) {
    const auto workload = std::find_if(workloads().begin(), workloads().end(),
                                       [&](const Workload& w) { return w.name == trace; });
    const bool is_file = workload == workloads().end();
    const std::string name =
        "trace:" + (is_file ? std::filesystem::path(trace).stem().string() : trace);
    const std::string manner = is_file ? "recorded before" : workload->what;
    std::string path = trace;
    std::string problem;
    if (!is_file) {
      fmt::print("  recording {}: {}\n", trace, manner);
      std::fflush(stdout);
      const Recorded recorded =
          record_workload(trace, {options.program_folder, options.output_folder + "/traces"});
      path = recorded.trace;
      problem = recorded.problem;
    }
    if (problem.empty()) problem = add_trace(name, manner, path, options);
    if (problem.empty()) continue;
    fmt::print("  LEFT OUT {}: {}\n", name, problem);
    results.left_out.push_back({name, problem});
  }
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, ProgramsOptions& options) {
  std::string programs;
  std::string traces;
  CommandLine line("Whole programs under different allocators, measured in turn.",
                   "bench_programs");
  add_options(line, options, programs, traces);
  if (const int status = parse_driver_options(line, argc, argv, options, "programs.json");
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
  if (const std::string problem = choose_traces(programs, traces, options); !problem.empty())
    return refuse(options, problem);
  return -1;
}

void print_programs(const ProgramsOptions& options) {
  for (const Row& row : options.rows) fmt::print("  program {}: {}\n", row.name, row.manner);
  for (const Workload& workload : workloads())
    fmt::print("  trace {}: {}\n", workload.name, workload.what);
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
  fmt::print("{} programs, {} threads, {} repetitions, interleaved\n",
             options.rows.size() + options.traces.size(), options.threads, options.repetitions);
  if (options.list) print_programs(options);
  print_allocators(results.allocators, results.left_out);
  if (options.list) return 0;
  add_traces(options, results);
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
