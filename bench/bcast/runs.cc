// The runs of the workers, in an order in which no allocator has the machine to itself: repetition
// by repetition, transport by transport, pattern by pattern, and within it every allocator, each
// time from another one on.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>

#include "bench/bcast/results.h"
#include "bench/support/statistics.h"
#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

// Patterns that share a worker. Fresh and reused do, because their ratio is a result; the others
// don't, because a heap that one pattern leaves behind would change the next one's.
std::vector<std::string> groups_of(const std::vector<std::string>& patterns) {
  std::vector<std::string> groups;
  for (const std::string& pattern : patterns) {
    const bool pair = pattern == "fresh" || pattern == "reused";
    const auto other = std::find_if(groups.begin(), groups.end(), [](const std::string& group) {
      return group == "fresh" || group == "reused";
    });
    if (pair && other != groups.end())
      *other = "fresh,reused";
    else
      groups.push_back(pattern);
  }
  return groups;
}

struct Step {
  int repetition;
  const Transport* transport;
  const Allocator* allocator;
  std::string group;
  std::string kind() const { return transport->name + group; }
};

Command worker_command(const CompareOptions& options, const BcastResults& results,
                       const Step& step) {
  std::vector<std::string> worker = {options.worker,
                                     "--patterns",
                                     step.group,
                                     "--sizes",
                                     fmt::format("{}", fmt::join(options.sizes, ",")),
                                     "--scale",
                                     fmt::format("{}", options.scale),
                                     "--pause-ms",
                                     fmt::format("{}", options.pause_ms)};
  if (!options.worker_fault.empty()) worker.insert(worker.end(), {"--fault", options.worker_fault});
  Command command;
  command.arguments = mpirun_command(results.mpi, options.ranks, *step.transport,
                                     preload_environment(*step.allocator), worker);
  command.environment = mpirun_environment(results.mpi);
  command.limit = std::chrono::seconds(options.limit_s);
  if (step.group == "phases") command.limit += std::chrono::milliseconds(2 * options.pause_ms);
  const std::string name = std::filesystem::path(options.worker).filename().string();
  command.on_limit = [name](pid_t pid) { return stacks_below(pid, name); };
  return command;
}

// A row must not be credited to an allocator that did not serve it: what is wrong, or nothing.
std::string mislabelled(const Allocator& allocator, const json& hello) {
  int rank = 0;
  for (const json& served_by : hello.at("malloc")) {
    if (!is_served_by(allocator, served_by.get<std::string>()))
      return fmt::format("at rank {} malloc is served by {}, not by {}", rank,
                         served_by.get<std::string>(),
                         allocator.library.empty() ? "libc" : allocator.library);
    ++rank;
  }
  const std::string settings = hello.at("settings");
  if (allocator.name == "jemalloc-bg" && settings != "background_thread")
    return "jemalloc runs without its background thread";
  return {};
}

double typical(const json& values, bool sizes_differ) {
  const auto numbers = values.get<std::vector<double>>();
  if (!sizes_differ || numbers.empty()) return median(numbers);
  double sum = 0;
  for (double number : numbers) sum += number;
  return sum / static_cast<double>(numbers.size());
}

void take_row(const CompareOptions& options, const Step& step, const json& row,
              BcastResults& results) {
  Cell cell{step.transport->name, row.at("pattern"), row.at("bytes"), step.allocator->name};
  Measured& measured = results.cells[cell];
  const auto set = [&](std::vector<double>& values, double value) {
    put(options, step.repetition, values, value);
  };
  const bool sizes_differ = cell.pattern == "mixed";
  const std::size_t count = row.at("bcast_us").size();
  set(measured.bcast_us, typical(row.at("bcast_us"), sizes_differ));
  set(measured.cycle_us, typical(row.at("cycle_us"), sizes_differ));
  if (row.contains("after_pause_us"))
    set(measured.after_pause_us, typical(row.at("after_pause_us"), false));
  set(measured.huge_pages, row.at("huge_pages").get<double>());
  if (count > 0) {
    const auto broadcasts = static_cast<double>(count);
    set(measured.faults_per_broadcast, row.at("page_faults").get<double>() / broadcasts);
    set(measured.kernel_us, row.at("kernel_us").get<double>() / broadcasts);
  }
  measured.broadcasts += count;
  results.checked_broadcasts += count;
}

