// bcast_compare: MPI broadcasts under different allocators (docs/bench.md).
//
// Exit status: 0 when every run was right; 1 when rdmalloc failed in any (also when it was left out
// although asked for by name); 2 for wrong arguments or a machine without MPI; 3 when nothing could
// be measured; 4 when only peers failed: a finding, told apart from ours but never from success;
// 130 when interrupted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "bench/bcast/results.h"
#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/table.h"

namespace {

using namespace rdmalloc::bench;

// Finds MPI, allocators and transports; -1 to go on, otherwise the exit status.
int prepare(CompareOptions& options, BcastResults& results) {
  results.mpi = find_mpi(options.mpirun);
  if (results.mpi.kind == Mpi::Kind::none) return refuse(options, results.mpi.problem);
  // A program speaks the MPI that it was built with, and no other launcher's.
  if (results.mpi.kind == Mpi::Kind::mpich) options.worker += "_mpich";
  if (!std::filesystem::exists(options.worker))
    return refuse(options, fmt::format("no worker for {} at {}: build the target {}",
                                       results.mpi.version, options.worker,
                                       std::filesystem::path(options.worker).filename().string()));
  AllocatorChoice allocators = choose_allocators(options.allocators);
  if (!allocators.error.empty()) return refuse(options, allocators.error);
  TransportChoice transports = choose_transports(results.mpi, options.transports);
  if (!transports.error.empty()) return refuse(options, transports.error);
  results.allocators = std::move(allocators.found);
  results.transports = std::move(transports.found);
  results.left_out = std::move(allocators.left_out);
  results.left_out.insert(results.left_out.end(), transports.left_out.begin(),
                          transports.left_out.end());
  return -1;
}

void print_choice(const CompareOptions& options, const BcastResults& results) {
  fmt::print("{}, {} ranks; {} repetitions, interleaved\n", results.mpi.version, options.ranks,
             options.repetitions);
  for (const Transport& transport : results.transports)
    fmt::print("  transport {}: {}\n", transport.name, transport.what);
  print_allocators(results.allocators, results.left_out);
}

// The tables, on standard output, and the picture, by bench/pictures/bcast_report.py from the JSON
// file: what was recorded can be told again, and is by the tests. What went wrong, or nothing.
std::string tell(const CompareOptions& options, const std::string& picture) {
  Command report;
  report.arguments = {"python3", RDMALLOC_BENCH_PICTURES "/bcast_report.py", options.json_path,
                      "--picture", picture};
  if (options.all_tables) report.arguments.emplace_back("--all");
  if (find_program("python3").empty())
    return fmt::format("no table and no picture: python3 is not installed; with it: {}",
                       fmt::join(report.arguments, " "));
  const Outcome outcome = run(report);
  fmt::print("{}", outcome.standard_output);
  if (outcome.ok()) return {};
  return fmt::format("no picture: {} {}: {}", report.arguments[1], outcome.describe(),
                     outcome.standard_error);
}

// The last lines: where it all is, and what to try next.
void print_ending(const CompareOptions& options, const std::string& picture) {
  std::error_code ignored;
  if (std::filesystem::exists(picture, ignored)) fmt::print("Picture: {}\n", picture);
  const std::string tool = options.program_folder + "/rdmalloc";
  if (!std::filesystem::exists(tool, ignored)) return;
  fmt::print("Next, your own program: {} run -- mpirun -n 2 ./program\n",
             std::filesystem::proximate(tool, ignored).string());
}

void write_reports(const CompareOptions& options, const BcastResults& results) {
  const std::string picture = options.output_folder + "/bcast.svg";
  std::error_code ignored;
  std::filesystem::remove(picture, ignored);  // no older run's under this run's tables
  const std::string problem =
      write_file(options.json_path, results_json(options, results).dump(1) + "\n");
  const std::string untold =
      problem.empty() && !results.cells.empty() ? tell(options, picture) : "";
  fmt::print("{}\n{} broadcasts, every byte checked at every rank, {} failures; {:.0f} s\n",
             bcast_failures_text(results), results.checked_broadcasts, results.failures.size(),
             results.wall_s);
  for (const std::string& text : {problem, untold})
    if (!text.empty()) fmt::print("{}\n", text);
  if (problem.empty()) fmt::print("\nJSON: {}\n", options.json_path);
  print_ending(options, picture);
}

int status_of(const CompareOptions& options, const BcastResults& results) {
  const bool rdmalloc_failed =
      std::any_of(results.failures.begin(), results.failures.end(),
                  [](const BcastFailure& failure) { return failure.allocator == "rdmalloc"; });
  const int status = exit_status(options, results.allocators,
                                 {results.interrupted, rdmalloc_failed, !results.cells.empty()});
  return status == 0 && !results.failures.empty() ? 4 : status;
}

}  // namespace

int main(int argc, char** argv) {
  CompareOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  end_children_on_interrupt();
  BcastResults results;
  if (const int status = prepare(options, results); status >= 0) return status;
  print_choice(options, results);
  if (options.list) return 0;
  run_all(options, results);
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  write_reports(options, results);
  return status_of(options, results);
}
