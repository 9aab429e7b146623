// The tables, the JSON file and the picture of bcast_compare.
#include "bench/support/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "bench/bcast/results.h"
#include "bench/support/driver.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

using Values = std::vector<double> Measured::*;

const Measured* find_cell(const Results& results, const Cell& cell) {
  const auto it = results.cells.find(cell);
  return it == results.cells.end() ? nullptr : &it->second;
}

double ratio_of(const Results& results, const Cell& cell, const Cell& base, Values values) {
  const Measured* mine = find_cell(results, cell);
  const Measured* other = find_cell(results, base);
  return mine == nullptr || other == nullptr ? 0 : paired_ratio(mine->*values, other->*values);
}

double ratio_to_glibc(const Results& results, const Cell& cell, Values values) {
  Cell base = cell;
  base.allocator = "glibc";
  return ratio_of(results, cell, base, values);
}

double fresh_over_reused(const Results& results, const Cell& fresh, Values values) {
  Cell base = fresh;
  base.pattern = "reused";
  return ratio_of(results, fresh, base, values);
}

std::string label_of(const std::string& pattern, std::size_t bytes) {
  return bytes == 0 ? pattern : fmt::format("{} {}", pattern, bytes_text(bytes));
}

// The pattern and size of every row that any allocator has, in the order asked for.
std::vector<Cell> rows_of(const CompareOptions& options, const Results& results,
                          const std::string& transport) {
  std::vector<Cell> rows;
  for (const std::string& pattern : options.patterns) {
    std::set<std::size_t> sizes;
    for (const auto& [cell, measured] : results.cells)
      if (cell.transport == transport && cell.pattern == pattern) sizes.insert(cell.bytes);
    for (std::size_t bytes : sizes) rows.push_back({transport, pattern, bytes, ""});
  }
  return rows;
}

std::vector<std::string> head_of(const Results& results, const std::string& first) {
  std::vector<std::string> head = {first};
  for (const Allocator& allocator : results.allocators) head.push_back(allocator.name);
  return head;
}

