// micro_compare: micro_malloc under each allocator in turn, repetition by repetition; then, once a
// repetition, micro_keys, which measures the registration cache and needs no peer; with --rss-bytes
// also rss_return (docs/bench.md).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "bench/micro/results.h"
#include "bench/support/table.h"
#include "bench/support/turns.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

void add_options(CommandLine& line, MicroOptions& options, std::string& rss_bytes) {
  line.text("--base", options.base, "the allocator that ratios are taken to");
  line.text("--filter", options.filter, "a regular expression over the benchmarks' names");
  line.number("--min-time-s", options.min_time_s, 0.001, 100.0,
              "seconds of each benchmark in each run");
  line.text("--rss-bytes", rss_bytes,
            "also let each allocator use this much (as in 4G), free it, and watch it come back");
  line.flag("--quick", options.quick, "a look in seconds: one repetition, short");
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, MicroOptions& options) {
  std::string rss_bytes;
  CommandLine line("Single operations of malloc under different allocators, measured in turn.",
                   "micro_compare");
  add_options(line, options, rss_bytes);
  if (const int status = parse_driver_options(line, argc, argv, options, "micro.json"); status >= 0)
    return status;
  if (!rss_bytes.empty() && (options.rss_bytes = parse_bytes(rss_bytes)) == 0)
    return refuse(options,
                  fmt::format("--rss-bytes {}: a size is wanted, as in 512M or 4G", rss_bytes));
  if (options.quick && !line.is_given("--repetitions")) options.repetitions = 1;
  if (options.quick && !line.is_given("--min-time-s")) options.min_time_s = 0.005;
  return -1;
}

// What an item cost, in nanoseconds. Google Benchmark relates items to processor time, and to real
// time where a benchmark asks for it: what each benchmark here wants.
double nanoseconds_of(const json& benchmark) {
  const double rate = benchmark.value("items_per_second", 0.0);
  return rate > 0 ? 1e9 / rate : std::nan("");
}

// What is wrong with the output, or nothing.
std::string take_benchmarks(const MicroOptions& options, const Allocator* allocator, int repetition,
                            const Outcome& outcome, MicroResults& results) {
  // What Google Benchmark does when the filter matches nothing; the other program may have it.
  if (outcome.ok() && outcome.standard_error.find("Failed to match") != std::string::npos)
    return {};
  const json report = json::parse(outcome.standard_output, nullptr, false);
  if (report.is_discarded() || !report.contains("benchmarks")) return "no JSON came out of it";
  const std::string served_by = report.at("context").value("malloc", "");
  if (allocator != nullptr)
    if (std::string problem = served_by_another(*allocator, served_by); !problem.empty())
      return problem;
  auto& order = allocator != nullptr ? results.benchmarks : results.key_benchmarks;
  for (const json& benchmark : report.at("benchmarks")) {
    const std::string name = benchmark.at("name");
    if (benchmark.value("error_occurred", false))
      return fmt::format("{}: {}", name, benchmark.value("error_message", ""));
    if (std::find(order.begin(), order.end(), name) == order.end()) order.push_back(name);
    auto& values =
        allocator != nullptr ? results.cells[{name, allocator->name}] : results.keys[name];
    put(options, repetition, values, nanoseconds_of(benchmark));
  }
  return {};
}

std::string take_rss(const Allocator& allocator, const Outcome& outcome, RssCurve& curve) {
  std::istringstream lines(outcome.standard_output);
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line, nullptr, false);
    if (object.is_discarded()) continue;
    if (object.contains("malloc"))
      if (std::string problem = served_by_another(allocator, object.at("malloc")); !problem.empty())
        return problem;
    const std::string type = object.value("type", "");
    if (type == "peak") curve.peak_mib = object.at("mib");
    if (type == "freed" || type == "rss")
      curve.samples.emplace_back(object.at("ms"), object.at("mib"));
    if (type != "verdict") continue;
    curve.start_mib = object.at("start_mib");
    curve.end_mib = object.at("end_mib");
    curve.allowed_mib = object.at("allowed_mib");
    curve.decay_ms = object.at("decay_ms");
    curve.returned = object.at("returned");
    return {};
  }
  return "no verdict came out of it";
}

class Micro : public Comparison {
 public:
  Micro(MicroOptions& options, MicroResults& results)
      : Comparison("micro"), options_(options), results_(results) {}

