// The driver of the comparing programs. A bench plans runs of programs and keeps what each gave;
// the driver chooses the allocators, carries the runs out, writes the reports and decides the exit
// status.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/support/driver.h"
#include "bench/support/process.h"

namespace rdmalloc::bench {

struct Run {
  std::string kind;       // runs of a kind take about as long as each other
  std::string what;       // in the line of progress
  std::string allocator;  // whose failure it would be
  nlohmann::json
      about;          // names the run in the report of a failure, in the text by its words' order
  std::string title;  // the same, in the text
  Command command;
  std::function<std::string(const Outcome&)> keep;  // what is wrong with the run, or nothing
};

struct Failure {
  std::string allocator;
  nlohmann::json about;
  std::string title;
  std::string what;
  std::string standard_error;
  std::string stacks;  // at the limit

  std::string details() const { return standard_error + stacks; }
};

// What the runs of every comparison gave.
struct Results {
  std::vector<Allocator> allocators;
  std::vector<LeftOut> left_out;
  std::vector<Failure> failures;
  double wall_s = 0;
  bool interrupted = false;

  bool has_failed(const std::string& allocator) const;
};

// A bench. The functions are called in this order.
class Comparison {
 public:
  virtual ~Comparison() = default;
  virtual std::string heading() const = 0;            // what is compared
  virtual void settle_columns() {}                    // the allocators are chosen
  virtual std::string listing() const { return ""; }  // of --list, besides the allocators
  virtual std::vector<Run> plan() = 0;  // runs of one repetition before those of the next
  virtual bool has_measured() const = 0;
  virtual std::string tables() const = 0;
  virtual nlohmann::json report() const = 0;
  virtual std::string epilogue(const nlohmann::json& /*report*/) const { return ""; }
  virtual std::string picture(const std::string& /*path*/) const {
    return "";
  }  // its script; or none
  // False: what is for machines could not be written.
  virtual bool write_reports(const DriverOptions& options) const;

 protected:
  explicit Comparison(std::string name) : name_(std::move(name)) {}

 private:
  const std::string name_;  // of the picture
};

struct Pace {
  int jobs = 1;                       // runs at the same time
  bool retries_after_failure = true;  // false: a kind that failed with an allocator is skipped
  std::map<std::string, double> expected = {};  // seconds of a run, by kind, before any has run
};

// Everything from the choice of allocators to the exit status. `results` are those of the bench;
// what it holds as left out stays there.
int compare(const DriverOptions& options, Comparison& bench, Results& results,
            const Pace& pace = {});

// ---- for plans

// `program` of the folder of the programs, with its arguments, within the time limit, under
// `allocator` if there is one.
Command command_of(const DriverOptions& options, const std::string& program,
                   std::vector<std::string> arguments, const Allocator* allocator = nullptr);
// Started by bench_launch, so that what it counts is the program's alone.
Command launched(const DriverOptions& options, std::vector<std::string> arguments,
                 const Allocator& allocator);

// ---- for keeping

// One value for each repetition, NaN where there is none.
void put(const DriverOptions& options, int repetition, std::vector<double>& values, double value);
// What is wrong, or nothing.
std::string served_by_another(const Allocator& allocator, const std::string& served_by);

// How a run that did not succeed ended, and what is wrong with its output, if anything is.
std::string ending_of(const Outcome& outcome, const std::string& problem);

// ---- for reports

std::string failures_text(const Results& results);
std::string left_out_text(const Results& results);
std::string ending_text(const Results& results);  // how many failures, and how long it took
// With everything that all reports have; `details` names the text of a failure, or is empty.
nlohmann::json report_of(const DriverOptions& options, const std::string& schema,
                         const Results& results, const std::string& details);
// Of each allocator in turn.
std::vector<double> of_each(const Results& results,
                            const std::function<double(const std::string& allocator)>& value_of);
// The names of the columns, after `first`.
std::vector<std::string> head_of(const Results& results, const std::string& first = "");

}  // namespace rdmalloc::bench