std::string number_text(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

// Median, half the range of the repetitions, ratio to glibc.
std::string cell_text(const Results& results, const Cell& cell, Values values) {
  const Measured* measured = find_cell(results, cell);
  if (measured == nullptr) return "failed";
  const Summary summary = summarize(present(measured->*values));
  if (summary.count == 0) return "-";
  std::string text = number_text(summary.median);
  if (summary.count > 1) text += fmt::format("±{:.0f}%", half_range_percent(summary));
  const double ratio = ratio_to_glibc(results, cell, values);
  return ratio > 0 ? text + fmt::format(" {:5.2f}", ratio) : text;
}

std::string time_table(const CompareOptions& options, const Results& results,
                       const std::string& transport, Values values) {
  Table table(head_of(results, ""));
  bool any = false;
  for (Cell cell : rows_of(options, results, transport)) {
    if (values == &Measured::after_pause_us && cell.pattern != "phases") continue;
    std::vector<std::string> row = {label_of(cell.pattern, cell.bytes)};
    for (const Allocator& allocator : results.allocators) {
      cell.allocator = allocator.name;
      row.push_back(cell_text(results, cell, values));
    }
    table.add(std::move(row));
    any = true;
  }
  return any ? table.text() : "";
}

std::string fresh_table(const CompareOptions& options, const Results& results,
                        const std::string& transport) {
  Table table(head_of(results, ""));
  bool any = false;
  for (Cell cell : rows_of(options, results, transport)) {
    if (cell.pattern != "fresh") continue;
    for (const auto& [name, values] : {std::pair<const char*, Values>{"Bcast", &Measured::bcast_us},
                                       {"cycle", &Measured::cycle_us}}) {
      std::vector<std::string> row = {fmt::format("{} {}", name, bytes_text(cell.bytes))};
      for (const Allocator& allocator : results.allocators) {
        cell.allocator = allocator.name;
        const double ratio = fresh_over_reused(results, cell, values);
        any = any || ratio > 0;
        row.push_back(ratio > 0 ? fmt::format("{:.3f}", ratio) : "-");
      }
      table.add(std::move(row));
    }
  }
  return any ? table.text() : "";
}

std::string fault_table(const CompareOptions& options, const Results& results,
                        const std::string& transport) {
  Table table(head_of(results, ""));
  for (Cell cell : rows_of(options, results, transport)) {
    std::vector<std::string> row = {label_of(cell.pattern, cell.bytes)};
    for (const Allocator& allocator : results.allocators) {
      cell.allocator = allocator.name;
      const Measured* measured = find_cell(results, cell);
      row.push_back(measured == nullptr
                        ? "failed"
                        : fmt::format("{:.1f}", median(present(measured->faults_per_broadcast))));
    }
    table.add(std::move(row));
  }
  return table.text();
}

std::string failures_text(const Results& results) {
  // The end of what it said: a launcher repeats itself before, and the reason comes last.
  constexpr std::size_t kShown = 3000;
  std::string text;
  for (const Failure& failure : results.failures) {
    text += fmt::format("\nFAILED: {} {} with {}, repetition {}: {}\n", failure.transport,
                        failure.patterns, failure.allocator, failure.repetition, failure.what);
    const std::string& error = failure.standard_error;
    if (error.size() > kShown) text += "  […]\n";
    text += error.size() > kShown ? error.substr(error.size() - kShown) : error;
    if (!failure.stacks.empty()) text += "stacks at the limit:\n" + failure.stacks;
  }
  return text;
}

json summary_json(const Results& results, const Cell& cell, const Measured& measured) {
  json object = {{"transport", cell.transport},
                 {"pattern", cell.pattern},
                 {"bytes", cell.bytes},
                 {"allocator", cell.allocator},
                 {"broadcasts", measured.broadcasts},
                 {"bcast_us", to_json(summarize(present(measured.bcast_us)))},
                 {"cycle_us", to_json(summarize(present(measured.cycle_us)))},
                 {"page_faults_per_broadcast", median(present(measured.faults_per_broadcast))}};
  object["bcast_us"]["repetitions"] = measured.bcast_us;
  object["cycle_us"]["repetitions"] = measured.cycle_us;
  const auto add_ratio = [&](const char* name, double ratio) {
    if (ratio > 0) object[name] = ratio;
  };
  add_ratio("bcast_to_glibc", ratio_to_glibc(results, cell, &Measured::bcast_us));
  add_ratio("cycle_to_glibc", ratio_to_glibc(results, cell, &Measured::cycle_us));
  if (cell.pattern == "fresh") {
    add_ratio("bcast_fresh_over_reused", fresh_over_reused(results, cell, &Measured::bcast_us));
    add_ratio("cycle_fresh_over_reused", fresh_over_reused(results, cell, &Measured::cycle_us));
  }
  if (cell.pattern == "phases")
    object["first_after_pause_us"] = to_json(summarize(present(measured.after_pause_us)));
  return object;
}

// ------------------------------------------------------------------ the picture

// One block of "x y" lines for each allocator; nothing when none has any.
template <typename Value>
std::string size_data(const CompareOptions& options, const Results& results,
                      const std::string& transport, Value value) {
  std::string data;
  bool any = false;
  for (const Allocator& allocator : results.allocators) {
    data += gnuplot_quoted(allocator.name) + "\n";
    for (std::size_t bytes : options.sizes) {
      const double y = value(Cell{transport, "fresh", bytes, allocator.name});
      if (y > 0) data += fmt::format("{} {:.4f}\n", bytes, y);
      any = any || y > 0;
    }
    data += "\n\n";
  }
  return any ? data : "";
}

std::string lines_plot(const Results& results, const std::string& block) {
  std::string plot;
  for (std::size_t i = 0; i < results.allocators.size(); ++i)
    plot += fmt::format("{} {} index {} using 1:2 with linespoints pt 7 ps 0.5 {} title {}",
                        i == 0 ? "plot" : ", \\\n    ", block, i,
                        line_style(results.allocators[i].name, i),
                        gnuplot_quoted(results.allocators[i].name));
  return plot + "\n";
}

// Growing, mixed and phases: the geometric mean over the sizes of the cycle's ratio to glibc.
std::string bar_data(const CompareOptions& options, const Results& results,
                     const std::string& transport) {
  std::string data;
  for (const char* pattern : {"growing", "mixed", "phases"}) {
    std::string line = gnuplot_quoted(pattern);
    bool any = false;
    for (const Allocator& allocator : results.allocators) {
      std::vector<double> ratios;
      for (Cell cell : rows_of(options, results, transport)) {
        if (cell.pattern != pattern) continue;
        cell.allocator = allocator.name;
        ratios.push_back(ratio_to_glibc(results, cell, &Measured::cycle_us));
      }
      const double mean = geometric_mean(ratios);
      any = any || mean > 0;
      line += mean > 0 ? fmt::format(" {:.4f}", mean) : " NaN";
    }
    if (any) data += line + "\n";
  }
  return data;
}

std::string bars_plot(const Results& results, const std::string& block) {
  std::string plot;
  for (std::size_t i = 0; i < results.allocators.size(); ++i)
    plot += fmt::format("{} {} using {}:xtic(1) with histograms fs solid 0.9 {} title {}",
                        i == 0 ? "plot" : ", \\\n    ", block, i + 2,
                        line_style(results.allocators[i].name, i),
                        gnuplot_quoted(results.allocators[i].name));
  return plot + "\n";
}

std::string size_axis(const CompareOptions& options) {
  std::string ticks;
  for (std::size_t bytes : options.sizes)
    ticks +=
        fmt::format("{}{} {}", ticks.empty() ? "" : ", ", gnuplot_quoted(bytes_text(bytes)), bytes);
  return fmt::format(
      "set logscale x 2\nset xtics rotate by -30 ({})\nset xrange [{}:{}]\nset yrange [0:*]\n",
      ticks, options.sizes.front() / 2, options.sizes.back() * 2);
}

}  // namespace

