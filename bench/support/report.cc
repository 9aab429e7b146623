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
#include "bench/support/table.h"

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

std::map<std::string, std::string> settings_of_malloc() {
  std::map<std::string, std::string> settings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    for (const char* prefix : {"MALLOC_", "GLIBC_TUNABLES=", "RDMALLOC_", "MIMALLOC_", "TCMALLOC_",
                               "SCUDO_OPTIONS=", "RPMALLOC_"})
      if (text.rfind(prefix, 0) == 0 && text.rfind("RDMALLOC_BENCH_", 0) != 0)
        settings[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  return settings;
}

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
          {"settings_of_malloc", settings_of_malloc()},
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

std::string ratio_text(double ratio, int decimals) {
  return ratio > 0 ? fmt::format("{:.{}f}", ratio, decimals) : "-";
}

std::string threads_text(std::size_t threads) {
  return threads == 1 ? "1 thread" : fmt::format("{} threads", threads);
}

std::string time_text(const std::vector<double>& ns, const std::string& missing) {
  const Summary summary = summarize(present(ns));
  if (summary.count == 0) return missing;
  std::string text = nanoseconds_text(summary.median);
  if (summary.count > 1) text += fmt::format(" ±{:.0f}%", half_range_percent(summary));
  return text;
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

std::string svg_head(const std::string& picture, std::size_t width, std::size_t height) {
  return fmt::format(
      "set terminal svg noenhanced size {},{} font \"sans,11\" background rgb \"white\"\n"
      "set output {}\n",
      width, height, gnuplot_quoted(picture));
}

// Okabe and Ito's colours, told apart by everyone; rdmalloc is the vermilion one, drawn thick.
std::string line_style(const std::string& allocator, std::size_t number) {
  static const std::array<const char*, 7> colours = {"#000000", "#0072b2", "#56b4e9", "#009e73",
                                                     "#cc79a7", "#e69f00", "#999999"};
  const bool ours = allocator == "rdmalloc";
  return fmt::format("lc rgb \"{}\" lw {}", ours ? "#d55e00" : colours[number % colours.size()],
                     ours ? 4 : 2);
}

std::string bars_block(const std::string& block, const Bars& bars) {
  std::string text = block + " << EOD\n";
  for (const auto& [name, values] : bars) {
    text += gnuplot_quoted(name);
    for (const double value : values) text += value > 0 ? fmt::format(" {:.4f}", value) : " NaN";
    text += "\n";
  }
  return text + "EOD\n";
}

std::string bars_of(const std::string& block, std::size_t first_column,
                    const std::string& allocator, std::size_t number) {
  return fmt::format(" {} using {}:xtic(1) with histograms fs solid 0.9 {} title {},", block,
                     first_column + number, line_style(allocator, number),
                     gnuplot_quoted(allocator));
}

std::string bars_plot(const std::string& block, std::span<const Allocator> allocators) {
  std::string text = "plot";
  for (std::size_t i = 0; i < allocators.size(); ++i)
    text += bars_of(block, 2, allocators[i].name, i);
  text.back() = '\n';
  return text;
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
