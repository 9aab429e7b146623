// bench_memory: what stays resident under each allocator: of live blocks of every size, in programs
// that fill memory and leave it again, of threads that worked, of small processes, and whether
// programs end within a limit (docs/bench.md). With --thp and --lab all that in a guest whose huge
// pages are set otherwise.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include "bench/memory/lab.h"
#include "bench/memory/rows.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

// What a program that prints its smaps_rollup and its maps says; the allocator's library is mapped,
// or it is not under it.
std::string told_by_maps(const Allocator& allocator, const Outcome& outcome, json& told) {
  if (!outcome.ok()) return outcome.describe();
  const std::string& text = outcome.standard_output;
  std::error_code failed;
  const std::string library = allocator.library.empty()
                                  ? "/libc.so.6"
                                  : std::filesystem::canonical(allocator.library, failed).string();
  const std::size_t end = text.find(library + "\n");
  const std::size_t rss = text.find("\nRss:");
  if (end == std::string::npos || rss == std::string::npos) return library + " is not mapped";
  const std::size_t begin = text.find_last_of(' ', end) + 1;
  told["malloc"] = text.substr(begin, end + library.size() - begin);
  told["resident_mib"] = std::strtod(text.c_str() + rss + 5, nullptr) / 1024;
  return {};
}

std::string read_run(const GridRow& row, const Allocator& allocator, const Outcome& outcome,
                     json& told) {
  if (row.name == "cat" || row.name == "python") return told_by_maps(allocator, outcome, told);
  const std::string problem = told_by(outcome, told);
  if (row.name.rfind("limited:", 0) != 0) return problem;
  // The kernel's OOM killer is an answer.
  told["killed"] = outcome.signal == SIGKILL && !outcome.timed_out ? 1 : 0;
  return told["killed"] == 1 ? "" : problem;
}

// Which of a program's figures are the row's.
std::string derive(const GridRow& row, const Outcome& outcome, Figures& figures) {
  if (row.name == "rptest") {
    figures["peak_mib"] = static_cast<double>(outcome.peak_rss_kib) / 1024;
  } else if (row.group.rfind("small", 0) == 0) {
    if (figures.contains("end_mib")) figures["resident_mib"] = figures["end_mib"];
    for (const char* other : {"peak_mib", "end_mib", "settled_mib"}) figures.erase(other);
  } else if (row.name.rfind("limited:", 0) == 0) {
    figures.erase("resident_to_asked");
  }
  return {};
}

Grid grid_of(const MemoryOptions& options) {
  Grid grid;
  grid.name = "memory";
  grid.x_label = "bytes of a block";
  Figure sweep{"resident_to_asked", "resident, to what was asked for"};
  sweep.unit = "ratio";
  Figure end{"end_mib", "resident MiB at the end of the work", 1};
  end.has_ratio = end.is_drawn = false;
  grid.figures = {sweep,
                  {"peak_mib", "peak of resident MiB", 1},
                  end,
                  {"settled_mib", "resident MiB, settled", 1},
                  {"resident_mib", "resident MiB", 1},
                  {"killed", "1: killed", 0}};
  for (Figure& figure : grid.figures)
    if (figure.unit.empty()) figure.unit = "MiB";
  for (const int look_s : {1, 5, 10, 60}) {
    Figure back{fmt::format("back_{}s", look_s), fmt::format("% given back after {} s", look_s), 0};
    back.has_ratio = back.is_drawn = false;  // more is better
    grid.figures.insert(grid.figures.end() - 1, back);
  }
  grid.figures.back().has_ratio = grid.figures.back().is_drawn = false;
  grid.read = read_run;
  grid.derive = derive;
  // What huge pages cost and what they save, unless it was said what to compare.
  grid.add_columns = [&options](std::vector<Allocator>& allocators) {
    if (!options.allocator_list.empty()) return;
    const auto ours = std::find_if(allocators.begin(), allocators.end(),
                                   [](const Allocator& a) { return a.name == "rdmalloc"; });
    if (ours == allocators.end()) return;
    Allocator without = *ours;
    without.name = "rdmalloc-nohuge";
    without.environment["RDMALLOC_HUGE"] = "never";
    allocators.insert(ours + 1, without);
  };
  return grid;
}

// So many programs at once as memory allows: most of their time they only sleep.
int jobs_that_fit() {
  constexpr std::size_t kOfAProgramKib = std::size_t{4} << 20;
  constexpr std::size_t kMost = 6;
  std::ifstream meminfo("/proc/meminfo");
  std::size_t available_kib = 0;
  for (std::string line; std::getline(meminfo, line);)
    if (line.rfind("MemAvailable:", 0) == 0) available_kib = std::stoul(line.substr(13));
  return static_cast<int>(std::clamp<std::size_t>(available_kib / kOfAProgramKib, 1, kMost));
}

std::string huge_pages_here() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  std::getline(file, text);
  for (const char* word : {"always", "madvise", "never"})
    if (text.find(fmt::format("[{}]", word)) != std::string::npos) return word;
  return "unknown";
}

