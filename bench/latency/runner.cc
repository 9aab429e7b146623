#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <sstream>

#include "bench/latency/results.h"
#include "bench/support/process.h"
#include "bench/support/table.h"
#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct Step {
  const Allocator* allocator;
  int repetition;
};

std::vector<Step> plan(const LatencyOptions& options, const LatencyResults& results) {
  std::vector<Step> steps;
  for (int repetition = 0; repetition < options.repetitions; ++repetition)
    for (const std::size_t turn : turns_of(results.allocators.size(), repetition))
      steps.push_back({&results.allocators[turn], repetition});
  return steps;
}

Outcome run_worker(const LatencyOptions& options, const Allocator& allocator) {
  Command command;
  command.arguments = {options.program_folder + "/latency_worker",
                       "--threads",
                       fmt::format("{}", options.threads),
                       "--scale",
                       fmt::format("{}", options.scale),
                       "--sizes",
                       fmt::format("{}", fmt::join(options.sizes, ","))};
  command.environment = preload_environment(allocator);
  command.limit = std::chrono::seconds(options.limit_s);
  command.on_limit = [](pid_t pid) { return stacks_below(pid, "latency_worker"); };
  return run(command);
}

void put(const LatencyOptions& options, const Step& step, std::vector<double>& values,
         double value) {
  values.resize(static_cast<std::size_t>(options.repetitions), std::nan(""));
  values[static_cast<std::size_t>(step.repetition)] = value;
}

void keep(const LatencyOptions& options, const Step& step, const json& line,
          LatencyResults& results) {
  const LatencyRow row = {line.at("operation"), line.at("bytes"), line.at("set"),
                          line.at("threads")};
  if (std::find(results.rows.begin(), results.rows.end(), row) == results.rows.end())
    results.rows.push_back(row);
  Latencies& latencies = results.cells[{row, step.allocator->name}];
  const double samples = line.at("samples");
  put(options, step, latencies.samples, samples);
  for (std::size_t i = 0; i < kPercentiles.size(); ++i) {
    const double ns = line.at("ns").at(i);
    put(options, step, latencies.ns[i], samples > 0 ? ns : std::nan(""));
  }
}

// What is wrong with the run, or nothing: then all of its rows are taken.
std::string take(const LatencyOptions& options, const Step& step, const Outcome& outcome,
                 LatencyResults& results) {
  if (!outcome.ok()) return outcome.describe();
  std::vector<json> lines;
  std::istringstream text(outcome.standard_output);
  for (std::string line; std::getline(text, line);) {
    lines.push_back(json::parse(line, nullptr, false));
    if (!lines.back().is_object()) return "no JSON: " + line;
  }
  const std::string served_by = lines.empty() ? "nobody" : lines[0].value("malloc", "nobody");
  if (!is_served_by(*step.allocator, served_by))
    return fmt::format("malloc is served by {}, not by {}", served_by, step.allocator->name);
  results.timer = lines[0].at("timer");
  results.timer_cost_ns.push_back(lines[0].at("timer_cost_ns"));
  results.timer_step_ns.push_back(lines[0].at("timer_step_ns"));
  for (std::size_t i = 1; i < lines.size(); ++i) keep(options, step, lines[i], results);
  return {};
}

}  // namespace

void run_latency(const LatencyOptions& options, LatencyResults& results) {
  const std::vector<Step> steps = plan(options, results);
  std::vector<std::string> kinds;
  for (const Step& step : steps) kinds.push_back(step.allocator->name);
  Progress progress(kinds, options.quiet);
  const auto start = std::chrono::steady_clock::now();
  for (const Step& step : steps) {
    progress.begin(fmt::format("{}, repetition {} of {}", step.allocator->name, step.repetition + 1,
                               options.repetitions));
    const Outcome outcome = run_worker(options, *step.allocator);
    results.interrupted = outcome.interrupted || interrupt_seen();
    if (results.interrupted) break;
    if (const std::string problem = take(options, step, outcome, results); !problem.empty())
      results.failures.push_back({step.allocator->name, step.repetition + 1, problem,
                                  outcome.standard_error + outcome.limit_report});
    progress.end();
  }
  progress.finish();
  results.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace rdmalloc::bench
