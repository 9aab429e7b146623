// bcast_compare: MPI broadcasts under different allocators (docs/bench.md).
//
// Exit status: 0 when every run was right; 1 when rdmalloc failed in any (also when it was left out
// although asked for by name); 2 for wrong arguments or a machine without MPI; 3 when nothing could
// be measured; 4 when only peers failed: a finding, told apart from ours but never from success;
// 130 when interrupted.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "bench/bcast/results.h"
#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/table.h"

namespace {

using namespace rdmalloc::bench;

int refuse(const std::string& message) {
  fmt::print(stderr, "bcast_compare: {}\n", message);
  return 2;
}

// Finds MPI, allocators and transports; -1 to go on, otherwise the exit status.
int prepare(CompareOptions& options, Results& results) {
  results.mpi = find_mpi(options.mpirun);
  if (results.mpi.kind == Mpi::Kind::none) return refuse(results.mpi.problem);
  // A program speaks the MPI that it was built with, and no other launcher's.
  if (results.mpi.kind == Mpi::Kind::mpich) options.worker += "_mpich";
  if (!std::filesystem::exists(options.worker))
    return refuse(fmt::format("no worker for {} at {}: build the target {}", results.mpi.version,
                              options.worker,
                              std::filesystem::path(options.worker).filename().string()));
  AllocatorChoice allocators = choose_allocators(options.allocators);
  if (!allocators.error.empty()) return refuse(allocators.error);
  TransportChoice transports = choose_transports(results.mpi, options.transports);
  if (!transports.error.empty()) return refuse(transports.error);
  results.allocators = std::move(allocators.found);
  results.transports = std::move(transports.found);
  results.left_out = std::move(allocators.left_out);
  results.left_out.insert(results.left_out.end(), transports.left_out.begin(),
                          transports.left_out.end());
  return -1;
}

void print_choice(const CompareOptions& options, const Results& results) {
  fmt::print("{}, {} ranks; {} repetitions, interleaved\n", results.mpi.version, options.ranks,
             options.repetitions);
  for (const Allocator& allocator : results.allocators) {
    std::string settings;
    for (const auto& [name, value] : allocator.environment)
      settings += fmt::format(" {}={}", name, value);
    fmt::print("  allocator {}: {}{}\n", allocator.name,
               allocator.library.empty() ? "libc's own" : allocator.library, settings);
  }
  for (const Transport& transport : results.transports)
    fmt::print("  transport {}: {}\n", transport.name, transport.what);
  for (const LeftOut& left_out : results.left_out)
    fmt::print("  LEFT OUT {}: {}\n", left_out.what, left_out.why);
  std::fflush(stdout);
}

void write_reports(const CompareOptions& options, const Results& results) {
  const std::string json = results_json(options, results).dump(1) + "\n";
  if (const std::string problem = write_file(options.json_path, json); !problem.empty())
    fmt::print(stderr, "bcast_compare: {}\n", problem);
  else
    fmt::print("\nJSON: {}\n", options.json_path);
  const std::string picture = options.output_folder + "/bcast.svg";
  if (results.cells.empty()) return;
  if (const std::string problem = draw(picture, picture_script(options, results, picture));
      !problem.empty())
    fmt::print("{}\n", problem);
  else
    fmt::print("picture: {}\n", picture);
}

int exit_status(const CompareOptions& options, const Results& results) {
  if (results.interrupted) return 130;
  const auto is_ours = [](const std::string& name) { return name == "rdmalloc"; };
  const bool failed =
      std::any_of(results.failures.begin(), results.failures.end(),
                  [&](const Failure& failure) { return is_ours(failure.allocator); });
  const auto& names = options.allocators.names;
  const bool missing = std::any_of(names.begin(), names.end(), is_ours) &&
                       std::none_of(results.allocators.begin(), results.allocators.end(),
                                    [&](const Allocator& found) { return is_ours(found.name); });
  if (failed || missing) return 1;
  if (results.cells.empty()) return 3;
  return results.failures.empty() ? 0 : 4;
}

}  // namespace

int main(int argc, char** argv) {
  CompareOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  end_children_on_interrupt();
  Results results;
  if (const int status = prepare(options, results); status >= 0) return status;
  print_choice(options, results);
  if (options.list) return 0;
  run_all(options, results);
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("{}", tables(options, results));
  fmt::print("\n{} broadcasts, every byte checked at every rank, {} failures; {:.0f} s\n",
             results.checked_broadcasts, results.failures.size(), results.wall_s);
  write_reports(options, results);
  return exit_status(options, results);
}
