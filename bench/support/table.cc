#include "bench/support/table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <sstream>

namespace rdmalloc::bench {
namespace {

// Columns on a terminal: characters, not bytes, of UTF-8.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

}  // namespace

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_)
    for (std::size_t column = 0; column < row.size(); ++column) {
      if (column == widths.size()) widths.push_back(0);
      widths[column] = std::max(widths[column], width_of(row[column]));
    }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - width_of(row[column]), ' ');
      line += "  ";
      if (column > 0) line += padding;
      line += row[column];
      if (column == 0) line += padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string bytes_text(std::size_t bytes) {
  if (bytes != 0 && bytes % (std::size_t{1} << 30) == 0) return fmt::format("{} GiB", bytes >> 30);
  if (bytes != 0 && bytes % (std::size_t{1} << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  // 258048 B is what MPI users write for it, not 252 KiB.
  if (bytes != 0 && bytes % (std::size_t{1} << 12) == 0 && (bytes & (bytes - 1)) == 0)
    return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

std::string microseconds_text(double microseconds) {
  if (microseconds < 9.995) return fmt::format("{:.2f} us", microseconds);
  if (microseconds < 99.95) return fmt::format("{:.1f} us", microseconds);
  if (microseconds < 9999.5) return fmt::format("{:.0f} us", microseconds);
  return fmt::format("{:.1f} ms", microseconds / 1000);
}

std::string nanoseconds_text(double ns) {
  if (ns < 99.95) return fmt::format("{:.2f} ns", ns);
  if (ns < 9999.5) return fmt::format("{:.0f} ns", ns);
  return microseconds_text(ns / 1000);
}

std::size_t parse_bytes(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789");
  const std::string number = text.substr(0, digits);
  if (number.empty() || number.size() > 15) return 0;
  std::string unit = digits == std::string::npos ? "" : text.substr(digits);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](char c) { return std::tolower(c); });
  const std::size_t value = std::stoull(number);
  const auto times = [&](unsigned shift) {
    return value >> (64 - shift) == 0 ? value << shift : 0;  // 0: more than there are addresses
  };
  if (unit.empty() || unit == "b") return value;
  if (unit == "k" || unit == "kib") return times(10);
  if (unit == "m" || unit == "mib") return times(20);
  if (unit == "g" || unit == "gib") return times(30);
  return 0;
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

double estimate_seconds(std::span<const std::string> left,
                        const std::map<std::string, Spent>& spent,
                        const std::map<std::string, double>& expected) {
  Spent all;
  double expected_of_spent = 0;
  double spent_of_expected = 0;
  for (const auto& [kind, so_far] : spent) {
    all.seconds += so_far.seconds;
    all.steps += so_far.steps;
    if (!expected.contains(kind)) continue;
    expected_of_spent += expected.at(kind) * static_cast<double>(so_far.steps);
    spent_of_expected += so_far.seconds;
  }
  if (all.steps == 0) return -1;
  double seconds = 0;
  for (const std::string& kind : left) {
    const auto known = spent.find(kind);
    if (known != spent.end())
      seconds += known->second.seconds / static_cast<double>(known->second.steps);
    else if (expected.contains(kind) && expected_of_spent > 0)
      seconds += expected.at(kind) * spent_of_expected / expected_of_spent;
    else
      seconds += all.seconds / static_cast<double>(all.steps);
  }
  return seconds;
}

Progress::Progress(std::vector<std::string> kinds_of_steps, bool quiet,
                   std::map<std::string, double> expected)
    : kinds_(std::move(kinds_of_steps)),
      expected_(std::move(expected)),
      terminal_(isatty(STDERR_FILENO) != 0),
      quiet_(quiet),
      start_(Clock::now()),
      step_start_(start_) {}

void Progress::begin(const std::string& what) {
  step_start_ = Clock::now();
  print(what);
}

void Progress::end() {
  Spent& spent = spent_[kinds_.at(done_)];
  spent.seconds += std::chrono::duration<double>(Clock::now() - step_start_).count();
  ++spent.steps;
  ++done_;
}

void Progress::finish() {
  if (terminal_ && !quiet_) fmt::print(stderr, "\r\033[K");
}

void Progress::print(const std::string& what) {
  const auto now = Clock::now();
  const bool due = done_ == 0 || now - printed_ >= std::chrono::seconds(5);
  if (quiet_ || (!terminal_ && !due)) return;
  printed_ = now;
  const double gone = std::chrono::duration<double>(now - start_).count();
  const double left = estimate_seconds(std::span(kinds_).subspan(done_), spent_, expected_);
  const std::string estimate = left < 0 ? "" : fmt::format(", about {:.0f} s left", left);
  fmt::print(stderr, "{}[{}/{}] {}; {:.0f} s gone{}{}", terminal_ ? "\r\033[K" : "", done_ + 1,
             kinds_.size(), what, gone, estimate, terminal_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace rdmalloc::bench
