// bench_cores: cache lines that move from one core to another, for each malloc with its free, under
// each allocator. Counted, not timed: the programs run in QEMU's user mode under a plugin of ours,
// which gives each thread a core and a cache of its own (plugin.cc, docs/bench.md).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "bench/patterns/runs.h"
#include "bench/support/grid.h"
#include "bench/support/process.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct CoresOptions : GridOptions {
  CoresOptions() {
    repetitions = 1;  // counts are the same each time, to a few per mille
    limit_s = 600;
  }
  int operations = 1000;
  int turn = 24;
  int top = 0;
  std::vector<std::string> rows;  // of the user's own
};

struct Group {
  const char* name;
  std::vector<const char*> runs;
};

const std::vector<Group>& groups() {
  static const std::vector<Group> all = {
      {"mixed sizes",
       {"replace:8-512:100@16", "replace:16-1K:128@256", "replace:16-4K:128@16",
        "replace:16-4K:128@64", "replace:1K-32K:32@16", "replace:1K-32K:32@64",
        "replace:64-64K:32@64", "replace:40K-256K:8@16", "replace:70K-300K:16@16",
        "replace:256K-1M:8@16", "replace:1M-4M:4@16", "bursts:16-4K:128@16", "bursts:1K-32K:32@16",
        "bursts:32K-256K:32@16"}},
      {"other functions",
       {"calloc:16-4K:128@16", "calloc:1K-32K:32@16", "realloc:16-4K:128@16",
        "realloc:1K-32K:32@16", "aligned:16-4K:128@16", "aligned:1K-32K:32@16",
        "sized-delete:16-4K:128@16"}},
      {"blocks that change threads",
       {"hand-over:16-1K:64@16", "hand-over:1K-32K:64@16", "hand-over:64K-512K:64@8",
        "larson:16-1K:128@16", "larson:1K-32K:32@16", "pool:16-1K:1@16",
        "come-and-go:16-1K:64@16"}},
      {"registration cache",
       {"reg-key:512:64@16", "reg-get-put:512:64@16", "reg-get-put:64K:64@16",
        "reg-one-for-all:64K:1@16", "reg-miss:64K:16@16", "reg-evict:64K:128@16",
        "reg-hit-beside-miss:64K:16@16", "reg-fresh:96K-256K:16@16", "reg-fresh-key:4K-16K:32@16"}},
      {"UCX's registration cache",
       {"ucx-get-put:512:64@16", "ucx-get-put:64K:64@16", "ucx-one-for-all:64K:1@16",
        "ucx-miss:64K:16@16", "ucx-hit-beside-miss:64K:16@16"}},
  };
  return all;
}

// What tells an allocator how many processors there are, where it does not believe
// sched_getaffinity(), or would be too slow: QEMU goes through a mapping page by page, so 1 TiB of
// addresses would take 10 s.
Environment emulated_environment(const Allocator& allocator) {
  Environment environment = preload_environment(allocator);
  environment["MALLOC_ARENA_MAX"] = "128";
  environment["RDMALLOC_ARENA"] = "64G";
  environment["RDMALLOC_TOPOLOGY"] = "1x256";
  std::string& jemalloc = environment["MALLOC_CONF"];
  jemalloc += (jemalloc.empty() ? "narenas:64" : ",narenas:64");
  return environment;
}

// Without ERMS libc fills memory by instructions that store a vector, not by one that stores byte
// by byte: a count of accesses would be a count of bytes, and take ten times as long.
std::vector<std::string> emulator() {
#if defined(__x86_64__)
  return {"qemu-x86_64", "-cpu", "max,-erms"};
#else
  return {"qemu-aarch64"};
#endif
}

// Fewer for each where there are more threads: the emulation takes one after the other.
std::size_t shared_by(unsigned threads, std::size_t count) {
  constexpr unsigned kThreadsInFull = 16;
  return count * kThreadsInFull / std::max(threads, kThreadsInFull);
}

