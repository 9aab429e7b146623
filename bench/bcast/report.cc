// The JSON file of bcast_compare, and what failed; bench/pictures/bcast_report.py makes tables and
// a picture of it.
#include "bench/support/report.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "bench/bcast/results.h"
#include "bench/support/statistics.h"

namespace rdmalloc::bench {
namespace {

using nlohmann::json;

using Values = std::vector<double> Measured::*;

double ratio_to_glibc(const BcastResults& results, const Cell& cell, Values values) {
  Cell base = cell;
  base.allocator = "glibc";
  return ratio_of(results.cells, cell, base, values);
}

double fresh_over_reused(const BcastResults& results, const Cell& fresh, Values values) {
  Cell base = fresh;
  base.pattern = "reused";
  return ratio_of(results.cells, fresh, base, values);
}

json summary_json(const BcastResults& results, const Cell& cell, const Measured& measured) {
  json object = {{"transport", cell.transport},
                 {"pattern", cell.pattern},
                 {"bytes", cell.bytes},
                 {"allocator", cell.allocator},
                 {"broadcasts", measured.broadcasts},
                 {"bcast_us", to_json(summarize(present(measured.bcast_us)))},
                 {"cycle_us", to_json(summarize(present(measured.cycle_us)))},
                 {"page_faults_per_broadcast", median(present(measured.faults_per_broadcast))},
                 {"huge_pages", median(present(measured.huge_pages))},
                 {"kernel_us_per_broadcast", median(present(measured.kernel_us))}};
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
  if (cell.pattern == "phases") {
    object["first_after_pause_us"] = to_json(summarize(present(measured.after_pause_us)));
    object["first_after_pause_us"]["repetitions"] = measured.after_pause_us;
  }
  return object;
}

// The first lines, in which a rank says what was wrong, and the last ones: a launcher repeats
// itself between, and gives its own reason last.
std::string ends_of(const std::string& text) {
  constexpr std::size_t kFirst = 4, kLast = 8;
  std::vector<std::size_t> begins = {0};  // of lines, and the end of the text
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) begins.push_back(++at);
  if (begins.back() != text.size()) begins.push_back(text.size());
  const std::size_t lines = begins.size() - 1;
  if (lines <= kFirst + kLast + 1) return text;
  return text.substr(0, begins[kFirst]) + "  […]\n" + text.substr(begins[lines - kLast]);
}

}  // namespace

std::string bcast_failures_text(const BcastResults& results, const std::string& details_file) {
  std::string text;
  for (const Failure& failure : results.failures)
    text += fmt::format("\nFAILED: {}: {}\n{}", failure.title, failure.what,
                        ends_of(failure.standard_error));
  if (!text.empty())
    text += fmt::format("All that they wrote, and the stacks of runs at their limit: {}\n",
                        details_file);
  return text;
}

std::string bcast_failure_details(const BcastResults& results) {
  std::string text;
  for (const Failure& failure : results.failures) {
    text += fmt::format("FAILED: {}: {}\n{}", failure.title, failure.what, failure.standard_error);
    if (!failure.stacks.empty()) text += "stacks at the limit:\n" + failure.stacks;
    text += "\n";
  }
  return text;
}

json results_json(const CompareOptions& options, const BcastResults& results) {
  json report = report_of(options, "rdmalloc-bcast-1", results, "");
  report["mpi"] = results.mpi_library;
  report["settings"] = {{"ranks", options.ranks}, {"repetitions", options.repetitions},
                        {"scale", options.scale}, {"pause_ms", options.pause_ms},
                        {"sizes", options.sizes}, {"patterns", options.patterns}};
  report["broadcasts_checked"] = results.checked_broadcasts;
  report["peak_rss_mib"] = results.peak_rss_mib;
  report["transports"] = json::array();
  for (const Transport& transport : results.transports)
    report["transports"].push_back({{"name", transport.name}, {"arguments", transport.arguments}});
  for (const auto& [cell, measured] : results.cells)
    report["results"].push_back(summary_json(results, cell, measured));
  for (std::size_t i = 0; i < results.failures.size(); ++i) {
    report["failures"][i]["stderr"] = results.failures[i].standard_error;
    report["failures"][i]["stacks"] = results.failures[i].stacks;
  }
  return report;
}

}  // namespace rdmalloc::bench
