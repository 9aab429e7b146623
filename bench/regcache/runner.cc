#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cmath>
#include <sstream>

#include "bench/regcache/results.h"
#include "bench/support/process.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

Command command_of(const RegcacheOptions& options, bool is_footprint) {
  Command command;
  command.arguments = {options.program_folder + "/regcache_worker"};
  const auto add = [&](const char* name, const std::string& value) {
    command.arguments.insert(command.arguments.end(), {name, value});
  };
  if (is_footprint) {
    add("--footprint", fmt::format("{}", options.footprint));
  } else {
    add("--regions", fmt::format("{}", fmt::join(options.regions, ",")));
    add("--threads", fmt::format("{}", fmt::join(options.threads, ",")));
    add("--rounds", fmt::format("{}", options.rounds));
    add("--least", fmt::format("{}", options.least));
  }
  command.limit = std::chrono::seconds(options.limit_s);
  command.on_limit = [](pid_t pid) { return stacks_below(pid, "regcache_worker"); };
  return command;
}

void keep(const RegcacheOptions& options, int repetition, const json& values, Measured& measured) {
  for (const auto& [name, value] : values.items()) {
    auto& all = measured[name];
    all.resize(static_cast<std::size_t>(options.repetitions), std::nan(""));
    all[static_cast<std::size_t>(repetition)] = value;
  }
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
    if (type == "footprint") keep(options, repetition, line.at("bytes_each"), results.bytes_each);
    results.counts.push_back(line);
    results.counts.back()["repetition"] = repetition + 1;
  }
}

// What is wrong with the run, or nothing: then all of its lines are taken.
std::string take(const RegcacheOptions& options, int repetition, const Outcome& outcome,
                 RegcacheResults& results) {
  if (!outcome.ok())
    return outcome.describe() + "\n" + outcome.standard_error + outcome.limit_report;
  std::istringstream text(outcome.standard_output);
  for (std::string line; std::getline(text, line);) {
    const json object = json::parse(line, nullptr, false);
    if (!object.is_object()) return "no JSON: " + line;
    take_line(options, repetition, object, results);
  }
  return {};
}

}  // namespace

void run_regcache(const RegcacheOptions& options, RegcacheResults& results) {
  std::vector<std::string> kinds;
  for (int repetition = 0; repetition < options.repetitions; ++repetition)
    kinds.insert(kinds.end(), {"look-ups", "footprint"});
  Progress progress(kinds, options.quiet);
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t step = 0; step < kinds.size() && !results.interrupted; ++step) {
    const int repetition = static_cast<int>(step / 2);
    progress.begin(fmt::format("{}, repetition {}", kinds[step], repetition + 1));
    const Outcome outcome = run(command_of(options, step % 2 == 1));
    results.interrupted = outcome.interrupted || interrupt_seen();
    if (results.interrupted) break;
    if (std::string problem = take(options, repetition, outcome, results); !problem.empty())
      results.failures.emplace_back(repetition + 1, std::move(problem));
    progress.end();
  }
  progress.finish();
  results.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace rdmalloc::bench
