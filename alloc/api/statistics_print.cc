#include "alloc/api/statistics_print.h"

#include <errno.h>

#include <cstring>
#include <utility>

#include "alloc/api/registration_statistics.h"
#include "alloc/api/statistics.h"
#include "alloc/core/options.h"
#include "alloc/os/decimal.h"
#include "alloc/os/file.h"
#include "alloc/os/os.h"

namespace rdmalloc {

void Writer::put(char c) {
  if (length_ == size_) {
    const void* end = memrchr(buffer_, '\n', length_);
    write_out(end == nullptr
                  ? length_
                  : static_cast<std::size_t>(static_cast<const char*>(end) - buffer_) + 1);
  }
  buffer_[length_++] = c;
}

// The first of them; the rest moves to the front.
void Writer::write_out(std::size_t bytes) {
  const int error = os::write_all(fd_, buffer_, bytes);
  if (error_ == 0) error_ = error;
  length_ -= bytes;
  std::memmove(buffer_, buffer_ + bytes, length_);
}

Writer& Writer::text(const char* words) {
  for (; *words != 0; ++words) put(*words);
  return *this;
}

Writer& Writer::number(std::uint64_t value) {
  return text(os::Decimal(value).c_str());
}

Writer& Writer::quoted(const char* words, std::size_t most) {
  put('"');
  for (; *words != 0 && most > 0; ++words, --most) {
    if (*words == '"' || *words == '\\') put('\\');
    put(*words >= ' ' && *words <= '~' ? *words : '?');
  }
  put('"');
  return *this;
}

int Writer::flush() {
  if (length_ != 0) write_out(length_);
  return error_;
}

namespace {

constexpr std::size_t kMostNameBytes = 64;
constexpr std::size_t kNameColumn = 30;
constexpr const char* kClosed = "closed";

// All groups of registrations, in order.
template <class Visit>
void each_group(const RegistrationStatistics* source, Visit visit) {
  if (source == nullptr) return;
  RegistrationGroup group;
  for (unsigned from = 0; source->read(from, &group); from = group.place + 1) visit(group);
}

// Acquire: pairs with the release in state_prepare() of the registration cache.
const RegistrationStatistics* registrations() {
  return registration_statistics.load(std::memory_order_acquire);
}

void pad(Writer& out, std::size_t length) {
  for (std::size_t i = length; i < kNameColumn; ++i) out.text(" ");
}

// Which process this is, so that what many of them wrote can be told apart and merged.
struct Process {
  char program[32], host[os::kMostHostBytes];
  std::uint64_t id;
  Rank rank;

