#include "bench/support/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <set>
#include <thread>

#include "bench/support/backed_memory.h"
#include "bench/support/build_of.h"
#include "bench/support/report.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

// Carries runs out one after the other, on as many threads as there are jobs.
class TurnByTurn {
 public:
  TurnByTurn(const DriverOptions& options, const Pace& pace, std::vector<Run> runs,
             Results& results)
      : pace_(pace),
        backed_bytes_(pace.jobs == 1 ? static_cast<std::size_t>(options.backed_mib) << 20 : 0),
        results_(results),
        runs_(std::move(runs)),
        progress_(kinds_of(runs_), options.quiet, pace.expected) {}

  void run_all() {
    std::vector<std::thread> jobs;
    for (int job = 1; job < pace_.jobs; ++job) jobs.emplace_back([this] { run_some(); });
    run_some();
    for (std::thread& job : jobs) job.join();
    progress_.finish();
    results_.interrupted = results_.interrupted || interrupt_seen();
  }

 private:
  static std::vector<std::string> kinds_of(const std::vector<Run>& runs) {
    std::vector<std::string> kinds;
    for (const Run& run : runs) kinds.push_back(run.kind);
    return kinds;
  }

  bool is_skipped(const Run& run) const {
    return !pace_.retries_after_failure && failed_.contains({run.kind, run.allocator});
  }

  const Run* next() {
    const std::lock_guard lock(mutex_);
    while (!results_.interrupted && next_ < runs_.size()) {
      const Run& run = runs_[next_++];
      progress_.begin(run.what);
      if (!is_skipped(run)) return &run;
      progress_.end();
    }
    return nullptr;
  }

  void run_some() {
    while (const Run* step = next()) {
      if (backed_bytes_ != 0) back_free_memory(backed_bytes_);
      const Outcome outcome = run(step->command);
      const std::lock_guard lock(mutex_);
      results_.interrupted = results_.interrupted || outcome.interrupted || interrupt_seen();
      if (!results_.interrupted) keep(*step, outcome);
      progress_.end();
    }
  }

  void keep(const Run& run, const Outcome& outcome) {
    const std::string problem = run.keep(outcome);
    if (problem.empty()) return;
    failed_.insert({run.kind, run.allocator});
    results_.failures.push_back({run.allocator, run.about, run.title, problem,
                                 outcome.standard_error, outcome.limit_report});
  }

  const Pace& pace_;
  const std::size_t backed_bytes_;
  Results& results_;
  const std::vector<Run> runs_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::set<std::pair<std::string, std::string>> failed_;  // by kind and allocator
  Progress progress_;
};

// What is wrong with the options, or nothing.
std::string choose(const DriverOptions& options, Results& results) {
  if (!options.compares_allocators) return {};
  AllocatorChoice choice = choose_allocators(options.allocators);
  results.allocators = std::move(choice.found);
  for (Allocator& allocator : results.allocators) allocator.build = build_of(allocator);
  results.left_out.insert(results.left_out.begin(), choice.left_out.begin(), choice.left_out.end());
  return choice.error;
}

// A preload of the user's would serve glibc's row and no other; settings of the user's reach all.
void settle_environment() {
  if (const char* preload = std::getenv("LD_PRELOAD"); preload != nullptr && *preload != '\0')
    fmt::print("  LEFT OUT LD_PRELOAD={}: each allocator is preloaded alone\n", preload);
  unsetenv("LD_PRELOAD");
  for (const auto& [name, value] : settings_of_malloc())
    fmt::print("  for all of them {}={}\n", name, value);
}

Command limited(const DriverOptions& options, std::vector<std::string> arguments,
                const Allocator* allocator) {
  Command command;
  const std::string program = arguments[0].substr(arguments[0].rfind('/') + 1);
  command.arguments = std::move(arguments);
  if (allocator != nullptr) command.environment = preload_environment(*allocator);
  command.limit = std::chrono::seconds(options.limit_s);
  command.on_limit = [=](pid_t pid) { return stacks_below(pid, program); };
  return command;
}

}  // namespace

bool Results::has_failed(const std::string& allocator) const {
  return std::any_of(failures.begin(), failures.end(),
                     [&](const Failure& failure) { return failure.allocator == allocator; });
}

