// bench_all: every comparison one after the other with the same allocators; their tables on the
// terminal, one page with tables and pictures (index.html) and one JSON file of all
// (docs/bench.md).
//
// Exit status: 0; 1 when rdmalloc failed in any; 2 for wrong arguments; 3 when a part measured
// nothing; 4 when only peers failed; 130 when interrupted.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "bench/support/driver.h"
#include "bench/support/process.h"
#include "bench/support/report.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

struct Part {
  const char* name;
  const char* program;
  const char* json_name;
  const char* picture;  // empty: it draws none
  std::vector<std::string> quick;
};

const std::vector<Part>& all_parts() {
  static const std::vector<Part> parts = {
      {"startup", "startup_compare", "startup.json", "", {"--repetitions", "11"}},
      {"micro", "micro_compare", "micro.json", "micro.svg", {"--quick"}},
      {"latency", "latency_compare", "latency.json", "latency.svg", {"--quick"}},
      {"programs",
       "bench_programs",
       "programs.json",
       "programs.svg",
       {"--repetitions", "1", "--scale", "0.02", "--traces", "none"}},
      {"threads", "bench_threads", "threads.json", "threads.svg", {"--quick"}},
      {"cores", "bench_cores", "cores.json", "cores.svg", {"--quick"}},
      {"memory",
       "bench_memory",
       "memory.json",
       "memory.svg",
       {"--quick", "--parts", "sizes,small"}},
      {"bcast", "bcast_compare", "bcast.json", "bcast.svg", {"--quick"}},
  };
  return parts;
}

