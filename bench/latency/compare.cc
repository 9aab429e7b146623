// latency_compare: how long single calls of malloc, free, calloc and realloc take, as percentiles,
// under each allocator in turn, repetition by repetition (docs/bench.md). Reported, never judged:
// on cores that others use as well, what is rare is mostly theirs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "bench/latency/results.h"
#include "bench/support/table.h"
#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

constexpr std::size_t kLargestSize = std::size_t{1} << 30;

void add_options(CommandLine& line, LatencyOptions& options, std::string& sizes) {
  line.text("--sizes", sizes, "of the blocks (default: 16,64,1K,16K,256K,4M)");
  line.number("--threads", options.threads, 2, 256,
              "that hand blocks over; each row is measured with one thread as well");
  line.number("--scale", options.scale, 0.001, 1000.0, "times the usual number of calls");
  line.flag("--quick", options.quick, "a look in seconds: one repetition, few calls");
}

// What is wrong with the list, or nothing.
std::string parse_sizes(const std::string& text, LatencyOptions& options) {
  if (text.empty()) return {};
  options.sizes.clear();
  for (const std::string& part : split_list(text)) {
    const std::size_t bytes = parse_bytes(part);
    if (bytes == 0 || bytes > kLargestSize)
      return fmt::format("--sizes {}: sizes up to 1G are wanted, as in 64,4K", part);
    options.sizes.push_back(bytes);
  }
  return options.sizes.empty() ? fmt::format("--sizes {}: there is no size", text) : "";
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, LatencyOptions& options) {
  std::string sizes;
  CommandLine line("Percentiles of single calls under different allocators, measured in turn.",
                   "latency_compare");
  add_options(line, options, sizes);
  if (const int status = parse_driver_options(line, argc, argv, options, "latency.json");
      status >= 0)
    return status;
  if (const std::string problem = parse_sizes(sizes, options); !problem.empty())
    return refuse(options, problem);
  if (options.quick && !line.is_given("--repetitions")) options.repetitions = 1;
  if (options.quick && !line.is_given("--scale")) options.scale = 0.02;
  return -1;
}

void keep(const LatencyOptions& options, const Allocator& allocator, int repetition,
          const json& line, LatencyResults& results) {
  const LatencyRow row = {line.at("operation"), line.at("bytes"), line.at("set"),
                          line.at("threads")};
  if (std::find(results.rows.begin(), results.rows.end(), row) == results.rows.end())
    results.rows.push_back(row);
  Latencies& latencies = results.cells[{row, allocator.name}];
  const double samples = line.at("samples");
  put(options, repetition, latencies.samples, samples);
  for (std::size_t i = 0; i < kPercentiles.size(); ++i) {
    const double ns = line.at("ns").at(i);
    put(options, repetition, latencies.ns[i], samples > 0 ? ns : std::nan(""));
  }
}

// What is wrong with the run, or nothing: then all of its rows are taken.
std::string take(const LatencyOptions& options, const Allocator& allocator, int repetition,
                 const Outcome& outcome, LatencyResults& results) {
  if (!outcome.ok()) return outcome.describe();
  std::vector<json> lines;
  std::istringstream text(outcome.standard_output);
  for (std::string line; std::getline(text, line);) {
    lines.push_back(json::parse(line, nullptr, false));
    if (!lines.back().is_object()) return "no JSON: " + line;
  }
  const std::string served_by = lines.empty() ? "none" : lines[0].value("malloc", "none");
  if (std::string problem = served_by_another(allocator, served_by); !problem.empty())
    return problem;
  results.timer = lines[0].at("timer");
  results.timer_cost_ns.push_back(lines[0].at("timer_cost_ns"));
  results.timer_step_ns.push_back(lines[0].at("timer_step_ns"));
  for (std::size_t i = 1; i < lines.size(); ++i)
    keep(options, allocator, repetition, lines[i], results);
  return {};
}

class Latency : public Comparison {
 public:
  Latency(const LatencyOptions& options, LatencyResults& results)
      : Comparison("latency"), options_(options), results_(results) {}

  std::string heading() const override {
    return fmt::format("{} sizes, 1 and {} threads, {} repetitions, interleaved",
                       options_.sizes.size(), options_.threads, options_.repetitions);
  }

  std::vector<Run> plan() override {
    std::vector<Run> runs;
    for (int repetition = 0; repetition < options_.repetitions; ++repetition)
      for (const std::size_t turn : turns_of(results_.allocators.size(), repetition))
        runs.push_back(run_of(results_.allocators[turn], repetition));
    return runs;
  }

  bool has_measured() const override { return !results_.cells.empty(); }
  std::string tables() const override { return latency_tables(results_); }
  json report() const override { return latency_json(options_, results_); }
  std::string picture(const std::string& path) const override {
    return latency_picture(results_, path);
  }

 private:
  Run run_of(const Allocator& allocator, int repetition) {
    Run run;
    run.kind = run.allocator = allocator.name;
    run.title = fmt::format("{}, repetition {}", allocator.name, repetition + 1);
    run.what = fmt::format("{} of {}", run.title, options_.repetitions);
    run.about = {{"allocator", allocator.name}, {"repetition", repetition + 1}};
    run.command = command_of(options_, "latency_worker",
                             {"--threads", fmt::format("{}", options_.threads), "--scale",
                              fmt::format("{}", options_.scale), "--sizes",
                              fmt::format("{}", fmt::join(options_.sizes, ","))},
                             &allocator);
    run.keep = [this, &allocator, repetition](const Outcome& outcome) {
      return take(options_, allocator, repetition, outcome, results_);
    };
    return run;
  }

  const LatencyOptions& options_;
  LatencyResults& results_;
};

int compare_latency(int argc, char** argv) {
  LatencyOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  LatencyResults results;
  Latency bench(options, results);
  return compare(options, bench, results);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_latency(argc, argv);
}
