#include "tools/rdmalloc/job_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <stdexcept>

#include "tools/rdmalloc/job_files.h"
#include "tools/rdmalloc/programs.h"

namespace rdmalloc::tool {
namespace {

using nlohmann::json;

enum class Unit { bytes, count, nanoseconds };

struct Column {
  const char* name;   // in JSON
  const char* title;  // in the table
  Unit unit;
  bool is_of_domains;  // summed over all domains, the closed ones too; else the allocator's
  std::vector<const char*> counters;
  double least;  // the least difference that says something; 0: not measured
};

const std::vector<Column>& columns() {
  constexpr double kMiB = 1 << 20, kSome = 10;
  static const std::vector<Column> all = {
      {"heap_bytes", "heap", Unit::bytes, false, {"mapped_bytes"}, kMiB},
      {"live_bytes", "live", Unit::bytes, false, {"live_bytes"}, kMiB},
      {"purged_bytes", "given back", Unit::bytes, false, {"purged_bytes"}, kMiB},
      // Depends on when free memory went: shown, not measured.
      {"notified",
       "notified",
       Unit::count,
       false,
       {"notified_open_mpi", "notified_ucx", "notified_libfabric"},
       0},
      {"registered_bytes", "registered", Unit::bytes, true, {"live_bytes"}, kMiB},
      {"registrations", "regs", Unit::count, true, {"registrations"}, kSome},
      {"hits", "hits", Unit::count, true, {"hits"}, kSome},
      {"evictions", "evicted", Unit::count, true, {"evictions"}, kSome},
      {"refusals", "refused", Unit::count, true, {"refusals", "memlock_refusals"}, kSome},
      // Depends on the moment: shown, not measured.
      {"register_ns_worst", "slowest", Unit::nanoseconds, true, {"register_ns_worst"}, 0},
  };
  return all;
}

double number(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

double value_of(const Column& column, const json& counters) {
  double value = 0;
  const auto take = [&](const json& object) {
    for (const char* name : column.counters)
      value = column.unit == Unit::nanoseconds ? std::max(value, number(object, name))
                                               : value + number(object, name);
  };
  if (!column.is_of_domains) {
    take(counters);
    return value;
  }
  if (const auto open = counters.find("domains"); open != counters.end() && open->is_array())
    for (const json& domain : *open) take(domain);
  if (const auto closed = counters.find("closed_domains"); closed != counters.end()) take(*closed);
  return value;
}

// A rank, by its process with the most memory: the others are shells around it, or its helpers.
struct RankRow {
  std::int64_t rank = 0;
  const ProcessStatistics* process = nullptr;
  std::size_t others = 0;
  std::vector<double> values;
  double off = 0;
  std::string off_by;  // a column's title
};

struct View {
  std::vector<RankRow> rows;  // farthest from the median first
  std::vector<double> medians;
  std::vector<SilentProcess> died;    // of ranks of which no process left statistics
  std::vector<SilentProcess> silent;  // the others
  std::vector<std::int64_t> missing;  // ranks without any file
  std::vector<std::string> complaints;
  std::size_t without_rank = 0;  // processes without a rank
  std::int64_t ranks = 0;
  std::map<std::string, std::size_t> hosts;  // ranks of each
  bool has_domains = false;  // of our registration cache, open or closed, at any rank
};

bool has_domains(const json& counters) {
  const auto open = counters.find("domains");
  const auto closed = counters.find("closed_domains");
  return (open != counters.end() && open->is_array() && !open->empty()) ||
         (closed != counters.end() && closed->is_object() && number(*closed, "domains") > 0);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 != 0 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void choose_processes(const JobFiles& files, View& view) {
  std::map<std::int64_t, RankRow> rows;
  for (const ProcessStatistics& process : files.processes) {
    view.ranks = std::max(view.ranks, process.ranks.value_or(0));
    if (!process.rank) {
      ++view.without_rank;
      continue;
    }
    RankRow& row = rows[*process.rank];
    row.rank = *process.rank;
    if (row.process != nullptr) ++row.others;
    const auto memory = [](const ProcessStatistics& one) {
      return number(one.counters, "mapped_bytes");
    };
    if (row.process == nullptr || memory(process) > memory(*row.process)) row.process = &process;
  }
  for (auto& [rank, row] : rows) view.rows.push_back(row);
}

void measure(View& view) {
  for (RankRow& row : view.rows)
    for (const Column& column : columns())
      row.values.push_back(value_of(column, row.process->counters));
  for (std::size_t i = 0; i < columns().size(); ++i) {
    const Column& column = columns()[i];
    std::vector<double> values;
    for (const RankRow& row : view.rows) values.push_back(row.values[i]);
    const double middle = median(values);
    view.medians.push_back(middle);
    if (column.least == 0) continue;
    for (RankRow& row : view.rows) {
      const double off = std::abs(row.values[i] - middle) / std::max(middle, column.least);
      if (off <= row.off) continue;
      row.off = off;
      row.off_by = column.title;
    }
  }
  std::stable_sort(view.rows.begin(), view.rows.end(),
                   [](const RankRow& a, const RankRow& b) { return a.off > b.off; });
}

// Ranks that left nothing.
void look_for_missing(const JobFiles& files, View& view) {
  std::set<std::int64_t> ended, began;
  for (const RankRow& row : view.rows) ended.insert(row.rank);
  for (const SilentProcess& one : files.silent) {
    if (one.rank) began.insert(*one.rank);
    (one.rank && ended.count(*one.rank) == 0 ? view.died : view.silent).push_back(one);
  }
  for (const std::set<std::int64_t>& seen : {ended, began})
    if (!seen.empty()) view.ranks = std::max(view.ranks, *seen.rbegin() + 1);
  for (std::int64_t rank = 0; rank < view.ranks; ++rank)
    if (ended.count(rank) == 0 && began.count(rank) == 0) view.missing.push_back(rank);
}

void look_for_mixture(const JobFiles& files, View& view) {
  std::set<std::int64_t> sizes;
  std::map<std::int64_t, std::set<std::string>> places;
  for (const ProcessStatistics& process : files.processes) {
    if (process.ranks) sizes.insert(*process.ranks);
    if (process.rank) places[*process.rank].insert(process.host);
  }
  const auto is_on_two = [](const auto& one) { return one.second.size() > 1; };
  if (sizes.size() > 1 || std::any_of(places.begin(), places.end(), is_on_two))
    view.complaints.push_back(
        "these files are of more than one job; give each a folder of its own: "
        "rdmalloc run --stats=NEW_FOLDER");
}

View view_of(const JobFiles& files) {
  View view;
  choose_processes(files, view);
  measure(view);
  look_for_missing(files, view);
  look_for_mixture(files, view);
  for (const RankRow& row : view.rows) {
    ++view.hosts[row.process->host];
    view.has_domains = view.has_domains || has_domains(row.process->counters);
  }
  view.complaints.insert(view.complaints.end(), files.broken.begin(), files.broken.end());
  return view;
}

std::string shown(double value, Unit unit) {
  static constexpr const char* kSizes[] = {"", "K", "M", "G", "T"};
  constexpr double kKilo = 1024, kThousand = 1000;
  switch (unit) {
    case Unit::count:
      return fmt::format("{:.0f}", value);
    case Unit::nanoseconds:
      return fmt::format("{:.0f}us", value / kThousand);
    case Unit::bytes:
      break;
  }
  std::size_t at = 0;
  for (; at < 4 && value >= kKilo; ++at) value /= kKilo;
  return at == 0 ? fmt::format("{:.0f}", value) : fmt::format("{:.1f}{}", value, kSizes[at]);
}

// Columns as wide as their widest cell; numbers to the right.
std::string table_of(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::size_t> widths;
  for (const auto& cells : lines)
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i == widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], cells[i].size());
    }
  std::string text;
  for (const auto& cells : lines) {
    std::string line;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool is_text = i == 1 || i == 3 || i + 1 == cells.size();
      line += is_text ? fmt::format("{:<{}}  ", cells[i], widths[i])
                      : fmt::format("{:>{}}  ", cells[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string list_of(const std::vector<std::int64_t>& numbers) {
  constexpr std::size_t kMost = 20;
  std::string text;
  for (std::size_t i = 0; i < numbers.size() && i < kMost; ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", numbers[i]);
  if (numbers.size() > kMost) text += fmt::format(" and {} more", numbers.size() - kMost);
  return text;
}

std::string notes_of(const View& view) {
  std::string text;
  if (!view.has_domains && !view.rows.empty())
    text +=
        "no rank opened a domain: 'registered' to 'slowest' are of rdmalloc's own registration "
        "cache, "
        "and what MPI, UCX or libfabric register themselves is not counted here\n";
  for (const SilentProcess& one : view.died)
    text += fmt::format(
        "rank {} (process {} on {}) left nothing: it still runs, or was killed, crashed, "
        "or ended by _exit\n",
        *one.rank, one.pid, visible(one.host));
  if (!view.missing.empty())
    text += fmt::format(
        "no trace of rank {}: ran without rdmalloc, or could not write there; see what 'rdmalloc "
        "run' and the ranks said on standard error\n",
        list_of(view.missing));
  std::size_t others = view.without_rank;
  for (const RankRow& row : view.rows) others += row.others;
  if (others != 0)
    text += fmt::format("{} more processes: children of ranks, or of no rank\n", others);
  // A shell ends by _exit, so that its silence says nothing; a killed program looks the same.
  for (const SilentProcess& one : view.silent)
    if (one.rank)
      text += fmt::format(
          "rank {}: process {} on {} left nothing, others of the rank did: a shell around them, or "
          "killed\n",
          *one.rank, one.pid, visible(one.host));
  for (const std::string& complaint : view.complaints) text += visible(complaint) + "\n";
  return text;
}

std::string as_text(const View& view) {
  std::string text = fmt::format("{} of {} ranks on {} host{}, farthest from the median first\n\n",
                                 view.rows.size(), view.ranks, view.hosts.size(),
                                 view.hosts.size() == 1 ? "" : "s");
  // Without a domain there is nothing that could have been registered: no zeroes, which would read
  // as a count.
  const auto cell = [&view](std::size_t column, double value) {
    const Column& one = columns()[column];
    return one.is_of_domains && !view.has_domains ? "-" : shown(value, one.unit);
  };
  std::vector<std::vector<std::string>> lines = {{"rank", "host", "process", "program"}};
  for (const Column& column : columns()) lines[0].push_back(column.title);
  lines[0].insert(lines[0].end(), {"off", "by"});
  for (const RankRow& row : view.rows) {
    std::vector<std::string> cells = {fmt::format("{}", row.rank), visible(row.process->host),
                                      fmt::format("{}", row.process->pid),
                                      visible(row.process->program)};
    for (std::size_t i = 0; i < columns().size(); ++i) cells.push_back(cell(i, row.values[i]));
    cells.push_back(fmt::format("{:.1f}", row.off));
    cells.push_back(row.off_by);
    lines.push_back(cells);
  }
  std::vector<std::string> middle = {"", "median", "", ""};
  for (std::size_t i = 0; i < columns().size(); ++i) middle.push_back(cell(i, view.medians[i]));
  lines.push_back(middle);
  text += table_of(lines);
  const std::string notes = notes_of(view);
  return notes.empty() ? text : text + "\n" + notes;
}

json silent_as_json(const std::vector<SilentProcess>& processes) {
  json all = json::array();
  for (const SilentProcess& one : processes)
    all.push_back({{"rank", one.rank ? json(*one.rank) : json()},
                   {"host", one.host},
                   {"pid", one.pid},
                   {"file", one.file}});
  return all;
}

json as_json(const View& view) {
  json all = {{"schema", "rdmalloc-job-1"},
              {"ranks", view.ranks},
              {"hosts", view.hosts},
              {"rows", json::array()},
              {"medians", json::object()},
              {"died", silent_as_json(view.died)},
              {"silent", silent_as_json(view.silent)},
              {"missing", view.missing},
              {"complaints", view.complaints}};
  for (std::size_t i = 0; i < columns().size(); ++i)
    all["medians"][columns()[i].name] = view.medians[i];
  for (const RankRow& row : view.rows) {
    json one = {{"rank", row.rank},
                {"host", row.process->host},
                {"pid", row.process->pid},
                {"program", row.process->program},
                {"off", row.off},
                {"off_by", row.off_by},
                {"other_processes", row.others},
                {"statistics", row.process->counters}};
    for (std::size_t i = 0; i < columns().size(); ++i)
      one[columns()[i].name] = static_cast<std::uint64_t>(row.values[i]);
    all["rows"].push_back(one);
  }
  return all;
}

}  // namespace

int job_view(const JobViewOptions& options) {
  const JobFiles files = read_job_files(options.places);
  const View view = view_of(files);
  if (view.rows.empty() && view.died.empty())
    throw std::runtime_error(
        (files.processes.empty() && files.silent.empty()
             ? std::string("job: there are no statistics of ranks")
             : fmt::format("job: {} files, and none of a rank: no launcher that is known started "
                           "these processes",
                           files.processes.size() + files.silent.size())) +
        "; start the job with: rdmalloc run --stats=FOLDER -- mpirun …" +
        (view.complaints.empty() ? "" : "\n" + visible(view.complaints.front())));
  const auto replace = json::error_handler_t::replace;
  fmt::print("{}",
             options.is_json ? as_json(view).dump(1, ' ', false, replace) + "\n" : as_text(view));
  if (std::fflush(stdout) != 0)
    throw std::runtime_error("job: standard output can't be written to");
  return view.died.empty() && view.missing.empty() && view.complaints.empty() ? 0 : 1;
}

}  // namespace rdmalloc::tool
