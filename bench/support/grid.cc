#include "bench/support/grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

bool is_run(const GridRow& row, const Allocator& allocator) {
  return row.allocators.empty() || std::find(row.allocators.begin(), row.allocators.end(),
                                             allocator.name) != row.allocators.end();
}

class GridComparison : public Comparison {
 public:
  GridComparison(const GridOptions& options, const Grid& grid, GridResults& results)
      : Comparison(grid.name), options_(options), grid_(grid), results_(results) {}

  void settle_columns() override {
    if (grid_.add_columns) grid_.add_columns(results_.allocators);
  }

  std::string heading() const override {
    return fmt::format("{} rows, {} repetitions, interleaved", grid_.rows.size(),
                       options_.repetitions);
  }

  std::string listing() const override {
    std::string text;
    for (const GridRow& row : grid_.rows) text += fmt::format("  row {}\n", row.name);
    return text;
  }

  std::vector<Run> plan() override {
    std::vector<Run> runs;
    for (int repetition = 0; repetition < options_.repetitions; ++repetition)
      for (const GridRow& row : grid_.rows)
        for (const std::size_t turn : turns_of(results_.allocators.size(), repetition))
          if (is_run(row, results_.allocators[turn]))
            runs.push_back(run_of(row, results_.allocators[turn], repetition));
    return runs;
  }

  bool has_measured() const override { return !results_.cells.empty(); }
  std::string tables() const override { return grid_tables(grid_, results_); }
  json report() const override { return grid_json(options_, grid_, results_); }

  std::string epilogue(const json& report) const override {
    return grid_.epilogue ? grid_.epilogue(report) : "";
  }

  std::string picture(const std::string& path) const override {
    return grid_picture(grid_, results_, path);
  }

 private:
  Run run_of(const GridRow& row, const Allocator& allocator, int repetition) {
    Run run;
    run.kind = row.name;
    run.allocator = allocator.name;
    run.what = fmt::format("{} {}, repetition {} of {}", row.name, allocator.name, repetition + 1,
                           options_.repetitions);
    run.title = fmt::format("{} with {}, repetition {}", row.name, allocator.name, repetition + 1);
    run.about = {{"row", row.name}, {"allocator", allocator.name}, {"repetition", repetition + 1}};
    run.command = grid_.command_of ? grid_.command_of(row, allocator)
                                   : launched(options_, row.command, allocator);
    run.keep = [this, &row, &allocator, repetition](const Outcome& outcome) {
      return keep(row, allocator, repetition, outcome);
    };
    return run;
  }

  // What is wrong with the run, or nothing: then its figures are in `told` and `figures`.
  std::string take(const GridRow& row, const Allocator& allocator, const Outcome& outcome,
                   json& told, Figures& figures) const {
    std::string problem =
        grid_.read ? grid_.read(row, allocator, outcome, told) : told_by(outcome, told);
    if (problem.empty()) problem = served_by_another(allocator, told.value("malloc", "none"));
    if (!problem.empty()) return problem;
    for (const auto& [name, value] : told.items())
      if (value.is_number()) figures[name] = value.get<double>();
    return grid_.derive ? grid_.derive(row, outcome, figures) : "";
  }

  std::string keep(const GridRow& row, const Allocator& allocator, int repetition,
                   const Outcome& outcome) {
    json told;
    Figures figures;
    if (std::string problem = take(row, allocator, outcome, told, figures); !problem.empty())
      return problem;
    GridCell& cell = results_.cells[{row.name, allocator.name}];
    cell.told = std::move(told);
    for (const auto& [name, value] : figures) put(options_, repetition, cell.figures[name], value);
    return {};
  }

  const GridOptions& options_;
  const Grid& grid_;
  GridResults& results_;
};

// A row that is there twice would be measured twice, and the second overwrite the first. What is
// wrong, or nothing.
std::string look_for_equal_rows(const std::vector<GridRow>& rows) {
  std::set<std::string> names;
  for (const GridRow& row : rows)
    if (!names.insert(row.name).second)
      return fmt::format("the row {} is asked for twice; each value of an option may be given once",
                         row.name);
  return {};
}

// What is wrong with the rows or with --filter, or nothing.
std::string choose_rows(const GridOptions& options, Grid& grid) {
  if (const std::string problem = look_for_equal_rows(grid.rows); !problem.empty()) return problem;
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

int compare_grid(const GridOptions& options, Grid& grid) {
  if (const std::string problem = choose_rows(options, grid); !problem.empty())
    return refuse(options, problem);
  GridResults results;
  results.left_out = grid.left_out;
  GridComparison bench(options, grid, results);
  return compare(options, bench, results, {.jobs = options.jobs});
}

}  // namespace rdmalloc::bench