// More where there are few blocks, which go through their caches' slow paths the oftener in the
// beginning: what a thread needs once is to weigh as little as elsewhere.
std::size_t operations_of(const CoresOptions& options, const PatternRun& run) {
  constexpr std::size_t kFewBlocks = 16, kTimes = 4;
  const auto count = static_cast<std::size_t>(options.operations);
  const bool is_few = run.live < kFewBlocks && !run.is_of_registrations();
  const std::size_t times = is_few ? kTimes : 1;
  return std::max<std::size_t>(shared_by(run.threads, times * count), 1);
}

// Enough that each thread has held and dropped what it will.
std::size_t warm_up_of(const PatternRun& run, std::size_t operations) {
  return std::max({shared_by(run.threads, 8 * run.live), 2 * run.live, operations});
}

GridRow row_of(const CoresOptions& options, const PatternRun& run) {
  GridRow row;
  row.name = run.name();
  row.command = run.command(options.program_folder);
  if (run.is_of_registrations()) row.allocators = {"rdmalloc"};
  const std::size_t operations = operations_of(options, run);
  row.command.insert(row.command.end(),
                     {"--spin", "--operations", fmt::format("{}", operations), "--warm-up",
                      fmt::format("{}", warm_up_of(run, operations))});
  row.about = {{"pattern", run.pattern}, {"least", run.least},     {"most", run.most},
               {"live", run.live},       {"threads", run.threads}, {"operations", operations}};
  return row;
}

void add_rows(const CoresOptions& options, std::vector<GridRow>& rows) {
  const auto add = [&](const PatternRun& run, const std::string& group, double x) {
    rows.push_back(row_of(options, run));
    rows.back().group = group;
    rows.back().x = x;
  };
  for (const Group& group : groups())
    for (const char* text : group.runs) {
      const PatternRun run = run_of(text);
      // Built where there is the release of UCX that it knows.
      if (!run.is_of_ucx() || access(run.command(options.program_folder)[0].c_str(), X_OK) == 0)
        add(run, group.name, 0);
    }
  for (const unsigned threads : {2u, 4u, 8u, 16u, 32u, 64u, 128u}) {
    PatternRun run = run_of("replace:1K-32K:32@1");
    run.threads = threads;
    // Those with 16 and 64 threads stand among the mixed sizes as well.
    if (threads != 16 && threads != 64) add(run, "1 to 32 KiB by threads", threads);
  }
  constexpr std::size_t kMostLive = 128;
  constexpr std::size_t kLiveBytes = std::size_t{16} << 20;  // of a thread
  for (std::size_t bytes = 16; bytes <= std::size_t{4} << 20; bytes *= 2)
    add({"bursts", bytes, bytes, std::min(kMostLive, kLiveBytes / bytes), 16},
        "one size, 16 threads", static_cast<double>(bytes));
}

void keep_the_first_of_each_group(std::vector<GridRow>& rows) {
  std::vector<GridRow> kept;
  for (const GridRow& row : rows)
    if (kept.empty() || kept.back().group != row.group) kept.push_back(row);
  rows = std::move(kept);
}

Grid grid_of(const CoresOptions& options) {
  Grid grid;
  grid.name = "cores";
  grid.x_label = "bytes, or threads";
  Figure lines{"lines_per_operation", "cache lines moved between cores, for each malloc and free"};
  lines.decimals = 4;
  lines.has_ratio = false;
  lines.unit = "lines";
  grid.figures = {lines};
  grid.command_of = [&options](const GridRow& row, const Allocator& allocator) {
    Command command;
    command.arguments = emulator();
    const unsigned threads = row.about.at("threads");
    const std::string plugin =
        fmt::format("{}/../lib/libcoherence.so,turn={},cores={},top={}", options.program_folder,
                    options.turn, 2 * threads + 16, options.top);
    command.arguments.insert(command.arguments.end(), {"-plugin", plugin});
    for (const auto& [name, value] : emulated_environment(allocator))
      command.arguments.insert(command.arguments.end(), {"-E", name + "=" + value});
    command.arguments.insert(command.arguments.end(), row.command.begin(), row.command.end());
    command.limit = std::chrono::seconds(options.limit_s);
    return command;
  };
  grid.derive = [](const GridRow&, const Outcome&, Figures& figures) -> std::string {
    if (figures["operations_counted"] <= 0) return "the plugin counted no operation";
    if (figures["lost_lines"] > 0) return "the plugin's table of lines was too small";
    const double operations = figures["operations_counted"];
    figures["lines_per_operation"] = figures["lines_moved"] / operations;
    figures["accesses_per_operation"] = figures["accesses"] / operations;
    return {};
  };
  return grid;
}

