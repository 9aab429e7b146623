// The tables, the JSON file and the picture of latency_compare.
#include "bench/support/report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/latency/results.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

constexpr std::size_t kMedian = 0;  // of kPercentiles
constexpr std::size_t kOneInThousand = 3;

std::string row_text(const LatencyRow& row) {
  const std::string size = row.bytes == 0 ? "" : " " + bytes_text(row.bytes);
  return fmt::format("{}{}, {}, {}", row.operation, size, row.set,
                     threads_text(static_cast<std::size_t>(row.threads)));
}

std::string table(const LatencyResults& results, std::size_t percentile) {
  Table text(head_of(results));
  for (const LatencyRow& row : results.rows) {
    std::vector<std::string> cells = {row_text(row)};
    for (const Allocator& allocator : results.allocators) {
      const Latencies* latencies = find_cell(results.cells, {row, allocator.name});
      cells.push_back(latencies == nullptr ? "failed"
                                           : time_text(latencies->ns[percentile], "never"));
    }
    text.add(std::move(cells));
  }
  return text.text();
}

json cell_json(const LatencyRow& row, const std::string& allocator, const Latencies& latencies) {
  json cell = {
      {"operation", row.operation}, {"bytes", row.bytes},     {"set", row.set},
      {"threads", row.threads},     {"allocator", allocator}, {"samples", latencies.samples}};
  for (std::size_t i = 0; i < kPercentiles.size(); ++i) {
    cell["ns"][kPercentiles[i]] = to_json(summarize(present(latencies.ns[i])));
    cell["repetitions_ns"][kPercentiles[i]] = latencies.ns[i];
  }
  return cell;
}

// A panel of the picture: one operation, all sizes.
struct Panel {
  std::string operation;
  std::string set;
  int threads;
  bool operator==(const Panel&) const = default;
};

Panel panel_of(const LatencyRow& row) {
  return {row.operation, row.set, row.threads};
}

// Operation by operation: its warm and its mixed panels, of one thread and of several, stand beside
// each other.
std::vector<Panel> panels_of(const LatencyResults& results) {
  std::vector<Panel> panels;
  for (const LatencyRow& row : results.rows)
    if (row.bytes != 0 && std::find(panels.begin(), panels.end(), panel_of(row)) == panels.end())
      panels.push_back(panel_of(row));
  std::stable_sort(panels.begin(), panels.end(),
                   [](const Panel& a, const Panel& b) { return a.operation < b.operation; });
  return panels;
}

// Size, p50, p99.9; a size that never happened is a gap.
std::string points(const LatencyResults& results, const Panel& panel,
                   const std::string& allocator) {
  std::string text;
  for (const LatencyRow& row : results.rows) {
    const Latencies* latencies = find_cell(results.cells, {row, allocator});
    if (row.bytes == 0 || panel_of(row) != panel || latencies == nullptr) continue;
    text += fmt::format("{}", row.bytes);
    for (const std::size_t percentile : {kMedian, kOneInThousand}) {
      const double ns = summarize(present(latencies->ns[percentile])).median;
      text += ns > 0 ? fmt::format(" {}", ns) : " NaN";
    }
    text += "\n";
  }
  return text;
}

std::string size_tics(const LatencyResults& results) {
  std::string tics;
  for (const LatencyRow& row : results.rows) {
    const std::string tic = fmt::format("{} {}", gnuplot_quoted(bytes_text(row.bytes)), row.bytes);
    if (row.bytes != 0 && tics.find(tic) == std::string::npos)
      tics += (tics.empty() ? "" : ", ") + tic;
  }
  return fmt::format("set xtics ({}) rotate by -30\n", tics);
}

}  // namespace

std::string latency_tables(const LatencyResults& results) {
  std::string text;
  if (!results.rows.empty())
    text += fmt::format(
        "\ntime of one call, median ± half the range over the repetitions. {}: {} subtracted from "
        "each, in steps of {}\nnever: realloc always went the other way\n",
        results.timer, nanoseconds_text(median(results.timer_cost_ns)),
        nanoseconds_text(median(results.timer_step_ns)));
  for (std::size_t i = 0; i < kPercentiles.size() && !results.rows.empty(); ++i)
    text += fmt::format("\n{}\n{}", kPercentiles[i], table(results, i));
  return text + failures_text(results) + ending_text(results);
}

json latency_json(const LatencyOptions& options, const LatencyResults& results) {
  json report = report_of(options, "rdmalloc-latency-1", results, "stderr");
  report["settings"] = {{"repetitions", options.repetitions},
                        {"threads", options.threads},
                        {"scale", options.scale},
                        {"sizes", options.sizes}};
  report["timer"] = {{"name", results.timer},
                     {"cost_ns", to_json(summarize(results.timer_cost_ns))},
                     {"step_ns", to_json(summarize(results.timer_step_ns))}};
  for (const auto& [key, latencies] : results.cells)
    report["results"].push_back(cell_json(key.first, key.second, latencies));
  return report;
}

// A panel for each operation, set and number of threads: p99.9 over the size, and dashed p50.
std::string latency_picture(const LatencyResults& results, const std::string& picture) {
  const std::vector<Panel> panels = panels_of(results);
  const std::size_t rows = (panels.size() + 3) / 4;
  std::string script = svg_head(picture, 1800, 360 * rows);
  script += fmt::format(
      "set logscale x 2\nset logscale y\nset yrange [5:*]\nset grid y\n"
      "set key below maxrows 2 samplen 2 font \",9\"\nset rmargin 6\n"
      "set ylabel \"ns\"\n{}",
      size_tics(results));
  for (std::size_t panel = 0; panel < panels.size(); ++panel)
    for (std::size_t i = 0; i < results.allocators.size(); ++i)
      script += fmt::format("$p{}_{} << EOD\n{}EOD\n", panel, i,
                            points(results, panels[panel], results.allocators[i].name));
  script += fmt::format("set multiplot layout {},4\n", rows);
  for (std::size_t panel = 0; panel < panels.size(); ++panel) {
    const auto& [operation, set, threads] = panels[panel];
    script +=
        fmt::format("set title {}\nplot",
                    gnuplot_quoted(fmt::format("{}, {}, {}: p99.9, dashed p50", operation, set,
                                               threads_text(static_cast<std::size_t>(threads)))));
    for (std::size_t i = 0; i < results.allocators.size(); ++i) {
      const std::string& name = results.allocators[i].name;
      script += fmt::format(
          " $p{0}_{1} using 1:3 with linespoints pt 7 ps 0.5 {2} title {3}, $p{0}_{1} using 1:2 "
          "with linespoints pt 6 ps 0.5 {2} dt 2 "
          "notitle,",
          panel, i, line_style(name, i), gnuplot_quoted(name));
    }
    script.back() = '\n';
  }
  return script + "unset multiplot\n";
}

}  // namespace rdmalloc::bench
