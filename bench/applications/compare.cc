// bench_applications: whole applications under different allocators, in turn: wall and processor
// time, peak of resident memory, page faults (docs/bench.md). What an application is and how it is
// run: applications.py beside this file.
#include <fmt/format.h>

#include <filesystem>
#include <sstream>

#include "bench/support/grid.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

constexpr const char* kRunner = RDMALLOC_BENCH_APPLICATIONS;

struct ApplicationsOptions : GridOptions {
  ApplicationsOptions() { backed_mib = 512; }  // the largest has about 300 MiB at its peak
  std::string applications;
  double scale = 1;
};

// Every application as applications.py names it: a row, or left out with the reason.
std::string add_rows(const ApplicationsOptions& options, Grid& grid) {
  Command command;
  command.arguments = {"python3", kRunner, "--list", "--bin", options.program_folder};
  const Outcome outcome = run(command);
  if (!outcome.ok())
    return fmt::format("{}: {}\n{}", kRunner, outcome.describe(), outcome.standard_error);
  std::vector<std::string> wanted = split_list(options.applications);
  const bool is_all = wanted.empty();
  std::istringstream lines(outcome.standard_output);
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line);
    const std::string name = object.at("name");
    if (!is_all && std::erase(wanted, name) == 0) continue;
    if (const std::string why = object.at("left_out"); !why.empty()) {
      grid.left_out.push_back({name, why});
      continue;
    }
    GridRow row;
    row.name = name;
    row.group = object.at("group");
    row.about = {{"what", object.at("what")}};
    grid.rows.push_back(std::move(row));
  }
  if (!wanted.empty())
    return fmt::format("--applications {}: there is none of that name; see --list", wanted.front());
  return {};
}

// The runner preloads the allocator for the application alone.
Command command_for(const ApplicationsOptions& options, const GridRow& row,
                    const Allocator& allocator) {
  Command command;
  const std::string work =
      std::filesystem::absolute(options.output_folder + "/applications").string();
  command.arguments = {"python3",
                       kRunner,
                       row.name,
                       "--bin",
                       options.program_folder,
                       "--work",
                       work,
                       "--preload",
                       allocator.library,
                       "--scale",
                       fmt::format("{}", options.scale)};
  command.environment = allocator.environment;
  command.limit = std::chrono::seconds(options.limit_s);
  return command;
}

Figure figure(const char* name, const char* title, const char* unit, int decimals) {
  Figure made;
  made.name = name;
  made.title = title;
  made.unit = unit;
  made.decimals = decimals;
  return made;
}

Grid grid_of(const ApplicationsOptions& options) {
  Grid grid;
  grid.name = "applications";
  grid.figures = {figure("cpu_s", "processor seconds of the whole application, median", "s", 3),
                  figure("wall_s", "wall seconds, of a server those of its client, median", "s", 3),
                  figure("peak_mib", "peak of resident MiB of its largest process", "MiB", 1),
                  figure("page_faults", "page faults", "", 0)};
  grid.command_of = [&options](const GridRow& row, const Allocator& allocator) {
    return command_for(options, row, allocator);
  };
  return grid;
}

int compare_applications(int argc, char** argv) {
  ApplicationsOptions options;
  Grid grid = grid_of(options);
  CommandLine line("Whole applications under different allocators, measured in turn.",
                   "bench_applications");
  line.text("--applications", options.applications,
            "which, by name, by commas (default: all that are installed; --list names them)");
  line.number("--scale", options.scale, 0.001, 1000.0, "times the usual work");
  if (const int status = parse_grid_options(line, argc, argv, options, grid); status >= 0)
    return status;
  if (options.quick && !line.is_given("--repetitions")) options.repetitions = 1;
  if (options.quick && !line.is_given("--scale")) options.scale = 0.05;
  if (const std::string problem = add_rows(options, grid); !problem.empty())
    return refuse(options, problem);
  grid.settings = {{"scale", options.scale}};
  return compare_grid(options, grid);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_applications(argc, argv);
}
