// bcast_compare: MPI broadcasts under different allocators (docs/bench.md).
//
// Exit status: 0 when every run was right; 1 when rdmalloc failed in any (also when it was left out
// although asked for by name); 2 for wrong arguments or a machine without MPI; 3 when nothing could
// be measured; 4 when only peers failed: a finding, told apart from ours but never from success;
// 130 when interrupted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "bench/bcast/results.h"
#include "bench/support/report.h"

namespace {

using namespace rdmalloc::bench;

// Finds MPI and transports; -1 to go on, otherwise the exit status.
int prepare(CompareOptions& options, BcastResults& results) {
  results.mpi = find_mpi(options.mpirun);
  if (results.mpi.kind == Mpi::Kind::none) return refuse(options, results.mpi.problem);
  // A program speaks the MPI that it was built with, and no other launcher's.
  if (results.mpi.kind == Mpi::Kind::mpich) options.worker += "_mpich";
  if (!std::filesystem::exists(options.worker))
    return refuse(options, fmt::format("no worker for {} at {}: build the target {}",
                                       results.mpi.version, options.worker,
                                       std::filesystem::path(options.worker).filename().string()));
  TransportChoice transports = choose_transports(results.mpi, options.transports);
  if (!transports.error.empty()) return refuse(options, transports.error);
  results.transports = std::move(transports.found);
  results.left_out = std::move(transports.left_out);
  return -1;
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
  const std::string name = std::filesystem::proximate(tool, ignored).string();
  fmt::print("Next, your own program: what stands in its way, then under rdmalloc\n");
  for (const char* command : {"doctor", "run"})
    fmt::print("  {} {} -- mpirun -n 2 ./program\n", name, command);
}

class Bcast : public Comparison {
 public:
  Bcast(CompareOptions& options, BcastResults& results)
      : Comparison("bcast"), options_(options), results_(results) {}

  std::string heading() const override {
    std::string text = fmt::format("{}, {} ranks; {} repetitions, interleaved",
                                   results_.mpi.version, options_.ranks, options_.repetitions);
    for (const Transport& transport : results_.transports)
      text += fmt::format("\n  transport {}: {}", transport.name, transport.what);
    return text;
  }

  std::vector<Run> plan() override { return bcast_runs(options_, results_); }
  bool has_measured() const override { return !results_.cells.empty(); }

  std::string tables() const override {
    return fmt::format(
        "{}\n{} broadcasts, every byte checked at every rank, {} failures; {:.0f} s\n",
        bcast_failures_text(results_, details_file()), results_.checked_broadcasts,
        results_.failures.size(), results_.wall_s);
  }

  nlohmann::json report() const override { return results_json(options_, results_); }

  bool write_reports(const DriverOptions& /*options*/) const override {
    const std::string picture = options_.output_folder + "/bcast.svg";
    std::error_code ignored;
    std::filesystem::remove(picture, ignored);  // no older run's under this run's tables
    std::filesystem::remove(details_file(), ignored);
    std::string problem = write_file(options_.json_path, json_text(report()));
    const bool is_written = problem.empty();
    if (problem.empty() && !results_.failures.empty())
      problem = write_file(details_file(), bcast_failure_details(results_));
    const std::string untold = problem.empty() && has_measured() ? tell(options_, picture) : "";
    fmt::print("{}", tables());
    for (const std::string& text : {problem, untold})
      if (!text.empty()) fmt::print("{}\n", text);
    if (problem.empty()) fmt::print("\nJSON: {}\n", options_.json_path);
    print_ending(options_, picture);
    return is_written;
  }

 private:
  std::string details_file() const { return options_.output_folder + "/bcast.failures.txt"; }

  const CompareOptions& options_;
  BcastResults& results_;
};

}  // namespace

int main(int argc, char** argv) {
  CompareOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  BcastResults results;
  if (const int status = prepare(options, results); status >= 0) return status;
  Bcast bench(options, results);
  const Pace pace = {.retries_after_failure = false,  // a hang costs its limit
                     .expected = bcast_expected(options, results.transports)};
  const int status = compare(options, bench, results, pace);
  return status == 0 && !results.failures.empty() ? 4 : status;
}
