// The tables, the JSON file and the picture of regcache_compare.
#include "bench/support/report.h"

#include <fmt/format.h>

#include "bench/regcache/results.h"
#include "bench/support/statistics.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

std::string cell_text(const Measured& measured, const std::string& name) {
  const auto* values = find_cell(measured, name);
  return values == nullptr ? "-" : time_text(*values, "failed");
}

// What the columns of ratios compare; the first is divided by the second.
struct Ratio {
  const char* column;
  const char* name;
  const char* base;
};
constexpr std::array<Ratio, 6> kRatios = {{{"reg_key/load", "key", "load"},
                                           {"chained", "key_chained", "load_chained"},
                                           {"get+put/count", "get_put", "count"},
                                           {"get+put/apart", "get_put", "get_put_apart"},
                                           {"UCX/get+put", "ucx", "get_put"},
                                           {"foreign/UCX", "foreign", "ucx"}}};

double ratio_of(const Measured& measured, const Ratio& ratio) {
  return bench::ratio_of(measured, ratio.name, ratio.base, std::identity());
}

std::string hit_tables(const RegcacheResults& results) {
  std::vector<std::string> time_head = {"registrations"};
  for (const Subject& subject : kSubjects) time_head.emplace_back(subject.column);
  std::vector<std::string> ratio_head = {"registrations"};
  for (const Ratio& ratio : kRatios) ratio_head.emplace_back(ratio.column);
  std::string text;
  for (auto it = results.rows.begin(); it != results.rows.end();) {
    const RegcacheRow group = it->first;
    Table times(time_head);
    Table ratios(ratio_head);
    for (; it != results.rows.end() && it->first.threads == group.threads &&
           it->first.order == group.order;
         ++it) {
      const std::string regions = fmt::format("{}", it->first.regions);
      std::vector<std::string> time_row = {regions};
      for (const Subject& subject : kSubjects)
        time_row.push_back(cell_text(it->second, subject.name));
      std::vector<std::string> ratio_row = {regions};
      for (const Ratio& ratio : kRatios)
        ratio_row.push_back(ratio_text(ratio_of(it->second, ratio)));
      times.add(std::move(time_row));
      ratios.add(std::move(ratio_row));
    }
    text += fmt::format("\n{}, {}: time of one\n{}\n{}, {}: ratios\n{}",
                        threads_text(group.threads), group.order, times.text(),
                        threads_text(group.threads), group.order, ratios.text());
  }
  return text;
}

std::string change_table(const RegcacheResults& results) {
  Table table({"registrations", "invalidate", "register", "UCX invalidate", "UCX register"});
  for (const auto& [regions, measured] : results.changes)
    table.add({fmt::format("{}", regions), cell_text(measured, "invalidate"),
               cell_text(measured, "register"), cell_text(measured, "ucx_invalidate"),
               cell_text(measured, "ucx_register")});
  Table limits({"registrations", "refused get", "refused key", "adopt", "disown"});
  for (const auto& [regions, measured] : results.changes)
    limits.add({fmt::format("{}", regions), cell_text(measured, "refused_get"),
                cell_text(measured, "refused_key"), cell_text(measured, "adopt"),
                cell_text(measured, "disown")});
  return "\ntime of one, beside the registrar's own\n" + table.text() +
         "\ntime of one that a full limit refuses, and beside as many adopted ranges\n" +
         limits.text();
}

std::string footprint_lines(const RegcacheResults& results) {
  std::string text;
  for (const auto& [name, values] : results.bytes_each)
    text +=
        fmt::format("\nmemory of a registration, {}: {:.0f} bytes", name, median(present(values)));
  if (!results.of_footprint.empty())
    text += "\nstatistics of so many registrations, rdmalloc: " +
            cell_text(results.of_footprint, "statistics");
  return text + "\n";
}

