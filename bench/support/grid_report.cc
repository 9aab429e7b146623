// The tables, the JSON file and the picture of a grid.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/support/grid.h"
#include "bench/support/report.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

constexpr const char* kOurs = "rdmalloc";

// rdmalloc itself, and columns that are rdmalloc with other settings.
bool is_ours(const std::string& allocator) {
  return allocator.rfind(kOurs, 0) == 0;
}

// NaN where the cell has no such figure.
double value_of(const GridResults& results, const Figure& figure, const std::string& row,
                const std::string& allocator) {
  const GridCell* cell = find_cell(results.cells, {row, allocator});
  const auto* values = cell == nullptr ? nullptr : find_cell(cell->figures, figure.name);
  if (values == nullptr) return std::nan("");
  const Summary summary = summarize(present(*values));
  if (summary.count == 0) return std::nan("");
  return figure.is_minimum ? summary.minimum : summary.median;
}

struct Best {
  std::string name;
  double value = std::nan("");
};

Best best_peer(const GridResults& results, const Figure& figure, const std::string& row) {
  Best best;
  for (const Allocator& allocator : results.allocators) {
    const double value = value_of(results, figure, row, allocator.name);
    if (is_ours(allocator.name) || std::isnan(value) || best.value <= value) continue;
    best = {allocator.name, value};
  }
  return best;
}

// rdmalloc's figure to the best peer's; NaN where there is none.
double ratio_of(const GridResults& results, const Figure& figure, const std::string& row) {
  const Best best = best_peer(results, figure, row);
  return best.value > 0 ? value_of(results, figure, row, kOurs) / best.value : std::nan("");
}

std::vector<std::string> groups_of(const Grid& grid) {
  std::vector<std::string> groups;
  for (const GridRow& row : grid.rows)
    if (std::find(groups.begin(), groups.end(), row.group) == groups.end())
      groups.push_back(row.group);
  return groups;
}

bool has_figure(const GridResults& results, const Figure& figure, const std::string& row) {
  return std::any_of(results.allocators.begin(), results.allocators.end(), [&](const Allocator& a) {
    return !std::isnan(value_of(results, figure, row, a.name));
  });
}

// The rows of a group that any allocator has the figure of.
std::vector<const GridRow*> rows_of(const Grid& grid, const GridResults& results,
                                    const Figure& figure, const std::string& group) {
  std::vector<const GridRow*> rows;
  for (const GridRow& row : grid.rows)
    if (row.group == group && has_figure(results, figure, row.name)) rows.push_back(&row);
  return rows;
}

// "-" where it was not to be run. What a failure is missing from is marked: those that ended may be
// the better ones.
std::string number_text(double value, int decimals, bool has_failed) {
  if (std::isnan(value)) return has_failed ? "failed" : "-";
  return fmt::format("{:.{}f}{}", value, decimals, has_failed ? "!" : "");
}

bool has_failed(const GridResults& results, const std::string& row, const std::string& allocator) {
  return std::any_of(results.failures.begin(), results.failures.end(), [&](const Failure& f) {
    return f.about.at("row") == row && f.allocator == allocator;
  });
}

// A line of a table, or a place in a panel: a row, or the rows of a section, of which the largest
// counts.
struct Line {
  std::string name;
  double x;
  std::vector<const GridRow*> rows;
};

std::vector<Line> lines_of(const std::vector<const GridRow*>& rows, bool by_section) {
  std::vector<Line> lines;
  for (const GridRow* row : rows) {
    const bool is_of_section = by_section && !row->section.empty();
    const std::string& name = is_of_section ? row->section : row->name;
    if (!is_of_section || lines.empty() || lines.back().name != name)
      lines.push_back({name, row->x, {}});
    lines.back().rows.push_back(row);
  }
  return lines;
}

// NaN where no row has a value.
template <typename ValueOf>
double largest(const Line& line, ValueOf value_of_row) {
  double most = std::nan("");
  for (const GridRow* row : line.rows)
    if (const double value = value_of_row(row->name); !std::isnan(value) && !(most >= value))
      most = value;
  return most;
}

bool has_failed(const GridResults& results, const Line& line, const std::string& allocator) {
  return std::any_of(line.rows.begin(), line.rows.end(),
                     [&](const GridRow* row) { return has_failed(results, row->name, allocator); });
}

