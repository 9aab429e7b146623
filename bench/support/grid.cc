#include "bench/support/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <regex>
#include <sstream>
#include <thread>

#include "bench/support/table.h"
#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct Step {
  const GridRow* row;
  const Allocator* allocator;
  int repetition;
};

bool is_run(const GridRow& row, const Allocator& allocator) {
  return row.allocators.empty() || std::find(row.allocators.begin(), row.allocators.end(),
                                             allocator.name) != row.allocators.end();
}

std::vector<Step> plan(const GridOptions& options, const Grid& grid, const GridResults& results) {
  std::vector<Step> steps;
  for (int repetition = 0; repetition < options.repetitions; ++repetition)
    for (const GridRow& row : grid.rows)
      for (const std::size_t turn : turns_of(results.allocators.size(), repetition))
        if (is_run(row, results.allocators[turn]))
          steps.push_back({&row, &results.allocators[turn], repetition});
  return steps;
}

// What is wrong with the run, or nothing: then its figures are in `told` and `figures`.
std::string take(const Grid& grid, const Step& step, const Outcome& outcome, json& told,
                 Figures& figures) {
  const std::string unreadable =
      grid.read ? grid.read(*step.row, *step.allocator, outcome, told) : told_by(outcome, told);
  if (!unreadable.empty()) return unreadable;
  const std::string served_by = told.value("malloc", "nobody");
  if (!is_served_by(*step.allocator, served_by))
    return fmt::format("malloc is served by {}, not by {}", served_by, step.allocator->name);
  for (const auto& [name, value] : told.items())
    if (value.is_number()) figures[name] = value.get<double>();
  return grid.derive ? grid.derive(*step.row, outcome, figures) : "";
}

// Runs steps one after the other, on as many threads as there are jobs.
class Runs {
 public:
  Runs(const GridOptions& options, const Grid& grid, GridResults& results)
      : options_(options),
        grid_(grid),
        results_(results),
        steps_(plan(options, grid, results)),
        progress_(kinds_of(steps_), options.quiet) {}

  void run_all() {
    std::vector<std::thread> jobs;
    for (int job = 1; job < options_.jobs; ++job) jobs.emplace_back([this] { run_some(); });
    run_some();
    for (std::thread& job : jobs) job.join();
    progress_.finish();
  }

 private:
  static std::vector<std::string> kinds_of(const std::vector<Step>& steps) {
    std::vector<std::string> kinds;
    for (const Step& step : steps) kinds.push_back(step.row->name);
    return kinds;
  }

  const Step* next() {
    const std::lock_guard lock(mutex_);
    if (results_.interrupted || next_ == steps_.size()) return nullptr;
    const Step& step = steps_[next_++];
    progress_.begin(fmt::format("{} {}, repetition {} of {}", step.row->name, step.allocator->name,
                                step.repetition + 1, options_.repetitions));
    return &step;
  }

  void run_some() {
    while (const Step* step = next()) {
      const Outcome outcome =
          bench::run(grid_.command_of ? grid_.command_of(*step->row, *step->allocator)
                                      : preloaded(options_, *step->row, *step->allocator));
      const std::lock_guard lock(mutex_);
      results_.interrupted = results_.interrupted || outcome.interrupted || interrupt_seen();
      if (!results_.interrupted) keep(*step, outcome);
      progress_.end();
    }
  }

  void keep(const Step& step, const Outcome& outcome) {
    json told;
    Figures figures;
    if (const std::string problem = take(grid_, step, outcome, told, figures); !problem.empty()) {
      results_.failures.push_back({step.row->name, step.allocator->name, step.repetition + 1,
                                   problem, outcome.standard_error + outcome.limit_report});
      return;
    }
    GridCell& cell = results_.cells[{step.row->name, step.allocator->name}];
    cell.told = std::move(told);
    for (const auto& [name, value] : figures) {
      std::vector<double>& values = cell.figures[name];
      values.resize(static_cast<std::size_t>(options_.repetitions), std::nan(""));
      values[static_cast<std::size_t>(step.repetition)] = value;
    }
  }

