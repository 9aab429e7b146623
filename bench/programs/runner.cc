#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "bench/programs/results.h"
#include "bench/support/process.h"
#include "bench/support/table.h"
#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct Step {
  const Row* row;
  const Allocator* allocator;
  int repetition;  // -1: its system calls are counted
};

std::vector<Step> plan(const ProgramsOptions& options, const ProgramsResults& results) {
  std::vector<Step> steps;
  for (int repetition = options.count_calls ? -1 : 0; repetition < options.repetitions;
       ++repetition)
    for (const Row& row : options.rows)
      for (const std::size_t turn : turns_of(results.allocators.size(), repetition + 1))
        steps.push_back({&row, &results.allocators[turn], repetition});
  return steps;
}

void keep(const ProgramsOptions& options, const Step& step, const Outcome& outcome,
          ProgramsResults& results) {
  const Key key = {step.row->name, step.allocator->name};
  if (step.repetition < 0) {
    results.calls[key] = json::parse(outcome.launch_report);
    return;
  }
  Measured& measured = results.cells[key];
  const auto put = [&](std::vector<double>& values, double value) {
    values.resize(static_cast<std::size_t>(options.repetitions), std::nan(""));
    values[static_cast<std::size_t>(step.repetition)] = value;
  };
  put(measured.cpu_s, outcome.cpu_s);
  put(measured.wall_s, outcome.wall_s);
  put(measured.rss_mib, static_cast<double>(outcome.peak_rss_kib) / 1024);
}

// What is wrong with the run, or nothing. Each program first says who serves its malloc.
std::string problem_of(const Step& step, const Outcome& outcome) {
  if (!outcome.ok()) return outcome.describe();
  const json hello = json::parse(outcome.standard_output, nullptr, false);
  const std::string served_by = hello.is_object() ? hello.value("malloc", "nobody") : "nobody";
  if (is_served_by(*step.allocator, served_by)) return {};
  return fmt::format("malloc is served by {}, not by {}", served_by, step.allocator->name);
}

void run_step(const ProgramsOptions& options, const Step& step, ProgramsResults& results) {
  Command command;
  command.arguments = step.row->command;
  command.environment = preload_environment(*step.allocator);
  command.launcher = options.program_folder + "/bench_launch";
  if (step.repetition < 0) command.calls_counted = CallsCounted::memory;
  command.limit = std::chrono::seconds(options.limit_s);
  const std::string program = command.arguments[0].substr(command.arguments[0].rfind('/') + 1);
  command.on_limit = [=](pid_t pid) { return stacks_below(pid, program); };
  const Outcome outcome = run(command);
  results.interrupted = results.interrupted || outcome.interrupted;
  if (results.interrupted) return;
  if (const std::string problem = problem_of(step, outcome); !problem.empty())
    results.failures.push_back({step.row->name, step.allocator->name, problem,
                                outcome.standard_error + outcome.limit_report});
  else
    keep(options, step, outcome, results);
}

}  // namespace

void run_programs(const ProgramsOptions& options, ProgramsResults& results) {
  const std::vector<Step> steps = plan(options, results);
  std::vector<std::string> kinds;
  for (const Step& step : steps) kinds.push_back(step.row->name);
  Progress progress(kinds, options.quiet);
  const auto start = std::chrono::steady_clock::now();
  for (const Step& step : steps) {
    const std::string what =
        step.repetition < 0
            ? "system calls"
            : fmt::format("repetition {} of {}", step.repetition + 1, options.repetitions);
    progress.begin(fmt::format("{} {}, {}", step.row->name, step.allocator->name, what));
    run_step(options, step, results);
    progress.end();
    if (results.interrupted || interrupt_seen()) break;
  }
  progress.finish();
  results.interrupted = results.interrupted || interrupt_seen();
  results.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace rdmalloc::bench