  Process() : id(static_cast<std::uint64_t>(os::process_id())), rank(options().rank) {
    const std::size_t length = os::read_file("/proc/self/comm", program);
    if (length != 0 && program[length - 1] == '\n') program[length - 1] = 0;
    os::host_name(host);
  }
};

void print_head(Writer& out) {
  const Process process;
  out.text("rdmalloc ").text(rdmalloc_version());
  if (process.rank.rank >= 0) {
    out.text(", rank ").number(static_cast<std::uint64_t>(process.rank.rank));
    if (process.rank.ranks >= 0)
      out.text(" of ").number(static_cast<std::uint64_t>(process.rank.ranks));
  }
  out.text(", process ")
      .number(process.id)
      .text(" ")
      .quoted(process.program, sizeof process.program);
  out.text(" on ").quoted(process.host, sizeof process.host).text("\n");
}

void print_text(Writer& out, const Statistics& s) {
  print_head(out);
  for (const StatisticLine& line : statistic_lines()) {
    out.text(line.name);
    pad(out, std::strlen(line.name));
    out.number(line.value(s)).text("  # ").text(line.help).text("\n");
  }
  const RegistrationStatistics* source = registrations();
  each_group(source, [&](const RegistrationGroup& group) {
    if (group.is_closed)
      out.text("closed domains\n");
    else
      out.text("domain ")
          .number(group.place)
          .text(" ")
          .quoted(group.name, kMostNameBytes)
          .text("\n");
    for (unsigned i = 0; i < source->count; ++i) {
      out.text("  ").text(source->counters[i].name);
      pad(out, 2 + std::strlen(source->counters[i].name));
      out.number(group.values[i]).text("  # ").text(source->counters[i].help).text("\n");
    }
  });
}

void print_process(Writer& out) {
  const Process process;
  out.text(",\"program\":").quoted(process.program, sizeof process.program);
  out.text(",\"host\":").quoted(process.host, sizeof process.host);
  out.text(",\"pid\":").number(process.id);
  for (auto [name, value] :
       {std::pair{",\"rank\":", process.rank.rank}, {",\"ranks\":", process.rank.ranks}}) {
    out.text(name);
    if (value >= 0)
      out.number(static_cast<std::uint64_t>(value));
    else
      out.text("null");
  }
}

void print_json_group(Writer& out, const RegistrationStatistics& source,
                      const RegistrationGroup& group) {
  for (unsigned i = 0; i < source.count; ++i)
    out.text(i == 0 ? "\"" : ",\"")
        .text(source.counters[i].name)
        .text("\":")
        .number(group.values[i]);
}

void print_json(Writer& out, const Statistics& s) {
  out.text("{\"schema\":\"rdmalloc-stats-1\",\"version\":\"").text(rdmalloc_version()).text("\"");
  print_process(out);
  for (const StatisticLine& line : statistic_lines())
    out.text(",\"").text(line.name + 6).text("\":").number(line.value(s));
  out.text(",\"domains\":[");
  bool is_first = true;
  const RegistrationStatistics* source = registrations();
  each_group(source, [&](const RegistrationGroup& group) {
    if (group.is_closed) return;
    out.text(is_first ? "{\"domain\":" : ",{\"domain\":").number(group.place);
    out.text(",\"name\":").quoted(group.name, kMostNameBytes).text(",");
    print_json_group(out, *source, group);
    out.text("}");
    is_first = false;
  });
  out.text("]");
  each_group(source, [&](const RegistrationGroup& group) {
    if (!group.is_closed) return;
    out.text(",\"closed_domains\":{");
    print_json_group(out, *source, group);
    out.text("}");
  });
  out.text("}\n");
}

void print_prometheus(Writer& out, const Statistics& s) {
  for (const StatisticLine& line : statistic_lines()) {
    out.text("# HELP rdmalloc_").text(line.name + 6).text(" ").text(line.help).text("\n");
    out.text("rdmalloc_").text(line.name + 6).text(" ").number(line.value(s)).text("\n");
  }
  const RegistrationStatistics* source = registrations();
  // All lines of a metric stand together, as the format wants it.
  for (unsigned i = 0; source != nullptr && i < source->count; ++i) {
    const RegistrationCounter& counter = source->counters[i];
    out.text("# HELP rdmalloc_domain_").text(counter.name).text(" ").text(counter.help).text("\n");
    each_group(source, [&](const RegistrationGroup& group) {
      out.text("rdmalloc_domain_").text(counter.name).text("{domain=\"");
      if (group.is_closed)
        out.text(kClosed);
      else
        out.number(group.place);
      out.text("\",name=").quoted(group.name, kMostNameBytes).text("} ");
      out.number(group.values[i]).text("\n");
    });
  }
}

// A counter with its name, punctuation and 20 digits; a group with its name.
constexpr std::size_t kMostCounterBytes = 48;
constexpr std::size_t kMostGroupBytes =
    kMostRegistrationCounters * kMostCounterBytes + 2 * kMostNameBytes + 64;

static_assert(kMostRegistrationGroups * kMostGroupBytes + (8 << 10) <= kMostStatisticsBytes);

}  // namespace

int statistics_print(Writer& out, rdmalloc_stats_format format) {
  Statistics s = statistics();
  switch (format) {
    case RDMALLOC_STATS_TEXT:
      print_text(out, s);
      break;
    case RDMALLOC_STATS_JSON:
      print_json(out, s);
      break;
    case RDMALLOC_STATS_PROMETHEUS:
      print_prometheus(out, s);
      break;
    default:
      return -EINVAL;
  }
  return out.flush();
}

}  // namespace rdmalloc

extern "C" int rdmalloc_stats_print(int fd, enum rdmalloc_stats_format format) {
  char buffer[1024];
  rdmalloc::Writer out(fd, buffer, sizeof buffer);
  return rdmalloc::statistics_print(out, format);
}