bool Comparison::write_reports(const DriverOptions& options) const {
  fmt::print("{}", tables());
  const json all = report();
  fmt::print("{}", epilogue(all));
  const bool is_written = write_json(options, all);
  const std::string path = fmt::format("{}/{}.svg", options.output_folder, name_);
  if (!has_measured()) return is_written;
  if (const std::string script = picture(path); !script.empty()) write_picture(path, script);
  return is_written;
}

int compare(const DriverOptions& options, Comparison& bench, Results& results, const Pace& pace) {
  end_children_on_interrupt();
  if (const std::string problem = choose(options, results); !problem.empty())
    return refuse(options, problem);
  bench.settle_columns();
  fmt::print("{}\n", bench.heading());
  if (options.list) fmt::print("{}", bench.listing());
  print_allocators(results.allocators, results.left_out);
  if (options.compares_allocators) settle_environment();
  if (options.list) return 0;
  if (const std::string problem = problem_of_output(options); !problem.empty())
    return refuse(options, problem);
  std::vector<Run> runs = bench.plan();
  const auto start = std::chrono::steady_clock::now();
  TurnByTurn(options, pace, std::move(runs), results).run_all();
  results.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  const bool is_reported = bench.write_reports(options);
  return exit_status(
      options, results.allocators,
      {results.interrupted, results.has_failed("rdmalloc"), bench.has_measured(), is_reported});
}

Command command_of(const DriverOptions& options, const std::string& program,
                   std::vector<std::string> arguments, const Allocator* allocator) {
  arguments.insert(arguments.begin(), options.program_folder + "/" + program);
  return limited(options, std::move(arguments), allocator);
}

Command launched(const DriverOptions& options, std::vector<std::string> arguments,
                 const Allocator& allocator) {
  Command command = limited(options, std::move(arguments), &allocator);
  command.launcher = options.program_folder + "/bench_launch";
  return command;
}

void put(const DriverOptions& options, int repetition, std::vector<double>& values, double value) {
  values.resize(static_cast<std::size_t>(options.repetitions), std::nan(""));
  values[static_cast<std::size_t>(repetition)] = value;
}

std::string served_by_another(const Allocator& allocator, const std::string& served_by) {
  if (is_served_by(allocator, served_by)) return {};
  return fmt::format("malloc is served by {}, not by {}", served_by, allocator.name);
}

std::string ending_of(const Outcome& outcome, const std::string& problem) {
  return outcome.describe() + (problem.empty() ? "" : "; " + problem);
}

std::string failures_text(const Results& results) {
  std::string text;
  for (const Failure& failure : results.failures)
    text += fmt::format("\nFAILED: {}: {}\n{}", failure.title, failure.what, failure.details());
  return text;
}

std::string left_out_text(const Results& results) {
  std::string text;
  for (const LeftOut& left_out : results.left_out)
    text += fmt::format("LEFT OUT {}: {}\n", left_out.what, left_out.why);
  return text;
}

std::string ending_text(const Results& results) {
  return fmt::format("\n{} failures; {:.0f} s\n", results.failures.size(), results.wall_s);
}

json report_of(const DriverOptions& options, const std::string& schema, const Results& results,
               const std::string& details) {
  json report = {{"schema", schema},
                 {"host", host_description()},
                 {"wall_s", results.wall_s},
                 {"backed_mib", options.backed_mib},
                 {"interrupted", results.interrupted}};
  for (const char* list : {"left_out", "results", "failures"}) report[list] = json::array();
  if (options.compares_allocators) report["allocators"] = json::array();
  for (const Allocator& allocator : results.allocators)
    report["allocators"].push_back(to_json(allocator));
  for (const LeftOut& left_out : results.left_out) report["left_out"].push_back(to_json(left_out));
  for (const Failure& failure : results.failures) {
    json entry = failure.about;
    entry["what"] = failure.what;
    if (!details.empty()) entry[details] = failure.details();
    report["failures"].push_back(std::move(entry));
  }
  return report;
}

std::vector<double> of_each(const Results& results,
                            const std::function<double(const std::string& allocator)>& value_of) {
  std::vector<double> values;
  for (const Allocator& allocator : results.allocators) values.push_back(value_of(allocator.name));
  return values;
}

std::vector<std::string> head_of(const Results& results, const std::string& first) {
  std::vector<std::string> head = {first};
  for (const Allocator& allocator : results.allocators) head.push_back(allocator.name);
  return head;
}

}  // namespace rdmalloc::bench