double value_of(const GridResults& results, const Figure& figure, const Line& line,
                const std::string& allocator) {
  return largest(line,
                 [&](const std::string& row) { return value_of(results, figure, row, allocator); });
}

// With the peer's name where it is one.
std::string ratio_text(const GridResults& results, const Figure& figure, const Line& line) {
  const double ratio =
      largest(line, [&](const std::string& row) { return ratio_of(results, figure, row); });
  if (std::isnan(ratio)) return "-";
  const std::string text = fmt::format("{:.2f}", ratio);
  return line.rows.size() > 1
             ? text
             : text + " " + best_peer(results, figure, line.rows.front()->name).name;
}

std::string table_text(const GridResults& results, const Figure& figure,
                       const std::vector<const GridRow*>& rows) {
  std::vector<std::string> head = head_of(results);
  if (figure.has_ratio) head.emplace_back("rdmalloc to the best peer");
  Table table(std::move(head));
  for (const Line& line : lines_of(rows, true)) {
    std::vector<std::string> cells = {line.name};
    for (const Allocator& allocator : results.allocators)
      cells.push_back(number_text(value_of(results, figure, line, allocator.name), figure.decimals,
                                  has_failed(results, line, allocator.name)));
    if (figure.has_ratio) cells.push_back(ratio_text(results, figure, line));
    table.add(std::move(cells));
  }
  return table.text();
}

// How rdmalloc stands over all rows that it and a peer have.
std::string standing_text(const Grid& grid, const GridResults& results, const Figure& figure) {
  std::vector<double> ratios;
  std::size_t failed = 0;
  const GridRow* worst = nullptr;
  double most = 0;
  for (const GridRow& row : grid.rows) {
    failed += has_failed(results, row.name, kOurs) ? 1 : 0;
    const double ratio = ratio_of(results, figure, row.name);
    if (std::isnan(ratio)) continue;
    ratios.push_back(ratio);
    if (ratio <= most) continue;
    most = ratio;
    worst = &row;
  }
  if (worst == nullptr) return "";
  return fmt::format(
      "\n{}: rdmalloc to the best peer of each of {} rows: geometric mean {:.3f}, the worst {:.2f} "
      "({}){}\n",
      figure.title, ratios.size(), geometric_mean(ratios), most, worst->name,
      failed == 0 ? "" : fmt::format("; rdmalloc failed in {} rows", failed));
}

json cell_json(const GridCell& cell) {
  json figures = json::object();
  for (const auto& [name, values] : cell.figures)
    figures[name] = to_json(summarize(present(values)));
  return figures;
}

// ---- the picture

struct Panel {
  std::string title;
  const Figure* figure;
  std::vector<Line> places;
  bool has_lines;  // bars otherwise
};

// A logarithmic axis, where a linear one would hide all but the largest values.
bool is_wide(const GridResults& results, const Panel& panel) {
  constexpr double kWide = 20;
  double least = 0;
  double most = 0;
  for (const Line& place : panel.places)
    for (const Allocator& allocator : results.allocators) {
      const double value = value_of(results, *panel.figure, place, allocator.name);
      if (!(value > 0)) continue;
      least = least == 0 ? value : std::min(least, value);
      most = std::max(most, value);
    }
  return most > kWide * least;
}

std::vector<Panel> panels_of(const Grid& grid, const GridResults& results) {
  std::vector<Panel> panels;
  for (const Figure& figure : grid.figures) {
    if (!figure.is_drawn) continue;
    for (const std::string& group : groups_of(grid)) {
      const auto rows = rows_of(grid, results, figure, group);
      if (rows.empty()) continue;
      const bool has_lines = rows.front()->x > 0;
      panels.push_back({group, &figure, lines_of(rows, !has_lines), has_lines});
    }
  }
  return panels;
}

std::string block_of(const GridResults& results, const Panel& panel, std::size_t number) {
  std::string text = fmt::format("$p{} << EOD\n", number);
  for (const Line& place : panel.places) {
    text += gnuplot_quoted(place.name) + fmt::format(" {}", place.x);
    for (const Allocator& allocator : results.allocators) {
      const double value = value_of(results, *panel.figure, place, allocator.name);
      text += std::isnan(value) ? " NaN" : fmt::format(" {:.6g}", value);
    }
    text += "\n";
  }
  return text + "EOD\n";
}