// Reads the worker's lines; what is wrong with them, or nothing.
std::string take_output(const CompareOptions& options, const Step& step, const Outcome& outcome,
                        BcastResults& results) {
  std::string problem = "the worker said nothing";
  bool greeted = false;
  bool ended = false;
  std::size_t wrong_bytes = 0;
  std::istringstream lines(outcome.standard_output);
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line, nullptr, false);
    if (object.is_discarded() || !object.contains("type")) continue;
    if (object["type"] == "hello") {
      greeted = true;
      results.mpi_library = object.at("mpi");
      problem = mislabelled(*step.allocator, object);
      if (!problem.empty()) return problem;
    } else if (object["type"] == "row" && greeted) {
      wrong_bytes += object.at("wrong_bytes").get<std::size_t>();
      if (object.at("wrong_bytes") == 0) take_row(options, step, object, results);
    } else if (object["type"] == "end") {
      ended = true;
      double& peak = results.peak_rss_mib[step.allocator->name];
      peak = std::max(peak, object.at("peak_rss_kib").get<double>() / 1024);
    }
  }
  if (wrong_bytes != 0) return fmt::format("{} wrong bytes arrived", wrong_bytes);
  if (problem.empty() && !ended) problem = "the worker ended early";
  return problem;
}

std::string keep(const CompareOptions& options, const Step& step, const Outcome& outcome,
                 BcastResults& results) {
  std::string problem = take_output(options, step, outcome, results);
  // mpiexec.hydra by itself dies of SIGPIPE now and then, when its ranks have ended: 10 of 480
  // short runs on a busy machine, MPICH 4.0.2. What the worker has said to its end counts.
  if (results.mpi.kind == Mpi::Kind::mpich && outcome.signal == SIGPIPE && problem.empty())
    return {};
  // Wrong bytes and wrong labels say more than the exit status that follows from them.
  if (!outcome.ok() && (problem.find("wrong bytes") == std::string::npos || outcome.timed_out))
    return ending_of(outcome, problem);
  return problem;
}

Run run_of(const CompareOptions& options, const Step& step, BcastResults& results) {
  const std::string& allocator = step.allocator->name;
  Run run;
  run.kind = step.kind();
  run.allocator = allocator;
  run.what = fmt::format("{}: {} over {}, repetition {} of {}", allocator, step.group,
                         step.transport->name, step.repetition + 1, options.repetitions);
  run.title = fmt::format("{} {} with {}, repetition {}", step.transport->name, step.group,
                          allocator, step.repetition + 1);
  run.about = {{"transport", step.transport->name},
               {"patterns", step.group},
               {"allocator", allocator},
               {"repetition", step.repetition + 1}};
  run.command = worker_command(options, results, step);
  run.keep = [&options, &results, step](const Outcome& outcome) {
    return keep(options, step, outcome, results);
  };
  return run;
}

}  // namespace

std::vector<Run> bcast_runs(const CompareOptions& options, BcastResults& results) {
  std::vector<Run> runs;
  for (int repetition = 0; repetition < options.repetitions; ++repetition)
    for (const Transport& transport : results.transports)
      for (const std::string& group : groups_of(options.patterns)) {
        for (const std::size_t turn : turns_of(results.allocators.size(), repetition))
          runs.push_back(
              run_of(options, {repetition, &transport, &results.allocators[turn], group}, results));
      }
  return runs;
}

// What the groups take of each other, so that the time left is right before each has run: seconds
// on a virtual machine of two cores, from the first run on.
std::map<std::string, double> bcast_expected(const CompareOptions& options,
                                             const std::vector<Transport>& transports) {
  const std::map<std::string, double> usual = {
      {"fresh,reused", 2.5}, {"fresh", 2}, {"reused", 1}, {"growing", 0.7}, {"mixed", 0.7}};
  std::map<std::string, double> expected;
  for (const Transport& transport : transports)
    for (const std::string& group : groups_of(options.patterns)) {
      const double pauses_s = 2e-3 * options.pause_ms;
      expected[transport.name + group] = group == "phases" ? pauses_s + 1 : usual.at(group);
    }
  return expected;
}

}  // namespace rdmalloc::bench
