#include "bench/support/driver.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "bench/support/report.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

// A folder of peers that is always to be looked through.
constexpr const char* kPeersVariable = "RDMALLOC_BENCH_PEERS";

void add_allocator_options(CommandLine& line, DriverOptions& options) {
  line.text(
      "--allocators", options.allocator_list,
      fmt::format("of {} (default: all that are installed)", fmt::join(allocator_names(), ", ")));
  line.texts("--peer", options.allocators.peers, "a further allocator, NAME=PATH of its library");
  line.texts("--peers", options.allocators.peer_folders,
             fmt::format("a folder to look for {} in, with the folders below it (default: {})",
                         fmt::join(built_peer_names(), ", "), kPeersVariable));
  line.text("--rdmalloc", options.allocators.rdmalloc_library, "path of librdmalloc.so");
}

void add_driver_options(CommandLine& line, DriverOptions& options,
                        const std::string& default_json) {
  if (options.compares_allocators) add_allocator_options(line, options);
  line.number(
      "--repetitions", options.repetitions, 1, 1000,
      options.compares_allocators ? "runs of each allocator, in turn with the others" : "runs");
  line.number("--limit-s", options.limit_s, 1, 86'400,
              "seconds a run may take before it counts as hung");
  line.number("--backed-mib", options.backed_mib, 0, 1 << 20,
              "MiB of free memory that are written before each run, 0 for none");
  line.text("--output", options.output_folder, "folder of the picture and the JSON file");
  line.text("--json", options.json_path,
            fmt::format("the JSON file (default: {} in the folder)", default_json));
  line.flag("--list", options.list, "show what is here and what is left out, run nothing");
  line.flag("--quiet", options.quiet, "no progress");
}

}  // namespace

int parse_driver_options(CommandLine& line, int argc, char** argv, DriverOptions& options,
                         const std::string& default_json) {
  options.name = line.program();
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  options.program_folder = here.string();
  options.allocators.rdmalloc_library =
      (here / ".." / "lib" / "librdmalloc.so").lexically_normal().string();
  add_driver_options(line, options, default_json);
  if (const int status = line.parse(argc, argv); status >= 0) return status;
  options.allocators.names = split_list(options.allocator_list);
  const char* folder = std::getenv(kPeersVariable);
  if (options.allocators.peer_folders.empty() && folder != nullptr && *folder != '\0')
    options.allocators.peer_folders.emplace_back(folder);
  if (options.json_path.empty()) options.json_path = options.output_folder + "/" + default_json;
  return -1;
}

int refuse(const DriverOptions& options, const std::string& message) {
  fmt::print(stderr, "{}: {}\n", options.name, message);
  return 2;
}

void print_allocators(std::span<const Allocator> allocators, std::span<const LeftOut> left_out) {
  for (const Allocator& allocator : allocators) {
    std::string settings;
    for (const auto& [name, value] : allocator.environment)
      settings += fmt::format(" {}={}", name, value);
    const std::string build = allocator.build.empty() ? "" : fmt::format(" ({})", allocator.build);
    fmt::print("  allocator {}: {}{}{}\n", allocator.name,
               allocator.library.empty() ? "libc's own" : allocator.library, build, settings);
  }
  for (const LeftOut& missing : left_out)
    fmt::print("  LEFT OUT {}: {}\n", missing.what, missing.why);
  std::fflush(stdout);
}

nlohmann::json to_json(const Allocator& allocator) {
  return {{"name", allocator.name},
          {"library", allocator.library},
          {"build", allocator.build},
          {"environment", allocator.environment}};
}

std::string problem_of_output(const DriverOptions& options) {
  std::error_code failed;
  fs::create_directories(options.output_folder, failed);
  if (failed) return fmt::format("--output {}: {}", options.output_folder, failed.message());
  if (access(options.output_folder.c_str(), W_OK) != 0)
    return fmt::format("--output {}: {}", options.output_folder, strerrordesc_np(errno));
  // What is there of an earlier run stays until there is a new one.
  const bool is_there = fs::exists(options.json_path, failed);
  const fs::path folder = fs::path(options.json_path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, failed);
  if (!std::ofstream(options.json_path, std::ios::app))
    return fmt::format("can't write {}: {}", options.json_path, strerrordesc_np(errno));
  if (!is_there) fs::remove(options.json_path, failed);
  return {};
}

std::string json_text(const nlohmann::json& report) {
  return report.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool write_json(const DriverOptions& options, const nlohmann::json& report) {
  const std::string problem = write_file(options.json_path, json_text(report));
  if (!problem.empty())
    fmt::print(stderr, "{}: {}\n", options.name, problem);
  else
    fmt::print("\nJSON: {}\n", options.json_path);
  return problem.empty();
}

void write_picture(const std::string& picture, const std::string& script) {
  const std::string problem = draw(picture, script);
  fmt::print("{}\n", problem.empty() ? "picture: " + picture : problem);
}

int exit_status(const DriverOptions& options, std::span<const Allocator> found,
                const Ending& ending) {
  if (ending.interrupted) return 130;
  const auto& names = options.allocators.names;
  const bool wanted = std::find(names.begin(), names.end(), "rdmalloc") != names.end();
  const bool there = std::any_of(found.begin(), found.end(),
                                 [](const Allocator& a) { return a.name == "rdmalloc"; });
  if (ending.rdmalloc_failed || (wanted && !there)) return 1;
  if (!ending.measured) return 3;
  return ending.reported ? 0 : 2;
}

}  // namespace rdmalloc::bench
