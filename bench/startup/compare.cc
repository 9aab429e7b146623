// startup_compare: a program that does nothing, many times under each allocator in turn: time from
// start to end, processor time, peak of resident memory, and how many system calls it makes
// (docs/bench.md).
//
// Exit status: 0; 1 when rdmalloc failed, or was asked for and is not there; 2 for wrong arguments;
// 3 when nothing could be measured; 130 when interrupted.
#include <fmt/format.h>

#include <cmath>

#include "bench/support/driver.h"
#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"
#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct StartupOptions : DriverOptions {
  StartupOptions() {
    repetitions = 101;
    limit_s = 10;
  }
  std::string program = "/bin/true";
};

// One value for each repetition, NaN where the run failed.
struct Startup {
  std::vector<double> wall_ms;
  std::vector<double> cpu_ms;
  std::vector<double> rss_kib;
  double calls = std::nan("");  // counted once, in a run apart
};
using Values = std::vector<double> Startup::*;

struct StartupResults {
  std::vector<Allocator> allocators;
  std::vector<LeftOut> left_out;
  std::map<std::string, Startup> rows;
  std::map<std::string, std::string> failures;
  bool interrupted = false;
};

Outcome launch(const StartupOptions& options, const Allocator& allocator, CallsCounted counted) {
  Command command;
  command.arguments = {options.program};
  command.environment = preload_environment(allocator);
  command.launcher = options.program_folder + "/bench_launch";
  command.calls_counted = counted;
  command.limit = std::chrono::seconds(options.limit_s);
  return run(command);
}

// Nothing here says who served malloc; but the dynamic linker says it when it could not preload.
std::string problem_of(const Outcome& outcome) {
  if (!outcome.ok()) return outcome.describe() + "\n" + outcome.standard_error;
  if (outcome.standard_error.find("cannot be preloaded") != std::string::npos)
    return outcome.standard_error;
  return {};
}

void run_one(const StartupOptions& options, const Allocator& allocator, int repetition,
             StartupResults& results) {
  const Outcome outcome =
      launch(options, allocator, repetition < 0 ? CallsCounted::all : CallsCounted::none);
  results.interrupted = results.interrupted || outcome.interrupted;
  if (results.interrupted) return;
  if (const std::string problem = problem_of(outcome); !problem.empty()) {
    results.failures.emplace(allocator.name, problem);
    return;
  }
  Startup& row = results.rows[allocator.name];
  if (repetition < 0) {
    row.calls = json::parse(outcome.launch_report).at("calls").get<double>();
    return;
  }
  const auto put = [&](std::vector<double>& values, double value) {
    values.resize(static_cast<std::size_t>(options.repetitions), std::nan(""));
    values[static_cast<std::size_t>(repetition)] = value;
  };
  put(row.wall_ms, outcome.wall_s * 1000);
  put(row.cpu_ms, outcome.cpu_s * 1000);
  put(row.rss_kib, static_cast<double>(outcome.peak_rss_kib));
}

void run_all(const StartupOptions& options, StartupResults& results) {
  Progress progress(
      std::vector<std::string>(static_cast<std::size_t>(options.repetitions) + 1, "round"),
      options.quiet);
  for (int repetition = -1; repetition < options.repetitions; ++repetition) {
    progress.begin(fmt::format("repetition {} of {}", repetition + 1, options.repetitions));
    for (const std::size_t turn : turns_of(results.allocators.size(), repetition + 1))
      if (!results.interrupted) run_one(options, results.allocators[turn], repetition, results);
    progress.end();
    if (results.interrupted || interrupt_seen()) break;
  }
  progress.finish();
  results.interrupted = results.interrupted || interrupt_seen();
}

double median_of(const StartupResults& results, const std::string& allocator, Values values) {
  const auto found = results.rows.find(allocator);
  return found == results.rows.end() ? 0 : median(present(found->second.*values));
}