std::string tables(const CompareOptions& options, const Results& results) {
  std::string text;
  for (const Transport& transport : results.transports) {
    const auto add = [&](const std::string& title, const std::string& table) {
      if (!table.empty()) text += fmt::format("\n{}: {}\n{}", transport.name, title, table);
    };
    const std::string cells = "median us ± half the range over repetitions, ratio to glibc";
    add("MPI_Bcast alone, " + cells,
        time_table(options, results, transport.name, &Measured::bcast_us));
    add("the whole cycle (malloc, write, MPI_Bcast, free), " + cells,
        time_table(options, results, transport.name, &Measured::cycle_us));
    add("the first MPI_Bcast after a pause, " + cells,
        time_table(options, results, transport.name, &Measured::after_pause_us));
    add("fresh against reused buffers, ratio", fresh_table(options, results, transport.name));
    add("page faults for each broadcast, of the rank that had most",
        fault_table(options, results, transport.name));
  }
  Table memory(head_of(results, ""));
  std::vector<std::string> row = {"MiB"};
  for (const Allocator& allocator : results.allocators) {
    const auto it = results.peak_rss_mib.find(allocator.name);
    row.push_back(it == results.peak_rss_mib.end() ? "-" : fmt::format("{:.0f}", it->second));
  }
  memory.add(std::move(row));
  text += "\npeak resident memory of a rank, the largest of all runs\n" + memory.text();
  return text + failures_text(results);
}

json results_json(const CompareOptions& options, const Results& results) {
  json report = {{"schema", "rdmalloc-bcast-1"},
                 {"host", host_description()},
                 {"mpi", results.mpi_library},
                 {"settings",
                  {{"ranks", options.ranks},
                   {"repetitions", options.repetitions},
                   {"scale", options.scale},
                   {"pause_ms", options.pause_ms},
                   {"sizes", options.sizes},
                   {"patterns", options.patterns}}},
                 {"wall_s", results.wall_s},
                 {"interrupted", results.interrupted},
                 {"broadcasts_checked", results.checked_broadcasts},
                 {"peak_rss_mib", results.peak_rss_mib}};
  for (const char* list : {"allocators", "transports", "left_out", "results", "failures"})
    report[list] = json::array();
  for (const Allocator& allocator : results.allocators)
    report["allocators"].push_back(to_json(allocator));
  for (const Transport& transport : results.transports)
    report["transports"].push_back({{"name", transport.name}, {"arguments", transport.arguments}});
  for (const LeftOut& left_out : results.left_out) report["left_out"].push_back(to_json(left_out));
  for (const auto& [cell, measured] : results.cells)
    report["results"].push_back(summary_json(results, cell, measured));
  for (const Failure& failure : results.failures)
    report["failures"].push_back({{"transport", failure.transport},
                                  {"patterns", failure.patterns},
                                  {"allocator", failure.allocator},
                                  {"repetition", failure.repetition},
                                  {"what", failure.what},
                                  {"stderr", failure.standard_error},
                                  {"stacks", failure.stacks}});
  return report;
}

std::string picture_script(const CompareOptions& options, const Results& results,
                           const std::string& picture) {
  const std::size_t rows = results.transports.size();
  std::string script = fmt::format(
      "set terminal svg noenhanced size 1500,{} font \"sans,11\" background rgb \"white\"\n"
      "set output {}\nset style data histograms\nset style histogram clustered gap 1\n"
      "set grid y\nset key below\n",
      460 * rows, gnuplot_quoted(picture));
  std::string plots;
  const auto add_panel = [&](const std::string& title, const std::string& data,
                             const std::string& block, const std::string& plot) {
    script += fmt::format("{} << EOD\n{}EOD\n", block, data);
    plots += fmt::format("set title {}\n{}", gnuplot_quoted(title),
                         data.empty() ? "set multiplot next\n" : plot);
  };
  for (std::size_t i = 0; i < rows; ++i) {
    const std::string& transport = results.transports[i].name;
    const std::string reused = fmt::format("$reused{}", i);
    const std::string glibc = fmt::format("$glibc{}", i);
    const std::string bars = fmt::format("$bars{}", i);
    plots += size_axis(options);
    add_panel(transport + ": MPI_Bcast, fresh / reused buffer",
              size_data(options, results, transport,
                        [&](const Cell& cell) {
                          return fresh_over_reused(results, cell, &Measured::bcast_us);
                        }),
              reused, lines_plot(results, reused));
    add_panel(transport + ": malloc, write, Bcast, free, x glibc",
              size_data(options, results, transport,
                        [&](const Cell& cell) {
                          return ratio_to_glibc(results, cell, &Measured::cycle_us);
                        }),
              glibc, lines_plot(results, glibc));
    plots += "unset logscale x\nset xtics rotate by 0 autofreq\nset xrange [*:*]\n";
    add_panel(transport + ": whole cycle, x glibc, mean over sizes",
              bar_data(options, results, transport), bars, bars_plot(results, bars));
  }
  return script + fmt::format("set multiplot layout {},3\n", rows) + plots + "unset multiplot\n";
}

}  // namespace rdmalloc::bench