std::string panel_text(const Grid& grid, const GridResults& results, const Panel& panel,
                       std::size_t number) {
  const bool is_logarithmic = is_wide(results, panel);
  std::string text =
      fmt::format("set title {}\nset ylabel {}\nunset logscale\n{}set yrange [{}:*]\n",
                  gnuplot_quoted(panel.title.empty() ? panel.figure->title
                                                     : panel.title + ": " + panel.figure->title),
                  gnuplot_quoted(panel.figure->unit), is_logarithmic ? "set logscale y\n" : "",
                  is_logarithmic ? "*" : "0");
  text += panel.has_lines
              ? fmt::format("set logscale x 2\nset xtics auto norotate\nset xlabel {}\n",
                            gnuplot_quoted(grid.x_label))
              : "set style data histograms\nset style histogram clustered gap 1\nset xtics "
                "rotate by -30\nset xlabel \"\"\n";
  text += "plot";
  for (std::size_t i = 0; i < results.allocators.size(); ++i) {
    const std::string& name = results.allocators[i].name;
    const bool is_there =
        std::any_of(panel.places.begin(), panel.places.end(), [&](const Line& place) {
          return !std::isnan(value_of(results, *panel.figure, place, name));
        });
    if (!is_there) continue;  // gnuplot gives up at a histogram of nothing
    const std::string block = fmt::format("$p{}", number);
    text += panel.has_lines
                ? fmt::format(" {} using 2:{} with linespoints pt 7 ps 0.4 {} title {},", block,
                              i + 3, line_style(name, i), gnuplot_quoted(name))
                : bars_of(block, 3, name, i);
  }
  text.back() = '\n';
  return text;
}

}  // namespace

std::string grid_tables(const Grid& grid, const GridResults& results) {
  std::string text;
  for (const Figure& figure : grid.figures) {
    for (const std::string& group : groups_of(grid)) {
      const auto rows = rows_of(grid, results, figure, group);
      if (rows.empty()) continue;
      text += fmt::format("\n{}{}{}{}\n{}", group, group.empty() ? "" : ": ", figure.title,
                          rows.front()->section.empty() ? "" : ", the largest of each range",
                          table_text(results, figure, rows));
    }
    if (figure.has_ratio) text += standing_text(grid, results, figure);
  }
  if (!results.failures.empty()) text += "\n! a run failed\n";
  return text + failures_text(results) + ending_text(results);
}

json grid_json(const GridOptions& options, const Grid& grid, const GridResults& results) {
  json report = report_of(options, fmt::format("rdmalloc-{}-1", grid.name), results, "details");
  report["settings"] = grid.settings;
  report["repetitions"] = options.repetitions;
  for (const GridRow& row : grid.rows)
    for (const Allocator& allocator : results.allocators) {
      const GridCell* cell = find_cell(results.cells, {row.name, allocator.name});
      if (cell == nullptr) continue;
      report["results"].push_back({{"row", row.name},
                                   {"group", row.group},
                                   {"about", row.about},
                                   {"command", row.command},
                                   {"allocator", allocator.name},
                                   {"figures", cell_json(*cell)},
                                   {"told", cell->told}});
    }
  return report;
}

std::string grid_picture(const Grid& grid, const GridResults& results, const std::string& picture) {
  const std::vector<Panel> panels = panels_of(grid, results);
  if (panels.empty()) return "";  // as of killed or not, which no figure is drawn of
  const std::size_t columns = panels.size() < 3 ? 1 : panels.size() < 13 ? 2 : 4;
  const std::size_t lines = (panels.size() + columns - 1) / columns;
  std::string script = svg_head(picture, 1800, 420 * lines) + "set grid y\nset key below\n";
  for (std::size_t i = 0; i < panels.size(); ++i) script += block_of(results, panels[i], i);
  script += fmt::format("set multiplot layout {},{}\n", lines, columns);
  for (std::size_t i = 0; i < panels.size(); ++i) script += panel_text(grid, results, panels[i], i);
  return script + "unset multiplot\n";
}

}  // namespace rdmalloc::bench
