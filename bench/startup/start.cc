// bench_start: the start of jobs that take much memory at once: address space, its backing by N
// threads, registration, and the end again (docs/bench.md).
#include <fmt/format.h>

#include <fstream>

#include "bench/support/grid.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

struct StartOptions : GridOptions {
  std::string reserved_gib = "10,100,400";
  std::string threads = "1,2,4";
  std::size_t touched_mib = 4096;
};

// Pages of the kernel's pool that are free.
std::size_t free_pool_mib(std::size_t page_kib) {
  std::ifstream file(
      fmt::format("/sys/kernel/mm/hugepages/hugepages-{}kB/free_hugepages", page_kib));
  std::size_t pages = 0;
  file >> pages;
  return pages * page_kib / 1024;
}

void add_row(const StartOptions& options, const std::string& way, std::size_t reserved_gib,
             const std::string& threads, Grid& grid) {
  GridRow row;
  row.name = fmt::format("{} of {} GiB, {} {}", way, reserved_gib, threads,
                         threads == "1" ? "thread" : "threads");
  row.group = way;
  row.command = {options.program_folder + "/job_start", way, fmt::format("{}", reserved_gib * 1024),
                 fmt::format("{}", options.touched_mib), threads};
  if (way != "touch") row.allocators = {"rdmalloc"};
  grid.rows.push_back(std::move(row));
}

// What is wrong, or nothing.
std::string add_rows(const StartOptions& options, Grid& grid) {
  std::vector<std::size_t> reserved;
  for (const std::string& gib : split_list(options.reserved_gib)) {
    reserved.push_back(parse_bytes(gib));
    if (reserved.back() * 1024 < options.touched_mib || reserved.back() > 1024)
      return fmt::format("--reserved-gib {}: from --touched-mib to 1024", gib);
  }
  for (const std::string& threads : split_list(options.threads))
    if (const std::size_t count = parse_bytes(threads); count < 1 || count > 256)
      return fmt::format("--threads {}: from 1 to 256", threads);
  for (const std::size_t gib : reserved)
    for (const char* way : {"touch", "prefault", "register"})
      for (const std::string& threads : split_list(options.threads))
        add_row(options, way, gib, threads, grid);
  for (const auto& [way, page_kib] : {std::pair{"pool-2M", 2048}, std::pair{"pool-1G", 1048576}}) {
    const auto page = static_cast<std::size_t>(page_kib);
    const std::size_t needed_mib = options.touched_mib + page / 1024;
    if (free_pool_mib(page) < needed_mib) {
      grid.left_out.push_back(
          {way, fmt::format("the kernel's pool has {} MiB free of the {} that it takes: "
                            "/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
                            free_pool_mib(page), needed_mib, page)});
      continue;
    }
    for (const std::string& threads : split_list(options.threads))
      add_row(options, way, (options.touched_mib + 1023) / 1024, threads, grid);
  }
  return {};
}

Grid grid_of() {
  Grid grid;
  grid.name = "start";
  for (const auto& [name, title] :
       {std::pair{"reserve_ms", "ms until the block is there, median"},
        std::pair{"back_ms", "ms until its pages are backed, and registered, median"},
        std::pair{"end_ms", "ms of its end, median"}, std::pair{"cpu_s", "processor seconds"},
        std::pair{"page_faults", "page faults"},
        std::pair{"huge_percent", "percent of the backed memory in huge pages"}}) {
    Figure figure;
    figure.name = name;
    figure.title = title;
    figure.has_ratio = figure.name == "back_ms" || figure.name == "cpu_s";
    figure.is_drawn = figure.name == "back_ms";
    grid.figures.push_back(figure);
  }
  grid.derive = [](const GridRow&, const Outcome& outcome, Figures& figures) {
    figures["cpu_s"] = outcome.cpu_s;
    figures["page_faults"] = static_cast<double>(outcome.page_faults);
    return std::string{};
  };
  return grid;
}

int compare_start(int argc, char** argv) {
  StartOptions options;
  Grid grid = grid_of();
  CommandLine line("The start of jobs that take much memory at once.", "bench_start");
  line.text("--reserved-gib", options.reserved_gib, "address space of the block, by commas");
  line.number("--touched-mib", options.touched_mib, 64, 1 << 20, "how much of it is backed");
  line.text("--threads", options.threads, "how many, by commas");
  if (const int status = parse_grid_options(line, argc, argv, options, grid); status >= 0)
    return status;
  if (options.quick && !line.is_given("--repetitions")) options.repetitions = 1;
  if (options.quick && !line.is_given("--touched-mib")) options.touched_mib = 256;
  if (!line.is_given("--backed-mib")) options.backed_mib = static_cast<int>(options.touched_mib);
  if (const std::string problem = add_rows(options, grid); !problem.empty())
    return refuse(options, problem);
  return compare_grid(options, grid);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_start(argc, argv);
}
