// bench_programs: every program of program_set under every allocator, repetition by repetition in
// turn: processor time and peak memory of the whole process as ratios to glibc, and their geometric
// means (docs/bench.md).
//
// Exit status: 0; 1 when rdmalloc failed, or was asked for and is not there; 2 for wrong arguments;
// 3 when nothing could be measured; 130 when interrupted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Options {
  AllocatorSearch allocators;
  std::vector<std::string> programs;
  int repetitions = 3;
  int threads = 2;
  int limit_s = 120;
  double scale = 1;
  bool list = false;
  bool quiet = false;
  std::string output_folder = "out";
  std::string json_path;
  std::string program_set;
};

// Per repetition one value, NaN where the run failed.
struct Measured {
  std::vector<double> cpu_s;
  std::vector<double> wall_s;
  std::vector<double> rss_mib;
};
using Values = std::vector<double> Measured::*;

struct Failure {
  std::string program;
  std::string allocator;
  std::string what;
  std::string details;
};

struct Results {
  std::vector<Allocator> allocators;
  std::vector<LeftOut> left_out;
  std::map<std::pair<std::string, std::string>, Measured> cells;  // by program and allocator
  std::vector<Failure> failures;
  double wall_s = 0;
  bool interrupted = false;
};

int refuse(const std::string& message) {
  fmt::print(stderr, "bench_programs: {}\n", message);
  return 2;
}