void add_options(CommandLine& line, MemoryOptions& options) {
  line.text("--parts", options.parts,
            fmt::format("of {} (default: all)", fmt::join(memory_parts(), ", ")));
  line.number("--sizes-a-doubling", options.sizes_a_doubling, 1, 200, "of the sweep");
  line.number("--settle-s", options.settle_s, 0.0, 600.0,
              "seconds from the end of a program's work to the last look");
  line.number("--until-s", options.until_s, 1.0, 600.0,
              "of the part returned: seconds from a peak to the last look, at 1, 5, 10 and 60 s");
  line.number("--scale", options.scale, 0.001, 10.0, "times the usual memory of patterns");
  line.text(
      "--thp", options.huge_pages,
      "transparent huge pages: as-is, always, madvise or never; in the lab where this machine "
      "has them otherwise");
  line.text("--cgroup", options.cgroup, "for the limits: any, v1 or v2");
  line.flag("--lab", options.lab, "in the lab's guest (tools/lab) in any case");
  line.text("--lab-memory", options.lab_memory, "of the guest");
}

bool is_one_of(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// What is wrong, or nothing.
std::string check(const MemoryOptions& options) {
  for (const std::string& part : split_list(options.parts))
    if (!is_one_of(part, memory_parts()))
      return fmt::format("--parts {}: there are {}", part, fmt::join(memory_parts(), ", "));
  if (!is_one_of(options.huge_pages, {"as-is", "always", "madvise", "never"}))
    return fmt::format("--thp {}: as-is, always, madvise or never is wanted", options.huge_pages);
  if (!is_one_of(options.cgroup, {"any", "v1", "v2"}))
    return fmt::format("--cgroup {}: any, v1 or v2 is wanted", options.cgroup);
  return {};
}

// The same comparison in the guest; what went wrong, where it does not become that.
std::string go_to_lab(int argc, char** argv, const MemoryOptions& options) {
  std::vector<std::string> arguments = {options.program_folder + "/bench_memory"};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  LabRun lab;
  lab.huge_pages = options.huge_pages == "as-is" ? "" : options.huge_pages;
  lab.cgroup = options.cgroup == "v1" ? "v1" : "v2";
  lab.memory = options.lab_memory;
  lab.output_folder = options.output_folder;
  return become_lab(lab, arguments);
}

// -1 to go on here, otherwise the exit status.
int settle_huge_pages(int argc, char** argv, const MemoryOptions& options) {
  if (is_in_lab()) return -1;
  const bool is_as_wanted =
      options.huge_pages == "as-is" || options.huge_pages == huge_pages_here();
  const bool needs_lab = options.lab || (!is_as_wanted && options.huge_pages != "never");
  if (needs_lab && !options.list) return refuse(options, go_to_lab(argc, argv, options));
  // Inherited by all that is run from here on.
  if (!is_as_wanted && options.huge_pages == "never" && prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0)
    return refuse(options,
                  "--thp never: the kernel refuses PR_SET_THP_DISABLE; --lab does without");
  return -1;
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, MemoryOptions& options, const Grid& grid) {
  CommandLine line("Resident memory under different allocators.", "bench_memory");
  add_options(line, options);
  if (const int status = parse_grid_options(line, argc, argv, options, grid); status >= 0)
    return status;
  if (const std::string problem = check(options); !problem.empty()) return refuse(options, problem);
  if (!line.is_given("--jobs")) options.jobs = jobs_that_fit();
  if (options.quick && !line.is_given("--sizes-a-doubling")) options.sizes_a_doubling = 1;
  if (options.quick && !line.is_given("--scale")) options.scale = 0.1;
  if (options.quick && !line.is_given("--settle-s")) options.settle_s = 1;
  if (options.quick && !line.is_given("--until-s")) options.until_s = 1;
  return settle_huge_pages(argc, argv, options);
}

MemoryCgroups::Version version_of(const MemoryOptions& options) {
  using Version = MemoryCgroups::Version;
  return options.cgroup == "v1" ? Version::v1 : options.cgroup == "v2" ? Version::v2 : Version::any;
}

int compare_memory(int argc, char** argv) {
  MemoryOptions options;
  Grid grid = grid_of(options);
  if (const int status = parse_options(argc, argv, options, grid); status >= 0) return status;
  std::optional<MemoryCgroups> cgroups;
  if (has_part(options, "limits")) {
    cgroups.emplace(version_of(options));
    if (!cgroups->problem().empty()) {
      grid.left_out.push_back({"limits", cgroups->problem()});
      cgroups.reset();
    }
  }
  grid.rows = memory_rows(options, cgroups ? &*cgroups : nullptr);
  grid.settings = {{"settle_s", options.settle_s},
                   {"until_s", options.until_s},
                   {"scale", options.scale},
                   {"huge_pages", options.huge_pages},
                   {"cgroup", !cgroups                                           ? "none"
                              : cgroups->version() == MemoryCgroups::Version::v1 ? "v1"
                                                                                 : "v2"}};
  return compare_grid(options, grid);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_memory(argc, argv);
}
