// bench_programs: every program of program_set under every allocator, repetition by repetition in
// turn: processor time and peak memory of the whole process as ratios to glibc, their geometric
// means, and how rdmalloc stands among the others (docs/bench.md).
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "bench/programs/results.h"
#include "bench/support/table.h"
#include "bench/support/turns.h"
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
                    object.at("what"),
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

void keep(const ProgramsOptions& options, const Key& key, int repetition, const Outcome& outcome,
          ProgramsResults& results) {
  if (repetition < 0) {
    results.calls[key] = json::parse(outcome.launch_report);
    return;
  }
  Measured& measured = results.cells[key];
  put(options, repetition, measured.cpu_s, outcome.cpu_s);
  put(options, repetition, measured.wall_s, outcome.wall_s);
  put(options, repetition, measured.rss_mib, static_cast<double>(outcome.peak_rss_kib) / 1024);
}

// What is wrong with the run, or nothing. Each program first says who serves its malloc.
std::string problem_of(const Allocator& allocator, const Outcome& outcome) {
  if (!outcome.ok()) return outcome.describe();
  const json hello = json::parse(outcome.standard_output, nullptr, false);
  return served_by_another(allocator, hello.is_object() ? hello.value("malloc", "none") : "none");
}

class Programs : public Comparison {
 public:
  Programs(ProgramsOptions& options, ProgramsResults& results)
      : Comparison("programs"), options_(options), results_(results) {}

  std::string heading() const override {
    return fmt::format("{} programs, {} threads, {} repetitions, interleaved",
                       options_.rows.size() + options_.traces.size(), options_.threads,
                       options_.repetitions);
  }

  std::string listing() const override {
    std::string text;
    for (const Row& row : options_.rows)
      text += fmt::format("  program {}: {}\n", row.name, row.manner);
    for (const Workload& workload : workloads())
      text += fmt::format("  trace {}: {}\n", workload.name, workload.what);
    return text;
  }

  // System calls are counted in a repetition before the first.
  std::vector<Run> plan() override {
    add_traces(options_, results_);
    std::vector<Run> runs;
    for (int repetition = options_.count_calls ? -1 : 0; repetition < options_.repetitions;
         ++repetition)
      for (const Row& row : options_.rows)
        for (const std::size_t turn : turns_of(results_.allocators.size(), repetition + 1))
          runs.push_back(run_of(row, results_.allocators[turn], repetition));
    return runs;
  }

  bool has_measured() const override { return !results_.cells.empty(); }
  std::string tables() const override { return programs_tables(options_, results_); }
  json report() const override { return programs_json(options_, results_); }

  std::string epilogue(const json& /*report*/) const override {
    return has_glibc() ? "" : "no picture and no ratios: glibc is not among the allocators\n";
  }

  std::string picture(const std::string& path) const override {
    return has_glibc() ? programs_picture(options_, results_, path) : "";
  }

 private:
  bool has_glibc() const {
    return std::any_of(results_.cells.begin(), results_.cells.end(),
                       [](const auto& cell) { return cell.first.second == "glibc"; });
  }

  Run run_of(const Row& row, const Allocator& allocator, int repetition) {
    const bool counts_calls = repetition < 0;
    Run run;
    run.kind = row.name;
    run.allocator = allocator.name;
    run.what = fmt::format(
        "{} {}, {}", row.name, allocator.name,
        counts_calls ? "system calls"
                     : fmt::format("repetition {} of {}", repetition + 1, options_.repetitions));
    run.title = fmt::format("{} with {}", row.name, allocator.name);
    run.about = {{"program", row.name}, {"allocator", allocator.name}};
    run.command = launched(options_, row.command, allocator);
    if (counts_calls) run.command.calls_counted = CallsCounted::memory;
    run.keep = [this, &allocator, key = Key{row.name, allocator.name},
                repetition](const Outcome& outcome) {
      std::string problem = problem_of(allocator, outcome);
      if (problem.empty()) keep(options_, key, repetition, outcome, results_);
      return problem;
    };
    return run;
  }

  ProgramsOptions& options_;
  ProgramsResults& results_;
};

int compare_programs(int argc, char** argv) {
  ProgramsOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  ProgramsResults results;
  Programs bench(options, results);
  return compare(options, bench, results);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_programs(argc, argv);
}
