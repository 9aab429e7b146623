// What the drivers print: aligned tables, sizes a person can read, and a line of progress.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace rdmalloc::bench {

class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;  // first column to the left, the others to the right

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string bytes_text(std::size_t bytes);           // "4 KiB", "258048 B", "16 MiB"
std::string microseconds_text(double microseconds);  // three digits, with its unit
std::string nanoseconds_text(double ns);

// "4K", "64KiB", "258048", "16M": bytes, or 0 when it is no size.
std::size_t parse_bytes(const std::string& text);

// Splits "a,b,c"; empty parts are left out.
std::vector<std::string> split_list(const std::string& text);

// What steps of a kind have taken so far.
struct Spent {
  double seconds = 0;
  std::size_t steps = 0;
};

// How long the steps `left` will take, each given by its kind; -1 while none has ended. A kind that
// has not run yet is taken for as long as `expected` says of it, in the proportion that held for
// those that have, or without that for as long as the others took.
double estimate_seconds(std::span<const std::string> left,
                        const std::map<std::string, Spent>& spent,
                        const std::map<std::string, double>& expected);

// How far a run is, on standard error: one line rewritten on a terminal, otherwise a new line
// every five seconds.
class Progress {
 public:
  // `expected`: about how many seconds steps of a kind take, where kinds differ much.
  explicit Progress(std::vector<std::string> kinds_of_steps, bool quiet = false,
                    std::map<std::string, double> expected = {});
  void begin(const std::string& what);  // the next step starts
  void end();                           // and has ended
  void finish();                        // clears the line

 private:
  using Clock = std::chrono::steady_clock;
  void print(const std::string& what);

  std::vector<std::string> kinds_;
  std::map<std::string, double> expected_;
  std::map<std::string, Spent> spent_;
  std::size_t done_ = 0;
  bool terminal_ = false;
  bool quiet_ = false;
  Clock::time_point start_;
  Clock::time_point step_start_;
  Clock::time_point printed_;
};

}  // namespace rdmalloc::bench