  const GridOptions& options_;
  const Grid& grid_;
  GridResults& results_;
  const std::vector<Step> steps_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  Progress progress_;
};

// What is wrong with --filter, or nothing.
std::string choose_rows(const GridOptions& options, Grid& grid) {
  try {
    const std::regex wanted(options.filter);
    std::erase_if(grid.rows,
                  [&](const GridRow& row) { return !std::regex_search(row.name, wanted); });
  } catch (const std::regex_error& error) {
    return fmt::format("--filter {}: {}", options.filter, error.what());
  }
  return grid.rows.empty()
             ? fmt::format("--filter {}: no row is named so; see --list", options.filter)
             : "";
}

void print_reports(const GridOptions& options, const Grid& grid, const GridResults& results) {
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("{}", grid_tables(grid, results));
  const json report = grid_json(options, grid, results);
  if (grid.epilogue) fmt::print("{}", grid.epilogue(report));
  write_json(options, report);
  const std::string picture = fmt::format("{}/{}.svg", options.output_folder, grid.name);
  if (!results.cells.empty()) write_picture(picture, grid_picture(grid, results, picture));
}

}  // namespace

int parse_grid_options(CommandLine& line, int argc, char** argv, GridOptions& options,
                       const Grid& grid) {
  line.text("--filter", options.filter, "a regular expression over the rows' names");
  line.number("--jobs", options.jobs, 1, 64, "runs at the same time");
  line.flag("--quick", options.quick, "a look in a minute: does it work?");
  return parse_driver_options(line, argc, argv, options, grid.name + ".json");
}

std::string told_by(const Outcome& outcome, json& told) {
  told = json::object();
  std::istringstream lines(outcome.standard_output);
  for (std::string line; std::getline(lines, line);)
    if (const json object = json::parse(line, nullptr, false); object.is_object())
      told.update(object);
  return outcome.ok() ? "" : outcome.describe();
}

Command preloaded(const GridOptions& options, const GridRow& row, const Allocator& allocator) {
  Command command;
  command.arguments = row.command;
  command.environment = preload_environment(allocator);
  command.launcher = options.program_folder + "/bench_launch";
  command.limit = std::chrono::seconds(options.limit_s);
  const std::string program = row.command[0].substr(row.command[0].rfind('/') + 1);
  command.on_limit = [=](pid_t pid) { return stacks_below(pid, program); };
  return command;
}

int compare_grid(const GridOptions& options, Grid& grid) {
  end_children_on_interrupt();
  if (const std::string problem = choose_rows(options, grid); !problem.empty())
    return refuse(options, problem);
  AllocatorChoice choice = choose_allocators(options.allocators);
  if (!choice.error.empty()) return refuse(options, choice.error);
  GridResults results;
  results.allocators = std::move(choice.found);
  results.left_out = std::move(choice.left_out);
  results.left_out.insert(results.left_out.end(), grid.left_out.begin(), grid.left_out.end());
  if (grid.add_columns) grid.add_columns(results.allocators);
  fmt::print("{} rows, {} repetitions, interleaved\n", grid.rows.size(), options.repetitions);
  if (options.list)
    for (const GridRow& row : grid.rows) fmt::print("  row {}\n", row.name);
  print_allocators(results.allocators, results.left_out);
  if (options.list) return 0;
  run_grid(options, grid, results);
  print_reports(options, grid, results);
  const bool rdmalloc_failed =
      std::any_of(results.failures.begin(), results.failures.end(),
                  [](const GridFailure& failure) { return failure.allocator == "rdmalloc"; });
  return exit_status(options, results.allocators,
                     {results.interrupted, rdmalloc_failed, !results.cells.empty()});
}

void run_grid(const GridOptions& options, const Grid& grid, GridResults& results) {
  const auto start = std::chrono::steady_clock::now();
  Runs(options, grid, results).run_all();
  results.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace rdmalloc::bench