// The median of the differences within a repetition: a drift of the machine cancels.
double over_glibc(const StartupResults& results, const std::string& allocator, Values values) {
  const auto mine = results.rows.find(allocator);
  const auto base = results.rows.find("glibc");
  if (mine == results.rows.end() || base == results.rows.end()) return std::nan("");
  std::vector<double> differences;
  const auto& ours = mine->second.*values;
  const auto& theirs = base->second.*values;
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i)
    differences.push_back(ours[i] - theirs[i]);
  return median(present(differences));
}

std::string table_of(const StartupResults& results) {
  Table table(
      {"", "ms", "over glibc", "cpu ms", "over glibc", "peak KiB", "over glibc", "system calls"});
  const auto difference = [&](const std::string& name, Values values, int digits) {
    const double value = over_glibc(results, name, values);
    return std::isnan(value) ? std::string("-") : fmt::format("{:+.{}f}", value, digits);
  };
  for (const Allocator& allocator : results.allocators) {
    const std::string& name = allocator.name;
    const auto row = results.rows.find(name);
    if (row == results.rows.end()) {
      table.add({name, "failed"});
      continue;
    }
    table.add({name, fmt::format("{:.3f}", median_of(results, name, &Startup::wall_ms)),
               difference(name, &Startup::wall_ms, 3),
               fmt::format("{:.3f}", median_of(results, name, &Startup::cpu_ms)),
               difference(name, &Startup::cpu_ms, 3),
               fmt::format("{:.0f}", median_of(results, name, &Startup::rss_kib)),
               difference(name, &Startup::rss_kib, 0), fmt::format("{:.0f}", row->second.calls)});
  }
  return table.text();
}

json report_of(const StartupOptions& options, const StartupResults& results) {
  json report = {{"schema", "rdmalloc-startup-1"},
                 {"host", host_description()},
                 {"program", options.program},
                 {"repetitions", options.repetitions},
                 {"interrupted", results.interrupted}};
  for (const char* list : {"allocators", "left_out", "results", "failures"})
    report[list] = json::array();
  for (const Allocator& allocator : results.allocators)
    report["allocators"].push_back(to_json(allocator));
  for (const LeftOut& left_out : results.left_out) report["left_out"].push_back(to_json(left_out));
  for (const auto& [name, row] : results.rows)
    report["results"].push_back(
        {{"allocator", name},
         {"wall_ms", to_json(summarize(present(row.wall_ms)))},
         {"cpu_ms", to_json(summarize(present(row.cpu_ms)))},
         {"rss_kib", to_json(summarize(present(row.rss_kib)))},
         {"wall_ms_over_glibc", over_glibc(results, name, &Startup::wall_ms)},
         {"cpu_ms_over_glibc", over_glibc(results, name, &Startup::cpu_ms)},
         {"rss_kib_over_glibc", over_glibc(results, name, &Startup::rss_kib)},
         {"system_calls", row.calls}});
  for (const auto& [name, what] : results.failures)
    report["failures"].push_back({{"allocator", name}, {"what", what}});
  return report;
}

int compare(int argc, char** argv) {
  StartupOptions options;
  CommandLine line("What an allocator adds to a program that does nothing.", "startup_compare");
  line.text("--program", options.program, "which program");
  if (const int status = parse_driver_options(line, argc, argv, options, "startup.json");
      status >= 0)
    return status;
  if (find_program(options.program).empty())
    return refuse(options, fmt::format("--program {}: there is none", options.program));
  end_children_on_interrupt();
  AllocatorChoice choice = choose_allocators(options.allocators);
  if (!choice.error.empty()) return refuse(options, choice.error);
  StartupResults results;
  results.allocators = std::move(choice.found);
  results.left_out = std::move(choice.left_out);
  fmt::print("{}, {} repetitions, interleaved\n", options.program, options.repetitions);
  print_allocators(results.allocators, results.left_out);
  if (options.list) return 0;
  run_all(options, results);
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("\nmedians, and the median difference within a repetition\n{}", table_of(results));
  for (const auto& [name, what] : results.failures) fmt::print("\nFAILED: {}: {}\n", name, what);
  write_json(options, report_of(options, results));
  return exit_status(
      options, results.allocators,
      {results.interrupted, results.failures.contains("rdmalloc"), !results.rows.empty()});
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare(argc, argv);
}