json to_json(const RegcacheOptions& options, const Measured& measured) {
  json all = json::object();
  for (const auto& [name, values] : measured)
    if (values.size() == static_cast<std::size_t>(options.repetitions))
      all[name] = {{"summary", to_json(summarize(present(values)))}, {"repetitions", values}};
  return all;
}

json ratios_json(const Measured& measured) {
  json all = json::object();
  for (const Ratio& ratio : kRatios)
    if (const double value = ratio_of(measured, ratio); value > 0) all[ratio.column] = value;
  return all;
}

}  // namespace

std::string regcache_tables(const RegcacheResults& results) {
  std::string text;
  if (!results.rows.empty()) text += hit_tables(results);
  if (!results.changes.empty()) text += change_table(results);
  if (!results.bytes_each.empty()) text += footprint_lines(results);
  if (!results.ucx.empty()) text += fmt::format("\nUCX {}\n", results.ucx);
  return text + left_out_text(results) + failures_text(results) + ending_text(results);
}

json regcache_json(const RegcacheOptions& options, const RegcacheResults& results) {
  json report = report_of(options, "rdmalloc-regcache-1", results, "details");
  report["settings"] = {{"repetitions", options.repetitions},
                        {"regions", options.regions},
                        {"threads", options.threads},
                        {"rounds", options.rounds},
                        {"least", options.least},
                        {"footprint", options.footprint}};
  report["ucx"] = results.ucx;
  for (const char* list : {"changes", "counts"}) report[list] = json::array();
  for (const auto& [row, measured] : results.rows)
    report["results"].push_back({{"threads", row.threads},
                                 {"order", row.order},
                                 {"regions", row.regions},
                                 {"ns", to_json(options, measured)},
                                 {"ratios", ratios_json(measured)}});
  for (const auto& [regions, measured] : results.changes)
    report["changes"].push_back({{"regions", regions}, {"ns", to_json(options, measured)}});
  report["bytes_each"] = to_json(options, results.bytes_each);
  report["of_footprint"] = to_json(options, results.of_footprint);
  for (const json& counts : results.counts) report["counts"].push_back(counts);
  return report;
}

// A panel for each number of threads and order: time over the number of registrations.
std::string regcache_picture(const RegcacheResults& results, const std::string& picture) {
  std::vector<RegcacheRow> panels;
  for (const auto& [row, measured] : results.rows)
    if (panels.empty() || panels.back().threads != row.threads || panels.back().order != row.order)
      panels.push_back(row);
  const std::size_t lines = (panels.size() + 1) / 2;
  std::string script = svg_head(picture, 1400, 420 * lines) +
                       "set logscale xy\nset grid y\nset key below maxrows 2\n"
                       "set xlabel \"registrations\"\nset ylabel \"ns\"\n";
  for (std::size_t panel = 0; panel < panels.size(); ++panel) {
    script += fmt::format("$p{} << EOD\n", panel);
    for (const auto& [row, measured] : results.rows) {
      if (row.threads != panels[panel].threads || row.order != panels[panel].order) continue;
      script += fmt::format("{}", row.regions);
      for (const Subject& subject : kSubjects) {
        const auto* values = find_cell(measured, subject.name);
        const double ns = values == nullptr ? 0 : median(present(*values));
        script += ns > 0 ? fmt::format(" {:.3f}", ns) : " NaN";
      }
      script += "\n";
    }
    script += "EOD\n";
  }
  script += fmt::format("set multiplot layout {},2\n", lines);
  for (std::size_t panel = 0; panel < panels.size(); ++panel) {
    script += fmt::format("set title {}\nplot", gnuplot_quoted(threads_text(panels[panel].threads) +
                                                               ", " + panels[panel].order));
    for (std::size_t i = 0; i < kSubjects.size(); ++i)
      script += fmt::format(" $p{} using 1:{} with linespoints pt 7 ps 0.5 lw 2 title {},", panel,
                            i + 2, gnuplot_quoted(kSubjects[i].column));
    script.back() = '\n';
  }
  return script + "unset multiplot\n";
}

}  // namespace rdmalloc::bench
