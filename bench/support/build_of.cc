#include "bench/support/build_of.h"

#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "bench/support/process.h"

namespace rdmalloc::bench {
namespace {

// The first line that a command prints; empty when it fails, or is not there.
std::string line_of(std::vector<std::string> arguments) {
  if (find_program(arguments.front()).empty()) return {};
  Command command;
  command.arguments = std::move(arguments);
  const Outcome outcome = run(command);
  if (!outcome.ok()) return {};
  return outcome.standard_output.substr(0, outcome.standard_output.find('\n'));
}

// Debian 12 knows some files as /lib/… that lie in /usr/lib.
std::string package_of(const std::string& file) {
  std::string line = line_of({"dpkg-query", "-S", file});
  if (line.empty() && file.rfind("/usr/", 0) == 0)
    line = line_of({"dpkg-query", "-S", file.substr(4)});
  const std::string package = line.substr(0, line.find(": "));
  if (package.empty()) return {};
  return line_of({"dpkg-query", "-W", "-f", "${Package} ${Version}\n", package});
}

// HEAD moved on after the library was built, so its commit may be an earlier one. Not within a
// minute: who commits what was just built changes nothing of it.
bool is_older_than_the_checkout(const std::filesystem::path& file, const std::string& folder) {
  constexpr auto kSoon = std::chrono::minutes(1);
  const std::string moved =  // "HEAD@{SECONDS}"
      line_of({"git", "-C", folder, "log", "-g", "-1", "--format=%gd", "--date=unix"});
  const std::size_t brace = moved.find('{');
  struct stat status {};
  if (brace == std::string::npos || stat(file.c_str(), &status) != 0) return false;
  return std::chrono::seconds(status.st_mtim.tv_sec) + kSoon <
         std::chrono::seconds(std::atoll(moved.c_str() + brace + 1));
}

}  // namespace

std::string build_of(const Allocator& allocator) {
  if (allocator.library.empty())
    return line_of({"dpkg-query", "-W", "-f", "${Package} ${Version}\n", "libc6"});
  std::error_code failed;
  const std::filesystem::path file = std::filesystem::canonical(allocator.library, failed);
  if (failed) return {};
  if (std::string package = package_of(file.string()); !package.empty()) return package;
  const std::string folder = file.parent_path().string();
  const std::string commit =
      line_of({"git", "-C", folder, "describe", "--tags", "--always", "--dirty"});
  if (commit.empty()) return {};
  return "git " + commit + (is_older_than_the_checkout(file, folder) ? " or before" : "");
}

}  // namespace rdmalloc::bench
