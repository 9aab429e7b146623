#include "bench/memory/lab.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace rdmalloc::bench {
namespace {

constexpr const char* kInLab = "RDMALLOC_BENCH_IN_LAB";  // set there

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

std::string mount_command(const std::string& version) {
  if (version == "v1") return "mkdir -p /run/cgroup && mount -t cgroup -o memory none /run/cgroup";
  return "mkdir -p /run/cgroup && mount -t cgroup2 none /run/cgroup";
}

}  // namespace

bool is_in_lab() {
  return std::getenv(kInLab) != nullptr;
}

std::string become_lab(const LabRun& run, const std::vector<std::string>& arguments) {
  std::string script = mount_command(run.cgroup);
  if (!run.huge_pages.empty())
    script +=
        fmt::format(" && echo {} >/sys/kernel/mm/transparent_hugepage/enabled", run.huge_pages);
  script += fmt::format(" && {}=1 exec", kInLab);
  for (const std::string& argument : arguments) script += " " + quoted(argument);

  std::error_code failed;
  std::filesystem::create_directories(run.output_folder, failed);
  if (failed) return fmt::format("--output {}: {}", run.output_folder, failed.message());
  const std::string folder = std::filesystem::canonical(run.output_folder, failed).string();
  std::vector<std::string> words = {RDMALLOC_LAB, "--rdma",  "none",  "--memory",
                                    run.memory,   "--limit", "86400", "--share",
                                    folder,       "run",     script};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return fmt::format("{}: {}", RDMALLOC_LAB, std::strerror(errno));
}

}  // namespace rdmalloc::bench
