// startup_compare: a program that does nothing, many times under each allocator in turn: time from
// start to end, processor time, peak of resident memory, and how many system calls it makes
// (docs/bench.md).
//
// Exit status: 0; 1 when rdmalloc failed, or was asked for and is not there; 2 for wrong arguments;
// 3 when nothing could be measured; 130 when interrupted.
#include <fmt/format.h>

#include <cmath>

#include "bench/support/comparison.h"
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

struct StartupResults : Results {
  std::map<std::string, Startup> rows;
};

// Nothing here says who served malloc; but the dynamic linker says it when it could not preload.
std::string problem_of(const Outcome& outcome) {
  if (!outcome.ok()) return outcome.describe() + "\n" + outcome.standard_error;
  if (outcome.standard_error.find("cannot be preloaded") != std::string::npos)
    return outcome.standard_error;
  return {};
}

std::string keep(const StartupOptions& options, const Allocator& allocator, int repetition,
                 const Outcome& outcome, StartupResults& results) {
  if (const std::string problem = problem_of(outcome); !problem.empty()) return problem;
  Startup& row = results.rows[allocator.name];
  if (repetition < 0) {
    row.calls = json::parse(outcome.launch_report).at("calls").get<double>();
    return {};
  }
  put(options, repetition, row.wall_ms, outcome.wall_s * 1000);
  put(options, repetition, row.cpu_ms, outcome.cpu_s * 1000);
  put(options, repetition, row.rss_kib, static_cast<double>(outcome.peak_rss_kib));
  return {};
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

// The first of each allocator.
std::map<std::string, std::string> failures_of(const StartupResults& results) {
  std::map<std::string, std::string> failures;
  for (const Failure& failure : results.failures) failures.emplace(failure.allocator, failure.what);
  return failures;
}

json json_of(const StartupOptions& options, const StartupResults& results) {
  json report = report_of(options, "rdmalloc-startup-1", results, "");
  report["program"] = options.program;
  report["repetitions"] = options.repetitions;
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
  report["failures"] = json::array();
  for (const auto& [name, what] : failures_of(results))
    report["failures"].push_back({{"allocator", name}, {"what", what}});
  return report;
}

class Starts : public Comparison {
 public:
  Starts(const StartupOptions& options, StartupResults& results)
      : Comparison("startup"), options_(options), results_(results) {}

  std::string heading() const override {
    return fmt::format("{}, {} repetitions, interleaved", options_.program, options_.repetitions);
  }

  std::vector<Run> plan() override {
    std::vector<Run> runs;
    for (int repetition = -1; repetition < options_.repetitions; ++repetition)
      for (const std::size_t turn : turns_of(results_.allocators.size(), repetition + 1))
        runs.push_back(run_of(results_.allocators[turn], repetition));
    return runs;
  }

  bool has_measured() const override { return !results_.rows.empty(); }

  std::string tables() const override {
    std::string text = fmt::format("\nmedians, and the median difference within a repetition\n{}",
                                   table_of(results_));
    for (const auto& [name, what] : failures_of(results_))
      text += fmt::format("\nFAILED: {}: {}\n", name, what);
    return text;
  }

  json report() const override { return json_of(options_, results_); }

 private:
  Run run_of(const Allocator& allocator, int repetition) {
    Run run;
    run.kind = run.allocator = allocator.name;
    run.what = fmt::format("{}, repetition {} of {}", allocator.name, repetition + 1,
                           options_.repetitions);
    run.command = launched(options_, {options_.program}, allocator);
    if (repetition < 0) run.command.calls_counted = CallsCounted::all;
    run.keep = [this, &allocator, repetition](const Outcome& outcome) {
      return keep(options_, allocator, repetition, outcome, results_);
    };
    return run;
  }

  const StartupOptions& options_;
  StartupResults& results_;
};

int compare_starts(int argc, char** argv) {
  StartupOptions options;
  CommandLine line("What an allocator adds to a program that does nothing.", "startup_compare");
  line.text("--program", options.program, "which program");
  if (const int status = parse_driver_options(line, argc, argv, options, "startup.json");
      status >= 0)
    return status;
  if (find_program(options.program).empty())
    return refuse(options, fmt::format("--program {}: there is none", options.program));
  StartupResults results;
  Starts bench(options, results);
  return compare(options, bench, results);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_starts(argc, argv);
}
