// Allocators compared in a grid: each row is a program with its arguments, each column an
// allocator, and each run gives figures. Runs the cells in turn, repetition by repetition, and
// tells them in tables, a JSON file and a picture. A bench says what its rows and figures are.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/comparison.h"

namespace rdmalloc::bench {

using Figures = std::map<std::string, double>;  // of a run, by name

// One of the figures that runs give: a table for each group of rows that has it.
struct Figure {
  std::string name;   // as the program prints it, and in the JSON file
  std::string title;  // over its tables
  int decimals = 2;
  bool is_minimum = false;  // of the repetitions; otherwise their median
  bool has_ratio = true;    // to the best peer
  bool is_drawn = true;
  std::string unit = "";  // along the picture's axis
};

struct GridRow {
  std::string name;  // unique
  std::vector<std::string> command;
  std::string group = "";  // a table, and a panel of the picture
  std::string section =
      "";        // where a group is long, its table has only the largest of each section
  double x = 0;  // a group with places has lines in its panel, one without has bars
  std::vector<std::string> allocators = {};  // the only ones; empty: all
  nlohmann::json about = nullptr;            // for the JSON file
};

struct GridOptions : DriverOptions {
  std::string filter = ".";
  bool quick = false;
  int jobs = 1;  // runs at the same time
};

struct Grid {
  std::string name;  // "cores": cores.json and cores.svg, schema rdmalloc-cores-1
  std::string x_label = "";
  std::vector<Figure> figures;
  std::vector<GridRow> rows;
  std::vector<LeftOut> left_out = {};  // besides allocators
  nlohmann::json settings = nullptr;   // for the JSON file
  // What a run is; by default the row's command under bench_launch, with the allocator preloaded.
  std::function<Command(const GridRow&, const Allocator&)> command_of;
  // What a run says, as one JSON object; "malloc" is the object that served it. What is wrong, or
  // nothing. By default told_by().
  std::function<std::string(const GridRow&, const Allocator&, const Outcome&, nlohmann::json&)>
      read;
  // Adds to the figures, which are all numbers of that object; what is wrong, or nothing.
  std::function<std::string(const GridRow&, const Outcome&, Figures&)> derive;
  // More columns, made of those that were found.
  std::function<void(std::vector<Allocator>&)> add_columns;
  // More text for the end of the report.
  std::function<std::string(const nlohmann::json& report)> epilogue;
};

// --filter, --quick and --jobs besides those of driver.h; add_options() adds the bench's own. -1 to
// go on, otherwise the exit status.
int parse_grid_options(CommandLine& line, int argc, char** argv, GridOptions& options,
                       const Grid& grid);

// Everything from the choice of allocators to the exit status.
int compare_grid(const GridOptions& options, Grid& grid);

// All the JSON objects that a run prints, a line each, in one; what is wrong where it did not
// succeed.
std::string told_by(const Outcome& outcome, nlohmann::json& told);

// ---- what the tables, the JSON file and the picture are made of

struct GridCell {
  std::map<std::string, std::vector<double>>
      figures;          // by name; a value a repetition, NaN where it failed
  nlohmann::json told;  // by the last run
};

struct GridResults : Results {
  std::map<std::pair<std::string, std::string>, GridCell> cells;  // by row and allocator
};

std::string grid_tables(const Grid& grid, const GridResults& results);
nlohmann::json grid_json(const GridOptions& options, const Grid& grid, const GridResults& results);
std::string grid_picture(const Grid& grid, const GridResults& results, const std::string& picture);

}  // namespace rdmalloc::bench
