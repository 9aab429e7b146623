#include "bench/memory/cgroup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

bool holds_word(const std::string& text, const std::string& word) {
  std::istringstream words(text);
  for (std::string one; words >> one;)
    if (one == word) return true;
  return false;
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The process puts itself into the group and becomes the program there: it has no memory before.
constexpr const char* kScript =
    "group=$0-$$ && mkdir \"$group\" || exit 125\n"
    "limit=$1 limit_file=$2 swap_file=$3 swap_limit=$4 && shift 4\n"
    "echo $limit >\"$group/$limit_file\" || exit 125\n"
    "echo $swap_limit >\"$group/$swap_file\" 2>/dev/null  # there may be no account of swap\n"
    "echo $$ >\"$group/cgroup.procs\" || exit 125\n"
    "exec \"$@\"";

}  // namespace

MemoryCgroups::MemoryCgroups(Version version) {
  for (const Version wanted : {Version::v2, Version::v1}) {
    if (version != Version::any && version != wanted) continue;
    if (!find_mount(wanted)) continue;
    version_ = wanted;
    prefix_ = fmt::format("{}/rdmalloc-bench-{}", mount_, getpid());
    if (is_usable()) return;
  }
  problem_ = fmt::format("no memory controller of cgroup {} may be used here; --lab has one",
                         version == Version::any  ? "v1 or v2"
                         : version == Version::v1 ? "v1"
                                                  : "v2");
}

MemoryCgroups::~MemoryCgroups() {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(mount_, ignored))
    if (entry.path().string().rfind(prefix_ + "-", 0) == 0) rmdir(entry.path().c_str());
}

// A line of /proc/self/mounts: device, place, type, options.
bool MemoryCgroups::find_mount(Version version) {
  std::ifstream mounts("/proc/self/mounts");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string device;
    std::string type;
    std::string options;
    fields >> device >> mount_ >> type >> options;
    for (char& c : options)
      if (c == ',') c = ' ';
    if (version == Version::v1 && type == "cgroup" && holds_word(options, "memory")) return true;
    if (version == Version::v2 && type == "cgroup2" &&
        holds_word(first_line(mount_ + "/cgroup.controllers"), "memory")) {
      // For the groups below; where it is so already, or may not be, nothing changes.
      std::ofstream(mount_ + "/cgroup.subtree_control") << "+memory" << std::flush;
      return true;
    }
  }
  return false;
}

bool MemoryCgroups::is_usable() const {
  std::error_code failed;
  const std::string trial = prefix_ + "-trial";
  fs::create_directory(trial, failed);
  if (failed) return false;
  const bool has_limit = fs::exists(
      trial + (version_ == Version::v1 ? "/memory.limit_in_bytes" : "/memory.max"), failed);
  rmdir(trial.c_str());
  return has_limit;
}

std::vector<std::string> MemoryCgroups::limited(std::size_t bytes,
                                                const std::vector<std::string>& command) const {
  const std::string limit = fmt::format("{}", bytes);
  std::vector<std::string> all = {"/bin/sh", "-c", kScript, prefix_, limit};
  if (version_ == Version::v1)
    all.insert(all.end(), {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit});
  else
    all.insert(all.end(), {"memory.max", "memory.swap.max", "0"});
  all.insert(all.end(), command.begin(), command.end());
  return all;
}

}  // namespace rdmalloc::bench