void add_options(CLI::App& app, Options& options, std::string& allocators, std::string& programs) {
  app.add_option("--programs", programs, "which, by name (default: all; --list names them)");
  app.add_option(
      "--allocators", allocators,
      fmt::format("of {} (default: all that are installed)", fmt::join(allocator_names(), ", ")));
  app.add_option("--peer", options.allocators.peers,
                 "a further allocator, NAME=PATH of its library");
  app.add_option("--rdmalloc", options.allocators.rdmalloc_library, "path of librdmalloc.so")
      ->capture_default_str();
  app.add_option("--repetitions", options.repetitions, "runs of each allocator, in turn")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "of the programs that have several")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--scale", options.scale, "times the usual work")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
  app.add_option("--limit-s", options.limit_s, "seconds a run may take before it counts as hung")
      ->check(CLI::Range(1, 86'400))
      ->capture_default_str();
  app.add_option("--output", options.output_folder, "folder of the picture and the JSON file")
      ->capture_default_str();
  app.add_option("--json", options.json_path,
                 "the JSON file (default: programs.json in the folder)");
  app.add_flag("--list", options.list, "show the programs and allocators, run nothing");
  app.add_flag("--quiet", options.quiet, "no progress");
}

// Names and manners, as the program says itself.
std::vector<std::pair<std::string, std::string>> programs_there(const Options& options) {
  Command command;
  command.arguments = {options.program_set, "--list"};
  std::vector<std::pair<std::string, std::string>> programs;
  std::istringstream lines(run(command).standard_output);
  for (std::string line; std::getline(lines, line);) {
    const json object = json::parse(line, nullptr, false);
    if (!object.is_discarded()) programs.emplace_back(object.at("name"), object.at("manner"));
  }
  return programs;
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, Options& options) {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  options.program_set = (here / "program_set").string();
  options.allocators.rdmalloc_library =
      (here / ".." / "lib" / "librdmalloc.so").lexically_normal().string();
  std::string allocators;
  std::string programs;
  CLI::App app("Whole programs under different allocators, measured in turn.", "bench_programs");
  add_options(app, options, allocators, programs);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const auto there = programs_there(options);
  if (there.empty())
    return refuse(fmt::format("no {}: build the target program_set", options.program_set));
  options.programs = split_list(programs);
  for (const std::string& name : options.programs)
    if (std::none_of(there.begin(), there.end(), [&](const auto& p) { return p.first == name; }))
      return refuse(fmt::format("--programs {}: there is none of that name; see --list", name));
  if (options.programs.empty())
    for (const auto& [name, manner] : there) options.programs.push_back(name);
  options.allocators.names = split_list(allocators);
  if (options.json_path.empty()) options.json_path = options.output_folder + "/programs.json";
  if (options.list)
    for (const auto& [name, manner] : there) fmt::print("  program {}: {}\n", name, manner);
  return -1;
}

struct Step {
  std::string program;
  const Allocator* allocator;
  int repetition;
};

std::vector<Step> plan(const Options& options, const Results& results) {
  std::vector<Step> steps;
  for (int repetition = 0; repetition < options.repetitions; ++repetition)
    for (const std::string& program : options.programs)
      for (std::size_t i = 0; i < results.allocators.size(); ++i) {
        const std::size_t turn =
            (i + static_cast<std::size_t>(repetition)) % results.allocators.size();
        steps.push_back({program, &results.allocators[turn], repetition});
      }
  return steps;
}

void run_step(const Options& options, const Step& step, Results& results) {
  Command command;
  command.arguments = {options.program_set, step.program,
                       "--threads",         fmt::format("{}", options.threads),
                       "--scale",           fmt::format("{}", options.scale)};
  command.environment = preload_environment(*step.allocator);
  command.limit = std::chrono::seconds(options.limit_s);
  command.on_limit = [](pid_t pid) { return stacks_below(pid, "program_set"); };
  const Outcome outcome = run(command);
  results.interrupted = results.interrupted || outcome.interrupted;
  if (results.interrupted) return;
  std::string problem = outcome.ok() ? "" : outcome.describe();
  const json hello = json::parse(outcome.standard_output, nullptr, false);
  const std::string served_by = hello.is_discarded() ? "nobody" : hello.value("malloc", "nobody");
  if (problem.empty() && !is_served_by(*step.allocator, served_by))
    problem = fmt::format("malloc is served by {}, not by {}", served_by, step.allocator->name);
  if (!problem.empty()) {
    results.failures.push_back({step.program, step.allocator->name, problem,
                                outcome.standard_error + outcome.limit_report});
    return;
  }
  Measured& measured = results.cells[{step.program, step.allocator->name}];
  const auto put = [&](std::vector<double>& values, double value) {
    values.resize(static_cast<std::size_t>(options.repetitions), std::nan(""));
    values[static_cast<std::size_t>(step.repetition)] = value;
  };
  put(measured.cpu_s, outcome.cpu_s);
  put(measured.wall_s, outcome.wall_s);
  put(measured.rss_mib, static_cast<double>(outcome.peak_rss_kib) / 1024);
}

void run_all(const Options& options, Results& results) {
  const std::vector<Step> steps = plan(options, results);
  std::vector<std::string> kinds;
  for (const Step& step : steps) kinds.push_back(step.program);
  Progress progress(kinds, options.quiet);
  const auto start = std::chrono::steady_clock::now();
  for (const Step& step : steps) {
    progress.begin(fmt::format("{} {}, repetition {} of {}", step.program, step.allocator->name,
                               step.repetition + 1, options.repetitions));
    run_step(options, step, results);
    progress.end();
    if (results.interrupted || interrupt_seen()) break;
  }
  progress.finish();
  results.interrupted = results.interrupted || interrupt_seen();
  results.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const Measured* find_cell(const Results& results, const std::string& program,
                          const std::string& allocator) {
  const auto it = results.cells.find({program, allocator});
  return it == results.cells.end() ? nullptr : &it->second;
}

double ratio_to_glibc(const Results& results, const std::string& program,
                      const std::string& allocator, Values values) {
  const Measured* mine = find_cell(results, program, allocator);
  const Measured* base = find_cell(results, program, "glibc");
  return mine == nullptr || base == nullptr ? 0 : paired_ratio(mine->*values, base->*values);
}

// Over the programs; 0 when one of them failed, since a mean without it would flatter.
double mean_ratio(const Options& options, const Results& results, const std::string& allocator,
                  Values values) {
  std::vector<double> ratios;
  for (const std::string& program : options.programs)
    ratios.push_back(ratio_to_glibc(results, program, allocator, values));
  if (std::any_of(ratios.begin(), ratios.end(), [](double ratio) { return ratio <= 0; })) return 0;
  return geometric_mean(ratios);
}

std::string table(const Options& options, const Results& results, Values values) {
  std::vector<std::string> head = {""};
  for (const Allocator& allocator : results.allocators) head.push_back(allocator.name);
  Table text(head);
  for (const std::string& program : options.programs) {
    std::vector<std::string> row = {program};
    for (const Allocator& allocator : results.allocators) {
      const Measured* measured = find_cell(results, program, allocator.name);
      if (measured == nullptr) {
        row.emplace_back("failed");
        continue;
      }
      const Summary summary = summarize(present(measured->*values));
      std::string cell =
          fmt::format("{:.{}f}", summary.median, values == &Measured::rss_mib ? 0 : 2);
      if (summary.count > 1) cell += fmt::format("±{:.0f}%", half_range_percent(summary));
      if (const double ratio = ratio_to_glibc(results, program, allocator.name, values); ratio > 0)
        cell += fmt::format(" {:5.2f}", ratio);
      row.push_back(cell);
    }
    text.add(std::move(row));
  }
  std::vector<std::string> means = {"= geometric mean"};
  for (const Allocator& allocator : results.allocators) {
    const double mean = mean_ratio(options, results, allocator.name, values);
    means.push_back(mean > 0 ? fmt::format("{:.3f}", mean) : "-");
  }
  text.add(std::move(means));
  return text.text();
}

json report_json(const Options& options, const Results& results) {
  json report = {{"schema", "rdmalloc-programs-1"},
                 {"host", host_description()},
                 {"settings",
                  {{"repetitions", options.repetitions},
                   {"threads", options.threads},
                   {"scale", options.scale}}},
                 {"wall_s", results.wall_s},
                 {"interrupted", results.interrupted}};
  for (const char* list : {"allocators", "left_out", "results", "means", "failures"})
    report[list] = json::array();
  for (const Allocator& allocator : results.allocators) {
    report["allocators"].push_back({{"name", allocator.name},
                                    {"library", allocator.library},
                                    {"environment", allocator.environment}});
    report["means"].push_back(
        {{"allocator", allocator.name},
         {"cpu_to_glibc", mean_ratio(options, results, allocator.name, &Measured::cpu_s)},
         {"rss_to_glibc", mean_ratio(options, results, allocator.name, &Measured::rss_mib)}});
  }
  for (const LeftOut& left_out : results.left_out) report["left_out"].push_back(to_json(left_out));
  for (const auto& [key, measured] : results.cells)
    report["results"].push_back(
        {{"program", key.first},
         {"allocator", key.second},
         {"cpu_s", to_json(summarize(present(measured.cpu_s)))},
         {"wall_s", to_json(summarize(present(measured.wall_s)))},
         {"rss_mib", to_json(summarize(present(measured.rss_mib)))},
         {"cpu_to_glibc", ratio_to_glibc(results, key.first, key.second, &Measured::cpu_s)},
         {"rss_to_glibc", ratio_to_glibc(results, key.first, key.second, &Measured::rss_mib)}});
  for (const Failure& failure : results.failures)
    report["failures"].push_back({{"program", failure.program},
                                  {"allocator", failure.allocator},
                                  {"what", failure.what},
                                  {"details", failure.details}});
  return report;
}

std::string bars(const Options& options, const Results& results, const std::string& block,
                 Values values) {
  std::string text = block + " << EOD\n";
  const auto add = [&](const std::string& name, auto ratio_of) {
    text += gnuplot_quoted(name);
    for (const Allocator& allocator : results.allocators) {
      const double ratio = ratio_of(allocator.name);
      text += ratio > 0 ? fmt::format(" {:.4f}", ratio) : " NaN";
    }
    text += "\n";
  };
  for (const std::string& program : options.programs)
    add(program, [&](const std::string& allocator) {
      return ratio_to_glibc(results, program, allocator, values);
    });
  add("MEAN", [&](const std::string& allocator) {
    return mean_ratio(options, results, allocator, values);
  });
  return text + "EOD\n";
}

std::string picture_script(const Options& options, const Results& results,
                           const std::string& picture) {
  std::string script = fmt::format(
      "set terminal svg noenhanced size 1500,900 font \"sans,11\" background rgb \"white\"\n"
      "set output {}\nset style histogram clustered gap 1\nset grid y\nset key below\n{}{}"
      "set multiplot layout 2,1\nset yrange [0:*]\n",
      gnuplot_quoted(picture), bars(options, results, "$cpu", &Measured::cpu_s),
      bars(options, results, "$rss", &Measured::rss_mib));
  for (const auto& [block, title] : {std::pair{"$cpu", "processor time, ratio to glibc"},
                                     std::pair{"$rss", "peak resident memory, ratio to glibc"}}) {
    script += fmt::format("set title {}\nplot", gnuplot_quoted(title));
    for (std::size_t i = 0; i < results.allocators.size(); ++i)
      script += fmt::format(" {} using {}:xtic(1) with histograms fs solid 0.9 {} title {},", block,
                            i + 2, line_style(results.allocators[i].name, i),
                            gnuplot_quoted(results.allocators[i].name));
    script.back() = '\n';
  }
  return script + "unset multiplot\n";
}

void print_reports(const Options& options, const Results& results) {
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("\nprocessor seconds, median ± half the range, ratio to glibc\n{}",
             table(options, results, &Measured::cpu_s));
  fmt::print("\npeak resident MiB, median ± half the range, ratio to glibc\n{}",
             table(options, results, &Measured::rss_mib));
  for (const Failure& failure : results.failures)
    fmt::print("\nFAILED: {} with {}: {}\n{}", failure.program, failure.allocator, failure.what,
               failure.details);
  fmt::print("\n{} failures; {:.0f} s\n", results.failures.size(), results.wall_s);
  const std::string text = report_json(options, results).dump(1) + "\n";
  if (const std::string problem = write_file(options.json_path, text); !problem.empty())
    fmt::print(stderr, "bench_programs: {}\n", problem);
  else
    fmt::print("\nJSON: {}\n", options.json_path);
  const std::string picture = options.output_folder + "/programs.svg";
  const bool glibc = std::any_of(results.cells.begin(), results.cells.end(),
                                 [](const auto& cell) { return cell.first.second == "glibc"; });
  if (!glibc) {
    fmt::print("no picture and no ratios: glibc is not among the allocators\n");
    return;
  }
  const std::string problem = draw(picture, picture_script(options, results, picture));
  fmt::print("{}\n", problem.empty() ? "picture: " + picture : problem);
}

int exit_status(const Options& options, const Results& results) {
  if (results.interrupted) return 130;
  const auto& names = options.allocators.names;
  const bool wanted = std::find(names.begin(), names.end(), "rdmalloc") != names.end();
  const bool there = std::any_of(results.allocators.begin(), results.allocators.end(),
                                 [](const Allocator& found) { return found.name == "rdmalloc"; });
  const bool failed = std::any_of(results.failures.begin(), results.failures.end(),
                                  [](const Failure& f) { return f.allocator == "rdmalloc"; });
  if (failed || (wanted && !there)) return 1;
  return results.cells.empty() ? 3 : 0;
}

int compare(int argc, char** argv) {
  Options options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  end_children_on_interrupt();
  AllocatorChoice choice = choose_allocators(options.allocators);
  if (!choice.error.empty()) return refuse(choice.error);
  Results results;
  results.allocators = std::move(choice.found);
  results.left_out = std::move(choice.left_out);
  fmt::print("{} programs, {} threads, {} repetitions, interleaved\n", options.programs.size(),
             options.threads, options.repetitions);
  for (const Allocator& allocator : results.allocators)
    fmt::print("  allocator {}: {}\n", allocator.name,
               allocator.library.empty() ? "libc's own" : allocator.library);
  for (const LeftOut& left_out : results.left_out)
    fmt::print("  LEFT OUT {}: {}\n", left_out.what, left_out.why);
  std::fflush(stdout);
  if (options.list) return 0;
  run_all(options, results);
  print_reports(options, results);
  return exit_status(options, results);
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare(argc, argv);
}
