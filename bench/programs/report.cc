// The tables, the JSON file and the picture of bench_programs.
#include "bench/support/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/programs/results.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"
#include "bench/support/verdict.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

double ratio_to_glibc(const ProgramsResults& results, const Key& key, Values values) {
  return ratio_of(results.cells, key, {key.first, "glibc"}, values);
}

Ratios ratios_of(const ProgramsOptions& options, const ProgramsResults& results, Values values) {
  Ratios ratios;
  for (const Row& row : options.rows) ratios.programs.push_back(row.name);
  for (const Allocator& allocator : results.allocators) ratios.allocators.push_back(allocator.name);
  for (const std::string& program : ratios.programs)
    for (const std::string& allocator : ratios.allocators)
      ratios.to_glibc[{program, allocator}] = ratio_to_glibc(results, {program, allocator}, values);
  return ratios;
}

std::string mimalloc_3_of(const ProgramsResults& results) {
  const auto found =
      std::find_if(results.allocators.begin(), results.allocators.end(), is_mimalloc_3);
  return found == results.allocators.end() ? "" : found->name;
}

std::string cell_text(const Measured* measured, Values values, double ratio) {
  if (measured == nullptr) return "failed";
  const Summary summary = summarize(present(measured->*values));
  // The runs that ended may be the better ones.
  const bool has_failed = summary.count < (measured->*values).size();
  std::string cell = fmt::format("{:.2f}{}", summary.median, has_failed ? "!" : "");
  if (summary.count > 1) cell += fmt::format("±{:.0f}%", half_range_percent(summary));
  if (ratio > 0) cell += fmt::format(" {:5.2f}", ratio);
  return cell;
}

std::string table(const ProgramsOptions& options, const ProgramsResults& results, Values values) {
  const Ratios ratios = ratios_of(options, results, values);
  Table text(head_of(results));
  for (const std::string& program : ratios.programs) {
    std::vector<std::string> row = {program};
    for (const std::string& allocator : ratios.allocators)
      row.push_back(cell_text(find_cell(results.cells, {program, allocator}), values,
                              ratios.at(program, allocator)));
    text.add(std::move(row));
  }
  std::vector<std::string> means = {"= geometric mean"};
  for (const std::string& allocator : ratios.allocators)
    means.push_back(ratio_text(ratios.mean(allocator), 3));
  text.add(std::move(means));
  return text.text() + verdict_text(judge(ratios, mimalloc_3_of(results)));
}

// What an allocator may not do while a fabric holds its lock (I1), by which threads.
std::string calls_table(const ProgramsOptions& options, const ProgramsResults& results) {
  if (!options.count_calls) return "";
  Table text(head_of(results));
  for (const Row& row : options.rows) {
    std::vector<std::string> cells = {row.name};
    for (const Allocator& allocator : results.allocators) {
      const long count = calls_giving_back(results, {row.name, allocator.name});
      cells.push_back(count < 0 ? "failed" : fmt::format("{}", count));
    }
    text.add(std::move(cells));
  }
  return "\nmadvise, munmap, mremap, process_madvise, brk and mmap(MAP_FIXED) by the program's own "
         "threads\n" +
         text.text();
}

json cells_json(const ProgramsResults& results) {
  json cells = json::array();
  for (const auto& [key, measured] : results.cells) {
    json cell = {{"program", key.first},
                 {"allocator", key.second},
                 {"cpu_s", to_json(summarize(present(measured.cpu_s)))},
                 {"wall_s", to_json(summarize(present(measured.wall_s)))},
                 {"rss_mib", to_json(summarize(present(measured.rss_mib)))}};
    for (const auto& [name, values] : {std::pair{"cpu_to_glibc", &Measured::cpu_s},
                                       std::pair{"rss_to_glibc", &Measured::rss_mib}})
      cell[name] = ratio_to_glibc(results, key, values);
    if (const auto counted = results.calls.find(key); counted != results.calls.end())
      cell["calls"] = counted->second;
    cells.push_back(std::move(cell));
  }
  return cells;
}

std::string bars(const ProgramsResults& results, const Ratios& ratios, const std::string& block) {
  Bars all;
  for (const std::string& program : ratios.programs)
    all.emplace_back(program, of_each(results, [&](const std::string& allocator) {
                       return ratios.at(program, allocator);
                     }));
  all.emplace_back("MEAN", of_each(results, [&](const std::string& allocator) {
                     return ratios.mean(allocator);
                   }));
  return bars_block(block, all);
}

}  // namespace

long calls_giving_back(const ProgramsResults& results, const Key& key) {
  const auto found = results.calls.find(key);
  if (found == results.calls.end()) return -1;
  long count = 0;
  for (const auto& [name, calls] : found->second.at("calls_of_program").items())
    if (name != "madvise(MADV_HUGEPAGE)") count += calls.get<long>();
  return count;
}

std::string programs_tables(const ProgramsOptions& options, const ProgramsResults& results) {
  const std::string text = fmt::format(
      "\nprocessor seconds, median ± half the range, ratio to glibc\n{}"
      "\npeak resident MiB, median ± half the range, ratio to glibc\n{}{}",
      table(options, results, &Measured::cpu_s), table(options, results, &Measured::rss_mib),
      calls_table(options, results));
  return text + (results.failures.empty() ? "" : "\n! a run failed\n") + failures_text(results) +
         ending_text(results);
}

json programs_json(const ProgramsOptions& options, const ProgramsResults& results) {
  const Ratios cpu = ratios_of(options, results, &Measured::cpu_s);
  const Ratios rss = ratios_of(options, results, &Measured::rss_mib);
  const std::string rival = mimalloc_3_of(results);
  json report = report_of(options, "rdmalloc-programs-2", results, "details");
  report["settings"] = {
      {"repetitions", options.repetitions}, {"threads", options.threads}, {"scale", options.scale}};
  report["verdict"] = {{"cpu", to_json(judge(cpu, rival))}, {"rss", to_json(judge(rss, rival))}};
  report["results"] = cells_json(results);
  for (const char* list : {"programs", "means"}) report[list] = json::array();
  for (const Row& row : options.rows)
    report["programs"].push_back(
        {{"name", row.name}, {"manner", row.manner}, {"command", row.command}});
  for (const Allocator& allocator : results.allocators)
    report["means"].push_back({{"allocator", allocator.name},
                               {"cpu_to_glibc", cpu.mean(allocator.name)},
                               {"rss_to_glibc", rss.mean(allocator.name)}});
  return report;
}

std::string programs_picture(const ProgramsOptions& options, const ProgramsResults& results,
                             const std::string& picture) {
  std::string script = svg_head(picture, 1800, 900) +
                       "set style histogram clustered gap 1\nset grid y\nset key below\n"
                       "set xtics rotate by -30\n" +
                       bars(results, ratios_of(options, results, &Measured::cpu_s), "$cpu") +
                       bars(results, ratios_of(options, results, &Measured::rss_mib), "$rss") +
                       "set multiplot layout 2,1\nset yrange [0:*]\n";
  for (const auto& [block, title] : {std::pair{"$cpu", "processor time, ratio to glibc"},
                                     std::pair{"$rss", "peak resident memory, ratio to glibc"}})
    script += fmt::format("set title {}\n{}", gnuplot_quoted(title),
                          bars_plot(block, results.allocators));
  return script + "unset multiplot\n";
}

}  // namespace rdmalloc::bench
