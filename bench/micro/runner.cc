#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "bench/micro/results.h"
#include "bench/support/process.h"
#include "bench/support/table.h"
#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct Step {
  std::string program;
  const Allocator* allocator;  // nullptr: measured as it is
  int repetition;
};

std::string path_of(const MicroOptions& options, const std::string& program) {
  return (std::filesystem::path(options.program_folder) / program).string();
}

std::vector<Step> plan(const MicroOptions& options, MicroResults& results) {
  std::vector<Step> steps;
  const bool keys = std::filesystem::exists(path_of(options, "micro_keys"));
  if (!keys) results.left_out.push_back({"micro_keys", "it was not built"});
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (const std::size_t turn : turns_of(results.allocators.size(), repetition))
      steps.push_back({"micro_malloc", &results.allocators[turn], repetition});
    if (keys) steps.push_back({"micro_keys", nullptr, repetition});
  }
  if (options.rss_bytes != 0)
    for (const Allocator& allocator : results.allocators)
      steps.push_back({"rss_return", &allocator, 0});
  return steps;
}

Outcome run_program(const MicroOptions& options, const Step& step) {
  Command command;
  command.arguments = {path_of(options, step.program)};
  if (step.program == "rss_return") {
    command.arguments.insert(command.arguments.end(),
                             {"--bytes", fmt::format("{}", options.rss_bytes)});
  } else {
    command.arguments.insert(
        command.arguments.end(),
        {"--benchmark_format=json", fmt::format("--benchmark_min_time={}", options.min_time_s),
         "--benchmark_filter=" + options.filter});
  }
  if (step.allocator != nullptr) command.environment = preload_environment(*step.allocator);
  command.limit = std::chrono::seconds(options.limit_s);
  command.on_limit = [&](pid_t pid) { return stacks_below(pid, step.program); };
  return run(command);
}

// What an item cost, in nanoseconds. Google Benchmark relates items to processor time, and to real
// time where a benchmark asks for it: what each benchmark here wants.
double nanoseconds_of(const json& benchmark) {
  const double rate = benchmark.value("items_per_second", 0.0);
  return rate > 0 ? 1e9 / rate : std::nan("");
}

void put(std::vector<double>& values, const MicroOptions& options, int repetition, double value) {
  values.resize(static_cast<std::size_t>(options.repetitions), std::nan(""));
  values[static_cast<std::size_t>(repetition)] = value;
}

// What is wrong with the output, or nothing.
std::string take_benchmarks(const MicroOptions& options, const Step& step, const Outcome& outcome,
                            MicroResults& results) {
  // What Google Benchmark does when the filter matches nothing; the other program may have it.
  if (outcome.ok() && outcome.standard_error.find("Failed to match") != std::string::npos)
    return {};
  const json report = json::parse(outcome.standard_output, nullptr, false);
  if (report.is_discarded() || !report.contains("benchmarks")) return "no JSON came out of it";
  const std::string served_by = report.at("context").value("malloc", "");
  if (step.allocator != nullptr && !is_served_by(*step.allocator, served_by))
    return fmt::format("malloc is served by {}, not by {}", served_by, step.allocator->name);
  auto& order = step.allocator != nullptr ? results.benchmarks : results.key_benchmarks;
  for (const json& benchmark : report.at("benchmarks")) {
    const std::string name = benchmark.at("name");
    if (benchmark.value("error_occurred", false))
      return fmt::format("{}: {}", name, benchmark.value("error_message", ""));
    if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
    auto& values = step.allocator != nullptr ? results.cells[{name, step.allocator->name}]
                                             : results.keys[name];
    put(values, options, step.repetition, nanoseconds_of(benchmark));
  }
  return {};
}

std::string take_rss(const Step& step, const Outcome& outcome, MicroResults& results) {
  RssCurve curve;
  std::istringstream lines(outcome.standard_output);
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line, nullptr, false);
    if (object.is_discarded()) continue;
    const std::string type = object.value("type", "");
    if (type == "peak") curve.peak_mib = object.at("mib");
    if (type == "freed" || type == "rss")
      curve.samples.emplace_back(object.at("ms"), object.at("mib"));
    if (type != "verdict") continue;
    curve.start_mib = object.at("start_mib");
    curve.end_mib = object.at("end_mib");
    curve.allowed_mib = object.at("allowed_mib");
    curve.decay_ms = object.at("decay_ms");
    curve.returned = object.at("returned");
    results.rss[step.allocator->name] = curve;
    return {};
  }
  return "no verdict came out of it";
}

void run_step(const MicroOptions& options, const Step& step, MicroResults& results) {
  const Outcome outcome = run_program(options, step);
  results.interrupted = results.interrupted || outcome.interrupted;
  if (results.interrupted) return;
  const bool rss = step.program == "rss_return";
  std::string problem =
      rss ? take_rss(step, outcome, results) : take_benchmarks(options, step, outcome, results);
  // Exit status 1 of rss_return is a verdict; a peer's is no failure, ours is one below.
  if (!outcome.ok() && !(rss && outcome.exit_code == 1))
    problem = outcome.describe() + (problem.empty() ? "" : "; " + problem);
  const std::string name = step.allocator != nullptr ? step.allocator->name : "rdmalloc";
  if (rss && problem.empty() && name == "rdmalloc" && !results.rss[name].returned)
    problem = "memory did not come back";
  if (!problem.empty())
    results.failures.push_back({step.program, name, step.repetition + 1, problem,
                                outcome.standard_error + outcome.limit_report});
}

}  // namespace

void run_micro(const MicroOptions& options, MicroResults& results) {
  const std::vector<Step> steps = plan(options, results);
  std::vector<std::string> kinds;
  for (const Step& step : steps) kinds.push_back(step.program);
  Progress progress(kinds, options.quiet);
  const auto start = std::chrono::steady_clock::now();
  for (const Step& step : steps) {
    progress.begin(fmt::format("{} {}, repetition {}", step.program,
                               step.allocator != nullptr ? step.allocator->name : "",
                               step.repetition + 1));
    run_step(options, step, results);
    progress.end();
    if (results.interrupted || interrupt_seen()) break;
  }
  progress.finish();
  results.interrupted = results.interrupted || interrupt_seen();
  results.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace rdmalloc::bench
