// regcache_compare: the registration cache beside UCX's, and beside the floors under both: the time
// of a look-up by the number of registrations and of threads, of an invalidation, and the memory
// that a registration takes (docs/bench.md).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "bench/regcache/results.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct Lists {
  std::string regions;
  std::string threads;
};

void add_options(CommandLine& line, RegcacheOptions& options, Lists& lists) {
  line.text("--regions", lists.regions, "live registrations (default: 1,64,1000,16000,100000)");
  line.text("--threads", lists.threads, "threads at once (default: 1,2,4)");
  line.number("--rounds", options.rounds, 1, 1000,
              "turns of each subject in a run, the median counts");
  line.number("--least", options.least, 1, 100'000'000, "look-ups of a thread in a turn, at least");
  line.number("--footprint", options.footprint, 1, 10'000'000,
              "registrations whose memory is weighed");
  line.flag("--quick", options.quick, "a look in seconds: one repetition, few look-ups");
}

// Replaces `values` unless the text is empty. False: no list of numbers from 1 to `most`.
bool parse_numbers(const std::string& text, std::vector<std::size_t>& values, std::size_t most) {
  if (text.empty()) return true;
  values.clear();
  for (const std::string& part : split_list(text)) {
    if (part.size() > 9 || part.find_first_not_of("0123456789") != std::string::npos) return false;
    values.push_back(std::stoul(part));
    if (values.back() == 0 || values.back() > most) return false;
  }
  return !values.empty();
}

void settle_quick(const CommandLine& line, RegcacheOptions& options) {
  if (!options.quick) return;
  if (!line.is_given("--repetitions")) options.repetitions = 1;
  if (!line.is_given("--regions")) options.regions = {1, 64, 1000};
  if (!line.is_given("--threads")) options.threads = {1, 2};
  if (!line.is_given("--rounds")) options.rounds = 2;
  if (!line.is_given("--least")) options.least = 1024;
  if (!line.is_given("--footprint")) options.footprint = 20'000;
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, RegcacheOptions& options) {
  Lists lists;
  CommandLine line("The registration cache beside UCX's, measured in turn.", "regcache_compare");
  add_options(line, options, lists);
  if (const int status = parse_driver_options(line, argc, argv, options, "regcache.json");
      status >= 0)
    return status;
  if (!parse_numbers(lists.regions, options.regions, 10'000'000))
    return refuse(options, fmt::format("--regions {}: numbers from 1 to 10000000 are wanted, as in "
                                       "64,1000",
                                       lists.regions));
  if (!parse_numbers(lists.threads, options.threads, 64))
    return refuse(options, fmt::format("--threads {}: numbers from 1 to 64 are wanted, as in 1,2",
                                       lists.threads));
  settle_quick(line, options);
  return -1;
}

void keep(const RegcacheOptions& options, int repetition, const json& values, Measured& measured) {
  for (const auto& [name, value] : values.items()) put(options, repetition, measured[name], value);
}

void take_line(const RegcacheOptions& options, int repetition, const json& line,
               RegcacheResults& results) {
  const std::string type = line.at("type");
  if (type == "about") {
    results.ucx = line.value("ucx", "");
    if (results.left_out.empty() && line.contains("no_ucx"))
      results.left_out.push_back({"UCX", line.at("no_ucx")});
  } else if (type == "row") {
    keep(options, repetition, line.at("ns"),
         results.rows[{line.at("threads"), line.at("order"), line.at("regions")}]);
  } else if (type == "changes") {
    keep(options, repetition, line.at("ns"), results.changes[line.at("regions")]);
  } else {
    if (type == "footprint") {
      keep(options, repetition, line.at("bytes_each"), results.bytes_each);
      keep(options, repetition, line.at("ns"), results.of_footprint);
    }
    results.counts.push_back(line);
    results.counts.back()["repetition"] = repetition + 1;
  }
}

// What is wrong with the run, or nothing: then all of its lines are taken.
std::string take(const RegcacheOptions& options, int repetition, const Outcome& outcome,
                 RegcacheResults& results) {
  if (!outcome.ok()) return outcome.describe();
  std::istringstream text(outcome.standard_output);
  for (std::string line; std::getline(text, line);) {
    const json object = json::parse(line, nullptr, false);
    if (!object.is_object()) return "no JSON: " + line;
    take_line(options, repetition, object, results);
  }
  return {};
}

class Regcache : public Comparison {
 public:
  Regcache(const RegcacheOptions& options, RegcacheResults& results)
      : Comparison("regcache"), options_(options), results_(results) {}

  std::string heading() const override {
    return fmt::format("{} numbers of registrations, {} of threads, {} repetitions, interleaved",
                       options_.regions.size(), options_.threads.size(), options_.repetitions);
  }

  std::vector<Run> plan() override {
    const std::vector<std::string> look_ups = {
        "--regions", fmt::format("{}", fmt::join(options_.regions, ",")),
        "--threads", fmt::format("{}", fmt::join(options_.threads, ",")),
        "--rounds",  fmt::format("{}", options_.rounds),
        "--least",   fmt::format("{}", options_.least)};
    const std::vector<std::string> footprint = {"--footprint",
                                                fmt::format("{}", options_.footprint)};
    std::vector<Run> runs;
    for (int repetition = 0; repetition < options_.repetitions; ++repetition) {
      runs.push_back(run_of("look-ups", look_ups, repetition));
      runs.push_back(run_of("footprint", footprint, repetition));
    }
    return runs;
  }

  bool has_measured() const override { return !results_.rows.empty(); }
  std::string tables() const override { return regcache_tables(results_); }
  json report() const override { return regcache_json(options_, results_); }
  std::string picture(const std::string& path) const override {
    return regcache_picture(results_, path);
  }

 private:
  Run run_of(const std::string& kind, const std::vector<std::string>& arguments, int repetition) {
    Run run;
    run.kind = kind;
    run.allocator = "rdmalloc";  // what fails is ours
    run.what = fmt::format("{}, repetition {}", kind, repetition + 1);
    run.title = fmt::format("repetition {}", repetition + 1);
    run.about = {{"repetition", repetition + 1}};
    run.command = command_of(options_, "regcache_worker", arguments);
    run.keep = [this, repetition](const Outcome& outcome) {
      return take(options_, repetition, outcome, results_);
    };
    return run;
  }

  const RegcacheOptions& options_;
  RegcacheResults& results_;
};

int compare_regcache(int argc, char** argv) {
  RegcacheOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  RegcacheResults results;
  Regcache bench(options, results);
  return compare(options, bench, results);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare_regcache(argc, argv);
}