  // The base of the ratios must be among those found; glibc is everywhere.
  void settle_columns() override {
    const auto is_there = [&](const std::string& name) {
      return std::any_of(results_.allocators.begin(), results_.allocators.end(),
                         [&](const Allocator& allocator) { return allocator.name == name; });
    };
    if (is_there(options_.base) || results_.allocators.empty()) return;
    const std::string instead = is_there("glibc") ? "glibc" : results_.allocators.front().name;
    note_ = fmt::format("\n  no {} in this run: ratios are to {}", options_.base, instead);
    options_.base = instead;
  }

  std::string heading() const override {
    return fmt::format("{} repetitions of at least {} s for each benchmark, interleaved{}",
                       options_.repetitions, options_.min_time_s, note_);
  }

  std::vector<Run> plan() override {
    const bool keys = std::filesystem::exists(options_.program_folder + "/micro_keys");
    if (!keys) results_.left_out.push_back({"micro_keys", "it was not built"});
    std::vector<Run> runs;
    for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
      for (const std::size_t turn : turns_of(results_.allocators.size(), repetition))
        runs.push_back(benchmarks_of("micro_malloc", &results_.allocators[turn], repetition));
      if (keys) runs.push_back(benchmarks_of("micro_keys", nullptr, repetition));
    }
    if (options_.rss_bytes != 0)
      for (const Allocator& allocator : results_.allocators) runs.push_back(rss_of(allocator));
    return runs;
  }

  bool has_measured() const override { return !results_.cells.empty() || !results_.keys.empty(); }
  std::string tables() const override { return micro_tables(options_, results_); }
  json report() const override { return micro_json(options_, results_); }
  std::string picture(const std::string& path) const override {
    return results_.cells.empty() ? "" : micro_picture(options_, results_, path);
  }

 private:
  // What has no allocator measures ours.
  Run run_of(const std::string& program, const Allocator* allocator, int repetition,
             std::vector<std::string> arguments) {
    Run run;
    run.kind = program;
    run.allocator = allocator != nullptr ? allocator->name : "rdmalloc";
    run.what = fmt::format("{} {}, repetition {}", program,
                           allocator != nullptr ? allocator->name : "", repetition + 1);
    run.title = fmt::format("{} with {}, repetition {}", program, run.allocator, repetition + 1);
    run.about = {
        {"program", program}, {"allocator", run.allocator}, {"repetition", repetition + 1}};
    run.command = command_of(options_, program, std::move(arguments), allocator);
    return run;
  }

  Run benchmarks_of(const std::string& program, const Allocator* allocator, int repetition) {
    Run run = run_of(
        program, allocator, repetition,
        {"--benchmark_format=json", fmt::format("--benchmark_min_time={}", options_.min_time_s),
         "--benchmark_filter=" + options_.filter});
    run.keep = [this, allocator, repetition](const Outcome& outcome) {
      const std::string problem =
          take_benchmarks(options_, allocator, repetition, outcome, results_);
      return outcome.ok() ? problem : ending_of(outcome, problem);
    };
    return run;
  }

  Run rss_of(const Allocator& allocator) {
    Run run =
        run_of("rss_return", &allocator, 0, {"--bytes", fmt::format("{}", options_.rss_bytes)});
    run.keep = [this, &allocator](const Outcome& outcome) -> std::string {
      RssCurve curve;
      const std::string problem = take_rss(allocator, outcome, curve);
      if (problem.empty()) results_.rss[allocator.name] = curve;
      // Exit status 1 is a verdict; a peer's is no failure, ours is one.
      if (!outcome.ok() && outcome.exit_code != 1) return ending_of(outcome, problem);
      const bool kept = problem.empty() && allocator.name == "rdmalloc" && !curve.returned;
      return kept ? "memory did not come back" : problem;
    };
    return run;
  }

  MicroOptions& options_;
  MicroResults& results_;
  std::string note_;  // where the ratios are not to the base that was asked for
};

int compare_micro(int argc, char** argv) {
  MicroOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  MicroResults results;
  Micro bench(options, results);
  const int status = compare(options, bench, results);
  if (status == 3 && results.failures.empty())
    fmt::print(stderr, "micro_compare: no benchmark matches --filter '{}'\n", options.filter);
  return status;
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_micro(argc, argv);
}