// "FUNCTION at FILE:LINE" of "OBJECT+0xOFFSET", or the text itself. The innermost function that is
// not the C++ library's: of what is inlined there each atomic operation is.
std::string source_of(const std::string& place) {
  const std::size_t plus = place.rfind('+');
  if (plus == std::string::npos || find_program("addr2line").empty()) return place;
  Command command;
  command.arguments = {
      "addr2line",           "-f", "-C", "-s", "-p", "-i", "-e", place.substr(0, plus),
      place.substr(plus + 1)};
  const Outcome outcome = run(command);
  std::istringstream lines(outcome.standard_output);
  std::string text;
  while (std::getline(lines, text)) {
    constexpr std::string_view kInlinedBy = " (inlined by) ";
    if (text.rfind(kInlinedBy, 0) == 0) text.erase(0, kInlinedBy.size());
    if (text.rfind("std::", 0) != 0) break;
  }
  return !outcome.ok() || text.empty() || text.find("??") == 0 ? place : text;
}

// The instructions that moved most lines, a table for each cell.
std::string top_text(const json& report) {
  std::string text;
  for (const json& cell : report.at("results")) {
    if (!cell.at("told").contains("top")) continue;
    const double operations = cell.at("told").at("operations_counted");
    Table table({"lines for each operation, by", ""});
    for (const json& instruction : cell.at("told").at("top"))
      table.add({source_of(instruction.at("at")),
                 fmt::format("{:.4f}", instruction.at("lines").get<double>() / operations)});
    text += fmt::format("\n{} with {}\n{}", cell.at("row").get<std::string>(),
                        cell.at("allocator").get<std::string>(), table.text());
  }
  return text;
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, CoresOptions& options, Grid& grid) {
  CommandLine line("Cache lines moved between cores under different allocators, counted in QEMU.",
                   "bench_cores");
  line.texts(
      "--row", options.rows,
      "instead of the usual rows: PATTERN:LEAST-MOST:LIVE@THREADS, as in replace:1K-32K:32@16");
  line.number("--operations", options.operations, 1, 1'000'000,
              "counted, of each of up to 16 threads");
  line.number("--turn", options.turn, 1, 1'000'000,
              "memory accesses until it is the next thread's turn");
  line.number("--top", options.top, 0, 1000, "instructions to name, those that move most lines");
  if (const int status = parse_grid_options(line, argc, argv, options, grid); status >= 0)
    return status;
  if (options.quick && !line.is_given("--operations")) options.operations = 200;
  std::vector<GridRow>& rows = grid.rows;
  for (const std::string& text : options.rows) {
    PatternRun run;
    run.threads = 16;
    if (const std::string problem = parse_run(text, run); !problem.empty())
      return refuse(options, "--row " + problem);
    rows.push_back(row_of(options, run));
  }
  if (options.rows.empty()) add_rows(options, rows);
  if (options.quick && options.rows.empty()) keep_the_first_of_each_group(rows);
  if (!find_program(emulator().front()).empty()) return -1;
  fmt::print(stderr, "bench_cores: no {}: Debian has it in qemu-user\n", emulator().front());
  return 3;
}

int compare_cores(int argc, char** argv) {
  CoresOptions options;
  Grid grid = grid_of(options);
  if (const int status = parse_options(argc, argv, options, grid); status >= 0) return status;
  if (options.top != 0) grid.epilogue = top_text;
  grid.settings = {{"operations", options.operations}, {"turn", options.turn}};
  return compare_grid(options, grid);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_cores(argc, argv);
}