std::string part_names() {
  std::vector<std::string> names;
  for (const Part& part : all_parts()) names.emplace_back(part.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

struct AllOptions : DriverOptions {
  bool quick = false;
  std::vector<const Part*> parts;
};

struct Done {
  const Part* part;
  int status;
  std::string text;
};

// What every part is given as we were.
std::vector<std::string> common_arguments(const AllOptions& options, const CommandLine& line) {
  std::vector<std::string> arguments = {"--quiet", "--output", options.output_folder};
  const auto pass_on = [&](const char* option, const std::string& value) {
    arguments.insert(arguments.end(), {option, value});
  };
  pass_on("--rdmalloc", options.allocators.rdmalloc_library);
  if (!options.allocator_list.empty()) pass_on("--allocators", options.allocator_list);
  for (const std::string& peer : options.allocators.peers) pass_on("--peer", peer);
  for (const std::string& folder : options.allocators.peer_folders) pass_on("--peers", folder);
  for (const char* option : {"--repetitions", "--limit-s", "--backed-mib"})
    if (line.is_given(option)) pass_on(option, line.as_given(option));
  return arguments;
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (char c : text) safe += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return safe;
}

std::string page_of(const AllOptions& options, const std::vector<Done>& done) {
  std::error_code ignored;
  std::string page =
      "<!doctype html><meta charset=\"utf-8\"><title>rdmalloc and its peers</title>\n";
  for (const Done& part : done) {
    page += fmt::format("<h2>{}</h2>\n", part.part->program);
    if (*part.part->picture != '\0' &&
        std::filesystem::exists(options.output_folder + "/" + part.part->picture, ignored))
      page += fmt::format("<img src=\"{}\" alt=\"{}\">\n", part.part->picture, part.part->name);
    page += fmt::format("<pre>{}</pre>\n", escaped(part.text));
  }
  return page;
}

json report_of(const AllOptions& options, const std::vector<Done>& done) {
  json report = {{"schema", "rdmalloc-bench-1"}, {"host", host_description()}};
  for (const Done& part : done) {
    std::ifstream file(options.output_folder + "/" + part.part->json_name);
    json of_part = json::parse(file, nullptr, false);
    if (of_part.is_discarded()) of_part = nullptr;  // there is none
    report["parts"][part.part->name] = {{"status", part.status}, {"report", std::move(of_part)}};
  }
  return report;
}

// The worst of them, ours before the peers'.
int status_of(const std::vector<Done>& done) {
  for (const int status : {130, 1, 2, 3, 4})
    if (std::any_of(done.begin(), done.end(), [&](const Done& d) { return d.status == status; }))
      return status;
  return std::all_of(done.begin(), done.end(), [](const Done& d) { return d.status == 0; }) ? 0 : 1;
}

Done run_part(const AllOptions& options, const Part& part,
              const std::vector<std::string>& arguments) {
  // What a run before left is not this one's.
  std::error_code ignored;
  for (const char* name : {part.json_name, part.picture})
    if (*name != '\0') std::filesystem::remove(options.output_folder + "/" + name, ignored);
  fmt::print("\n=== {}\n", part.program);
  std::fflush(stdout);
  Command command;
  command.arguments = {options.program_folder + "/" + part.program};
  // The part's own come first: what was asked for here takes the place of a quick part's.
  std::vector<std::string> given = arguments;
  if (options.quick)
    for (std::size_t i = 0; i < part.quick.size(); ++i) {
      const bool has_value = i + 1 < part.quick.size() && part.quick[i + 1].rfind("--", 0) != 0;
      const bool is_given =
          std::find(arguments.begin(), arguments.end(), part.quick[i]) != arguments.end();
      if (!is_given)
        given.insert(given.end(), part.quick.begin() + static_cast<std::ptrdiff_t>(i),
                     part.quick.begin() + static_cast<std::ptrdiff_t>(i + (has_value ? 2 : 1)));
      i += has_value ? 1 : 0;
    }
  command.arguments.insert(command.arguments.end(), given.begin(), given.end());
  command.limit = std::chrono::hours(24);  // each part has limits of its own
  command.on_line = [](std::string_view line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  const Outcome outcome = run(command);
  fmt::print(stderr, "{}", outcome.standard_error);
  const int status = outcome.interrupted ? 130 : outcome.exit_code;
  return {&part, status, outcome.standard_output + outcome.standard_error};
}

// -1 to go on, otherwise the exit status.
int choose_parts(const std::string& names, AllOptions& options) {
  for (const Part& part : all_parts()) {
    const std::vector<std::string> wanted = split_list(names);
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), part.name) == wanted.end())
      continue;
    if (std::filesystem::exists(options.program_folder + "/" + part.program))
      options.parts.push_back(&part);
    else
      fmt::print("  LEFT OUT {}: {} was not built\n", part.name, part.program);
  }
  for (const std::string& name : split_list(names))
    if (std::none_of(all_parts().begin(), all_parts().end(),
                     [&](const Part& part) { return part.name == name; }))
      return refuse(options, fmt::format("--parts {}: there are {}", name, part_names()));
  return options.parts.empty() ? 3 : -1;
}

int run_all(int argc, char** argv) {
  AllOptions options;
  std::string parts;
  CommandLine line("Every comparison, one after the other, in one report.", "bench_all");
  line.text("--parts", parts, fmt::format("of {} (default: all)", part_names()));
  line.flag("--quick", options.quick, "a look in a minute: does it work?");
  if (const int status = parse_driver_options(line, argc, argv, options, "bench.json"); status >= 0)
    return status;
  if (const int status = choose_parts(parts, options); status >= 0) return status;
  end_children_on_interrupt();
  AllocatorChoice choice = choose_allocators(options.allocators);
  if (!choice.error.empty()) return refuse(options, choice.error);
  print_allocators(choice.found, choice.left_out);
  if (options.list) return 0;
  if (const std::string problem = problem_of_output(options); !problem.empty())
    return refuse(options, problem);
  const std::vector<std::string> arguments = common_arguments(options, line);
  std::vector<Done> done;
  for (const Part* part : options.parts) {
    done.push_back(run_part(options, *part, arguments));
    if (interrupt_seen()) break;
  }
  const std::string page = options.output_folder + "/index.html";
  if (const std::string problem = write_file(page, page_of(options, done)); !problem.empty())
    fmt::print(stderr, "bench_all: {}\n", problem);
  else
    fmt::print("\ntables and pictures: {}", page);
  const bool is_reported = write_json(options, report_of(options, done));
  const int status = status_of(done);
  return status == 0 && !is_reported ? 2 : status;
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::run_all(argc, argv);
}
