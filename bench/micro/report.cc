// The tables, the JSON file and the picture of micro_compare.
#include "bench/support/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/micro/results.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

double ratio_to_base(const MicroOptions& options, const MicroResults& results,
                     const std::string& benchmark, const std::string& allocator) {
  return ratio_of(results.cells, {benchmark, allocator}, {benchmark, options.base},
                  std::identity());
}

// "random/1000" belongs to "random".
std::string family_of(const std::string& benchmark) {
  return benchmark.substr(0, benchmark.find('/'));
}

std::vector<std::string> families_of(const MicroResults& results) {
  std::vector<std::string> families;
  for (const std::string& benchmark : results.benchmarks)
    if (std::find(families.begin(), families.end(), family_of(benchmark)) == families.end())
      families.push_back(family_of(benchmark));
  return families;
}

double family_ratio(const MicroOptions& options, const MicroResults& results,
                    const std::string& family, const std::string& allocator) {
  std::vector<double> ratios;
  for (const std::string& benchmark : results.benchmarks)
    if (family_of(benchmark) == family)
      ratios.push_back(ratio_to_base(options, results, benchmark, allocator));
  return geometric_mean(ratios);
}

std::string time_tables(const MicroOptions& options, const MicroResults& results) {
  Table times(head_of(results));
  Table ratios(head_of(results));
  // Heaps of the user are of one allocator; there is nothing to compare them with but malloc.
  const auto missing = [](const std::string& benchmark) {
    return benchmark.starts_with("heap_") ? "none" : "failed";
  };
  for (const std::string& benchmark : results.benchmarks) {
    std::vector<std::string> time_row = {benchmark};
    std::vector<std::string> ratio_row = {benchmark};
    for (const Allocator& allocator : results.allocators) {
      const auto* values = find_cell(results.cells, {benchmark, allocator.name});
      time_row.push_back(values == nullptr ? missing(benchmark) : time_text(*values, "-"));
      ratio_row.push_back(ratio_text(ratio_to_base(options, results, benchmark, allocator.name)));
    }
    times.add(std::move(time_row));
    ratios.add(std::move(ratio_row));
  }
  for (const std::string& family : families_of(results)) {
    std::vector<std::string> row = {"= " + family};
    for (const Allocator& allocator : results.allocators)
      row.push_back(ratio_text(family_ratio(options, results, family, allocator.name)));
    ratios.add(std::move(row));
  }
  return fmt::format(
      "\ntime of one item (malloc with its free, or one growth), median ± half the range\n{}"
      "\nratio to {}, median over the repetitions; = geometric mean\n{}",
      times.text(), options.base, ratios.text());
}

std::string rss_table(const MicroResults& results) {
  if (results.rss.empty()) return "";
  Table table({"", "start", "peak", "after 3 decay times", "allowed", ""});
  const auto mib = [](double value) { return fmt::format("{:.0f} MiB", value); };
  for (const Allocator& allocator : results.allocators) {
    const auto it = results.rss.find(allocator.name);
    if (it == results.rss.end()) continue;
    const RssCurve& curve = it->second;
    table.add({allocator.name, mib(curve.start_mib), mib(curve.peak_mib), mib(curve.end_mib),
               mib(curve.allowed_mib), curve.returned ? "came back" : "kept"});
  }
  return "\nresident memory with no call after the last free\n" + table.text();
}

}  // namespace

std::string micro_tables(const MicroOptions& options, const MicroResults& results) {
  std::string text = results.benchmarks.empty() ? "" : time_tables(options, results);
  if (!results.key_benchmarks.empty()) {
    Table keys({"", "rdmalloc"});
    for (const std::string& benchmark : results.key_benchmarks)
      keys.add({benchmark, time_text(results.keys.at(benchmark), "-")});
    text += "\nregistration cache, time of one call or of one get with its put\n" + keys.text();
  }
  text += rss_table(results);
  return text + left_out_text(results) + failures_text(results) + ending_text(results);
}

json micro_json(const MicroOptions& options, const MicroResults& results) {
  json report = report_of(options, "rdmalloc-micro-1", results, "stderr");
  report["settings"] = {{"repetitions", options.repetitions},
                        {"min_time_s", options.min_time_s},
                        {"base", options.base},
                        {"filter", options.filter}};
  for (const char* list : {"keys", "rss"}) report[list] = json::array();
  for (const auto& [key, values] : results.cells)
    report["results"].push_back(
        {{"benchmark", key.first},
         {"allocator", key.second},
         {"ns", to_json(summarize(present(values)))},
         {"repetitions_ns", values},
         {"ratio_to_base", ratio_to_base(options, results, key.first, key.second)}});
  for (const auto& [name, values] : results.keys)
    report["keys"].push_back({{"benchmark", name},
                              {"ns", to_json(summarize(present(values)))},
                              {"repetitions_ns", values}});
  for (const auto& [name, curve] : results.rss)
    report["rss"].push_back({{"allocator", name},
                             {"start_mib", curve.start_mib},
                             {"peak_mib", curve.peak_mib},
                             {"end_mib", curve.end_mib},
                             {"allowed_mib", curve.allowed_mib},
                             {"decay_ms", curve.decay_ms},
                             {"returned", curve.returned},
                             {"samples_ms_mib", curve.samples}});
  return report;
}

// Bars: each family's ratio to the base. Below them, if measured, memory after the last free.
std::string micro_picture(const MicroOptions& options, const MicroResults& results,
                          const std::string& picture) {
  const bool rss = !results.rss.empty();
  Bars bars;
  for (const std::string& family : families_of(results))
    bars.emplace_back(family, of_each(results, [&](const std::string& allocator) {
                        return family_ratio(options, results, family, allocator);
                      }));
  std::string script = svg_head(picture, 1400, rss ? 900 : 480) +
                       "set style histogram clustered gap 1\nset grid y\nset key below\n" +
                       bars_block("$bars", bars);
  std::size_t index = 0;
  for (const auto& [name, curve] : results.rss) {
    script += fmt::format("$rss{} << EOD\n", index++);
    for (const auto& [ms, mib] : curve.samples) script += fmt::format("{} {}\n", ms / 1000, mib);
    script += "EOD\n";
  }
  if (rss) script += "set multiplot layout 2,1\n";
  script += fmt::format("set logscale y 2\nset title {}\n{}",
                        gnuplot_quoted("time of one item, ratio to " + options.base),
                        bars_plot("$bars", results.allocators));
  if (!rss) return script;
  script += "unset logscale y\nset yrange [0:*]\nset xlabel \"seconds after the last free\"\n";
  script += "set title \"resident memory, MiB\"\nplot";
  index = 0;
  for (const auto& [name, curve] : results.rss) {
    const auto found = std::find_if(results.allocators.begin(), results.allocators.end(),
                                    [&](const Allocator& a) { return a.name == name; });
    const auto number = static_cast<std::size_t>(found - results.allocators.begin());
    script += fmt::format(" $rss{} using 1:2 with lines {} title {},", index++,
                          line_style(name, number), gnuplot_quoted(name));
  }
  script.back() = '\n';
  return script + "unset multiplot\n";
}

}  // namespace rdmalloc::bench
