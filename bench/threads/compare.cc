// bench_threads: processor time of an operation and peak of resident memory, for 1 to 256 threads,
// each pattern of allocating under each allocator in turn, repetition by repetition
// (docs/bench.md).
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "bench/patterns/runs.h"
#include "bench/support/blocks.h"
#include "bench/support/grid.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct ThreadsOptions : GridOptions {
  std::string shapes;
  std::string threads = "1,2,4,8,16,32,64,128,256";
  double scale = 1;
  int random = 0;
  int seed = 1;
};

// How blocks are used, and how many operations all threads together are given: some tenths of a
// second.
struct Shape {
  const char* run;
  std::size_t operations;
};
constexpr std::size_t kUsualOperations = 4'000'000;

const std::vector<Shape>& usual_shapes() {
  static const std::vector<Shape> shapes = {
      {"replace:16-4K:128", kUsualOperations},
      {"replace:16-1K:128", kUsualOperations},
      {"replace:1K-32K:32", 1'000'000},
      {"replace:64-64K:32", 400'000},
      {"replace:40K-256K:8", 100'000},
      {"replace:256K-1M:8", 40'000},
      {"bursts:16-4K:128", kUsualOperations},
      {"calloc:16-4K:128", kUsualOperations},
      {"realloc:16-4K:128", kUsualOperations},
      {"aligned:16-4K:128", kUsualOperations},
      {"hand-over:16-1K:1024", 2'000'000},
      {"larson:16-1K:1000", kUsualOperations},
      {"pool:16-1K:1", 2'000'000},
      {"come-and-go:16-1K:64", 1'000'000},
  };
  return shapes;
}

// Of one thread. Where there are many, each still runs for a while: one that is done within its
// first turn on a processor meets no other.
std::size_t operations_of(const ThreadsOptions& options, std::size_t all, unsigned threads) {
  constexpr std::size_t kMostParts = 100;
  const auto scaled = static_cast<std::size_t>(static_cast<double>(all) * options.scale);
  return std::max<std::size_t>(scaled / std::min<std::size_t>(threads, kMostParts), 1);
}

GridRow row_of(const ThreadsOptions& options, const PatternRun& run,
               std::size_t operations_of_all) {
  GridRow row;
  row.name = run.name();
  row.group = run.shape();
  row.x = run.threads;
  row.command = run.command(options.program_folder);
  const std::size_t operations = operations_of(options, operations_of_all, run.threads);
  const std::size_t warm_up = std::max(2 * run.live, operations / 8);
  row.command.insert(row.command.end(), {"--operations", fmt::format("{}", operations), "--warm-up",
                                         fmt::format("{}", warm_up)});
  row.about = {{"threads", run.threads}, {"operations", run.threads * operations}};
  return row;
}

// So many rows drawn at random: any pattern, any number of threads and of blocks, sizes equally
// likely on a logarithmic scale, 256 MiB live at most. The same for the same seed, on any machine.
void add_random_rows(const ThreadsOptions& options, std::vector<GridRow>& rows) {
  constexpr std::size_t kMostLive = std::size_t{256} << 20;
  Random random(static_cast<std::uint64_t>(options.seed));
  const auto power = [&](unsigned least, unsigned most) {
    return std::size_t{1} << random.between(least, most);
  };
  const auto count = [&](std::size_t most) { return random.between(most / 2 + 1, most); };
  static constexpr const char* kPatterns[] = {"replace",      "bursts",   "calloc", "realloc",
                                              "aligned",      "larson",   "pool",   "come-and-go",
                                              "sized-delete", "hand-over"};
  std::set<std::string> drawn;
  while (rows.size() < static_cast<std::size_t>(options.random)) {
    PatternRun run;
    run.pattern = kPatterns[random.below(std::size(kPatterns))];
    run.least = power(4, 20);
    run.most = std::min(run.least * power(0, 6), std::size_t{4} << 20);
    run.live = count(power(1, 9));
    run.threads = static_cast<unsigned>(count(power(0, 8)));
    if ((run.least + run.most) / 2 * run.live * run.threads > kMostLive) continue;
    if (!drawn.insert(run.name()).second) continue;
    // As many operations as touch 4 GiB, were they written.
    const std::size_t fewer = (std::size_t{8} << 30) / (run.least + run.most);
    rows.push_back(row_of(options, run, std::min(kUsualOperations / 10, fewer)));
  }
}

// What is wrong, or nothing.
std::string add_rows(const ThreadsOptions& options, std::vector<GridRow>& rows) {
  if (options.random != 0) {
    if (!options.shapes.empty()) return "--random draws the rows that --shapes would name";
    add_random_rows(options, rows);
    return {};
  }
  std::vector<Shape> shapes = usual_shapes();
  const std::vector<std::string> asked = split_list(options.shapes);
  if (!asked.empty()) shapes.clear();
  for (const std::string& text : asked) {
    const auto usual = std::find_if(usual_shapes().begin(), usual_shapes().end(),
                                    [&](const Shape& shape) { return text == shape.run; });
    shapes.push_back(usual != usual_shapes().end() ? *usual
                                                   : Shape{text.c_str(), kUsualOperations / 10});
  }
  for (const Shape& shape : shapes)
    for (const std::string& threads : split_list(options.threads)) {
      PatternRun run;
      if (const std::string problem = parse_run(fmt::format("{}@{}", shape.run, threads), run);
          !problem.empty())
        return problem;
      rows.push_back(row_of(options, run, shape.operations));
      if (run.is_of_registrations()) rows.back().allocators = {"rdmalloc"};
    }
  return {};
}

std::string derive(const GridRow&, const Outcome& outcome, Figures& figures) {
  const double measured = figures["operations"];
  if (measured <= 0) return "no operation was measured";
  figures["cpu_ns"] = outcome.cpu_s * 1e9 / (measured + figures["operations_before"]);
  figures["steady_cpu_ns"] = figures["steady_cpu_s"] * 1e9 / measured;
  figures["peak_mib"] = static_cast<double>(outcome.peak_rss_kib) / 1024;
  return {};
}

Grid grid_of() {
  Grid grid;
  grid.name = "threads";
  grid.x_label = "threads";
  Figure steady{"steady_cpu_ns", "processor ns of an operation once warm, minimum"};
  steady.is_minimum = true;
  steady.unit = "ns";
  steady.decimals = 0;
  Figure whole = steady;
  whole.name = "cpu_ns";
  whole.title = "processor ns of an operation, of the whole process, minimum";
  whole.is_drawn = false;
  Figure whole_median = whole;
  whole_median.title = "processor ns of an operation, of the whole process, median";
  whole_median.is_minimum = false;
  Figure peak{"peak_mib", "peak of resident MiB"};
  peak.unit = "MiB";
  peak.decimals = 1;
  grid.figures = {whole, whole_median, steady, peak};
  grid.derive = derive;
  return grid;
}

int compare_threads(int argc, char** argv) {
  ThreadsOptions options;
  Grid grid = grid_of();
  CommandLine line("Time and memory by the number of threads under different allocators.",
                   "bench_threads");
  line.text(
      "--shapes", options.shapes,
      "PATTERN:LEAST-MOST:LIVE, by commas, as in replace:1K-32K:32 (default: all usual ones)");
  line.text("--threads", options.threads, "how many, by commas");
  line.number("--random", options.random, 1, 10000,
              "so many rows of any pattern, size and number of threads, in place of those");
  line.number("--seed", options.seed, 1, 1 << 30, "of --random: which");
  line.number("--scale", options.scale, 0.001, 1000.0, "times the usual number of operations");
  if (const int status = parse_grid_options(line, argc, argv, options, grid); status >= 0)
    return status;
  if (options.quick && !line.is_given("--repetitions")) options.repetitions = 1;
  if (options.quick && !line.is_given("--threads")) options.threads = "1,2,64";
  if (options.quick && !line.is_given("--scale")) options.scale = 0.05;
  if (const std::string problem = add_rows(options, grid.rows); !problem.empty())
    return refuse(options, problem);
  grid.settings = {{"scale", options.scale}, {"random", options.random}, {"seed", options.seed}};
  return compare_grid(options, grid);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_threads(argc, argv);
}
