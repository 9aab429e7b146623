// startup_compare: a program that does nothing, many times under each allocator in turn: time from
// start to end, processor time, peak of resident memory, and how many system calls it makes
// (docs/bench.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

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

  // nullptr: a run failed. What does nothing ends each time, or something is wrong with it.
  const Startup* row_of(const std::string& allocator) const {
    return has_failed(allocator) ? nullptr : find_cell(rows, allocator);
  }
};

// A run before the others in which the dynamic linker tells what it binds, since the program does
// not say who serves its malloc. System calls are counted in the next.
constexpr int kAsksTheLinker = -2;
constexpr int kCountsCalls = -1;

// The object that serves malloc by that account; empty where there is none.
std::string server_by_the_linker(const std::string& said) {
  // "PID: binding file USER [0] to SERVER [0]: normal symbol `malloc' [VERSION]"
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t symbol = line.find(" [0]: normal symbol `malloc'");
    const std::size_t to = line.rfind(" to ", symbol);
    if (symbol != std::string::npos && to != std::string::npos)
      return line.substr(to + 4, symbol - to - 4);
  }
  return {};
}

std::string problem_of(const Allocator& allocator, int repetition, const Outcome& outcome) {
  if (!outcome.ok()) {
    return outcome.describe() + (repetition == kAsksTheLinker ? "" : "\n" + outcome.standard_error);
  }
  if (repetition != kAsksTheLinker) return {};
  const std::string server = server_by_the_linker(outcome.standard_error);
  if (server.empty())
    return "nothing can be preloaded: the program is static, changes its user, or is of another "
           "libc";
  return served_by_another(allocator, server);
}

std::string keep(const StartupOptions& options, const Allocator& allocator, int repetition,
                 const Outcome& outcome, StartupResults& results) {
  if (const std::string problem = problem_of(allocator, repetition, outcome); !problem.empty())
    return problem;
  if (repetition == kAsksTheLinker) return {};
  Startup& row = results.rows[allocator.name];
  if (repetition == kCountsCalls) {
    row.calls = json::parse(outcome.launch_report).at("calls").get<double>();
    return {};
  }
  put(options, repetition, row.wall_ms, outcome.wall_s * 1000);
  put(options, repetition, row.cpu_ms, outcome.cpu_s * 1000);
  put(options, repetition, row.rss_kib, static_cast<double>(outcome.peak_rss_kib));
  return {};
}

double median_of(const StartupResults& results, const std::string& allocator, Values values) {
  const Startup* row = results.row_of(allocator);
  return row == nullptr ? std::nan("") : median(present(row->*values));
}

// The median of the differences within a repetition: a drift of the machine cancels.
double over_glibc(const StartupResults& results, const std::string& allocator, Values values) {
  const Startup* mine = results.row_of(allocator);
  const Startup* base = results.row_of("glibc");
  if (mine == nullptr || base == nullptr) return std::nan("");
  std::vector<double> differences;
  const auto& ours = mine->*values;
  const auto& theirs = base->*values;
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
    const Startup* row = results.row_of(name);
    if (row == nullptr) {
      table.add({name, "failed"});
      continue;
    }
    table.add({name, fmt::format("{:.3f}", median_of(results, name, &Startup::wall_ms)),
               difference(name, &Startup::wall_ms, 3),
               fmt::format("{:.3f}", median_of(results, name, &Startup::cpu_ms)),
               difference(name, &Startup::cpu_ms, 3),
               fmt::format("{:.0f}", median_of(results, name, &Startup::rss_kib)),
               difference(name, &Startup::rss_kib, 0), fmt::format("{:.0f}", row->calls)});
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
  for (const auto& [name, row] : results.rows) {
    if (results.row_of(name) == nullptr) continue;
    report["results"].push_back(
        {{"allocator", name},
         {"wall_ms", to_json(summarize(present(row.wall_ms)))},
         {"cpu_ms", to_json(summarize(present(row.cpu_ms)))},
         {"rss_kib", to_json(summarize(present(row.rss_kib)))},
         {"wall_ms_over_glibc", over_glibc(results, name, &Startup::wall_ms)},
         {"cpu_ms_over_glibc", over_glibc(results, name, &Startup::cpu_ms)},
         {"rss_kib_over_glibc", over_glibc(results, name, &Startup::rss_kib)},
         {"system_calls", row.calls}});
  }
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
    for (int repetition = kAsksTheLinker; repetition < options_.repetitions; ++repetition)
      for (const std::size_t turn : turns_of(results_.allocators.size(), repetition + 2))
        runs.push_back(run_of(results_.allocators[turn], repetition));
    return runs;
  }

  bool has_measured() const override {
    return std::any_of(results_.rows.begin(), results_.rows.end(),
                       [&](const auto& row) { return results_.row_of(row.first) != nullptr; });
  }

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
    if (repetition == kCountsCalls) run.command.calls_counted = CallsCounted::all;
    if (repetition == kAsksTheLinker) {
      run.command.environment["LD_DEBUG"] = "bindings";
      run.command.environment["LD_BIND_NOW"] = "1";
    }
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
  return compare(options, bench, results, {.retries_after_failure = false});
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_starts(argc, argv);
}
