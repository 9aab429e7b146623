#include "bench/support/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "bench/support/process.h"

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "unknown";
}

// Of "always [madvise] never" the word in brackets.
std::string chosen_of(const char* path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  const std::size_t from = text.find('[');
  const std::size_t to = text.find(']');
  return to == std::string::npos ? "unknown" : text.substr(from + 1, to - from - 1);
}

}  // namespace

nlohmann::json host_description() {
  utsname names{};
  uname(&names);
  const double pages = static_cast<double>(sysconf(_SC_PHYS_PAGES));
  const double page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
  return {{"processor", processor_name()},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"memory_gib", std::round(pages * page_bytes / (1 << 30) * 10) / 10},
          {"page_bytes", page_bytes},
          {"transparent_huge_pages", chosen_of("/sys/kernel/mm/transparent_hugepage/enabled")},
          {"kernel", fmt::format("{} {}", names.sysname, names.release)},
          {"date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)))}};
}

nlohmann::json to_json(const Summary& summary) {
  return {{"median", summary.median},
          {"minimum", summary.minimum},
          {"maximum", summary.maximum},
          {"mad", summary.mad},
          {"count", summary.count}};
}

nlohmann::json to_json(const LeftOut& left_out) {
  return {{"what", left_out.what}, {"why", left_out.why}};
}

std::string write_file(const std::string& path, const std::string& text) {
  std::error_code failed;
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) fs::create_directories(folder, failed);
  if (failed) return fmt::format("can't make the folder {}: {}", folder.string(), failed.message());
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return fmt::format("can't write {}", path);
  return {};
}

std::string draw(const std::string& picture, const std::string& script) {
  const std::string script_path = fs::path(picture).replace_extension(".gp").string();
  if (std::string problem = write_file(script_path, script); !problem.empty()) return problem;
  if (find_program("gnuplot").empty())
    return fmt::format(
        "no picture: gnuplot is not installed (apt install gnuplot-nox); its script is {}",
        script_path);
  Command gnuplot;
  gnuplot.arguments = {"gnuplot", script_path};
  const Outcome outcome = run(gnuplot);
  if (outcome.ok()) return {};
  return fmt::format("no picture: gnuplot {} {}: {}", script_path, outcome.describe(),
                     outcome.standard_error);
}

// Okabe and Ito's colours, told apart by everyone; rdmalloc is the vermilion one, drawn thick.
std::string line_style(const std::string& allocator, std::size_t number) {
  static const std::array<const char*, 7> colours = {"#000000", "#0072b2", "#56b4e9", "#009e73",
                                                     "#cc79a7", "#e69f00", "#999999"};
  const bool ours = allocator == "rdmalloc";
  return fmt::format("lc rgb \"{}\" lw {}", ours ? "#d55e00" : colours[number % colours.size()],
                     ours ? 4 : 2);
}

std::string gnuplot_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace rdmalloc::bench
