#include "tools/rdmalloc/job_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <stdexcept>

namespace rdmalloc::tool {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSchema = "rdmalloc-stats-1";
// A file may say anything, and every rank below the highest is looked for.
constexpr std::int64_t kMostRanks = 1 << 24;

std::vector<fs::path> files_in(const std::string& place) {
  std::error_code error;
  if (!fs::is_directory(place, error)) {
    if (!fs::exists(place, error)) throw std::runtime_error(place + ": there is no such file");
    return {place};
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(place, error))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  if (error) throw std::runtime_error(fmt::format("{}: {}", place, error.message()));
  // In an order that does not change from one look to the next.
  std::sort(files.begin(), files.end());
  return files;
}

// Of a file named RANK.HOST.PID.json.
SilentProcess silent_by(const fs::path& file) {
  SilentProcess silent;
  silent.file = file.string();
  static const std::regex form(R"((\d{1,9}|none)\.(.+)\.(\d+)\.json)");
  std::smatch parts;
  const std::string name = file.filename().string();
  if (!std::regex_match(name, parts, form)) return silent;
  if (parts[1] != "none") silent.rank = std::stoll(parts[1]);
  if (silent.rank.value_or(0) >= kMostRanks)
    return SilentProcess{std::nullopt, "", "", silent.file};
  silent.host = parts[2];
  silent.pid = parts[3];
  return silent;
}

std::optional<std::int64_t> number_in(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::int64_t>();
}

std::string text_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

void read_lines(const fs::path& path, JobFiles& all) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("can't be read: {}", std::strerror(errno)));
  std::string line;
  bool is_empty = true;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    is_empty = false;
    json object = json::parse(line, nullptr, false);
    if (!object.is_object() || text_in(object, "schema") != kSchema) {
      all.broken.push_back(fmt::format("{}:{}: {}", path.string(), number,
                                       object.is_discarded()
                                           ? "is no whole line of statistics: the disk was full, "
                                             "or processes of several machines share the file"
                                           : "is no statistics of rdmalloc"));
      continue;
    }
    ProcessStatistics process;
    process.rank = number_in(object, "rank");
    process.ranks = number_in(object, "ranks");
    const auto is_within = [](const std::optional<std::int64_t>& one, std::int64_t most) {
      return !one || (*one >= 0 && *one <= most);
    };
    if (!is_within(process.rank, kMostRanks - 1) || !is_within(process.ranks, kMostRanks)) {
      all.broken.push_back(
          fmt::format("{}:{}: has a rank, or ranks, beyond {}", path.string(), number, kMostRanks));
      continue;
    }
    process.host = text_in(object, "host");
    process.program = text_in(object, "program");
    process.pid = number_in(object, "pid").value_or(0);
    process.counters = std::move(object);
    all.processes.push_back(std::move(process));
  }
  if (is_empty) all.silent.push_back(silent_by(path));
}

// One that can't be read is named, and the others are read. A device may have no end, and of a pipe
// that lies in a folder no writer may ever come.
void read_file(const fs::path& path, bool is_named, JobFiles& all) {
  constexpr std::uintmax_t kMost = 256 << 20;  // a process writes some 8 KiB
  std::error_code error;
  try {
    const fs::file_status status = fs::status(path, error);
    if (fs::exists(status) && !fs::is_regular_file(status) && !(is_named && fs::is_fifo(status)))
      throw std::runtime_error("is no regular file");
    if (fs::file_size(path, error) > kMost && !error)
      throw std::runtime_error("is too large for statistics");
    read_lines(path, all);
  } catch (const std::exception& problem) {
    all.broken.push_back(fmt::format("{}: {}", path.string(), problem.what()));
  }
}

}  // namespace

JobFiles read_job_files(const std::vector<std::string>& places) {
  JobFiles all;
  for (const std::string& place : places)
    for (const fs::path& file : files_in(place)) read_file(file, file == place, all);
  return all;
}

}  // namespace rdmalloc::tool
