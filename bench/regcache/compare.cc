// regcache_compare: the registration cache beside UCX's, and beside the floors under both: the time
// of a look-up by the number of registrations and of threads, of an invalidation, and the memory
// that a registration takes (docs/bench.md).
//
// Exit status: 0; 1 when it failed; 2 for wrong arguments; 130 when interrupted.
#include <fmt/format.h>

#include "bench/regcache/results.h"
#include "bench/support/process.h"
#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

struct Lists {
  std::string regions;
  std::string threads;
};

void add_options(CommandLine& line, RegcacheOptions& options, Lists& lists) {
  line.text("--regions", lists.regions, "live registrations (default: 1,64,1000,16000,100000)");
  line.text("--threads", lists.threads, "threads at once (default: 1,2,4)");
  line.number("--rounds", options.rounds, 1, 1000,
              "turns of each subject in a run, the median counts");
  line.number("--least", options.least, 1, 100'000'000, "look-ups of a thread in a turn, at least");
  line.number("--footprint", options.footprint, 1, 10'000'000,
              "registrations whose memory is weighed");
  line.flag("--quick", options.quick, "a look in seconds: one repetition, few look-ups");
}

// Replaces `values` unless the text is empty. False: no list of numbers from 1 to `most`.
bool parse_numbers(const std::string& text, std::vector<std::size_t>& values, std::size_t most) {
  if (text.empty()) return true;
  values.clear();
  for (const std::string& part : split_list(text)) {
    if (part.size() > 9 || part.find_first_not_of("0123456789") != std::string::npos) return false;
    values.push_back(std::stoul(part));
    if (values.back() == 0 || values.back() > most) return false;
  }
  return !values.empty();
}

void settle_quick(const CommandLine& line, RegcacheOptions& options) {
  if (!options.quick) return;
  if (!line.is_given("--repetitions")) options.repetitions = 1;
  if (!line.is_given("--regions")) options.regions = {1, 64, 1000};
  if (!line.is_given("--threads")) options.threads = {1, 2};
  if (!line.is_given("--rounds")) options.rounds = 2;
  if (!line.is_given("--least")) options.least = 1024;
  if (!line.is_given("--footprint")) options.footprint = 20'000;
}

// -1 to go on, otherwise the exit status.
int parse_options(int argc, char** argv, RegcacheOptions& options) {
  Lists lists;
  CommandLine line("The registration cache beside UCX's, measured in turn.", "regcache_compare");
  add_options(line, options, lists);
  if (const int status = parse_driver_options(line, argc, argv, options, "regcache.json");
      status >= 0)
    return status;
  if (!parse_numbers(lists.regions, options.regions, 10'000'000))
    return refuse(options, fmt::format("--regions {}: numbers from 1 to 10000000 are wanted, as in "
                                       "64,1000",
                                       lists.regions));
  if (!parse_numbers(lists.threads, options.threads, 64))
    return refuse(options, fmt::format("--threads {}: numbers from 1 to 64 are wanted, as in 1,2",
                                       lists.threads));
  settle_quick(line, options);
  return -1;
}

int compare(int argc, char** argv) {
  RegcacheOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  end_children_on_interrupt();
  fmt::print("{} numbers of registrations, {} of threads, {} repetitions, interleaved\n",
             options.regions.size(), options.threads.size(), options.repetitions);
  std::fflush(stdout);
  if (options.list) return 0;
  RegcacheResults results;
  run_regcache(options, results);
  if (results.interrupted) fmt::print("\ninterrupted: what follows is incomplete\n");
  fmt::print("{}", regcache_tables(results));
  write_json(options, regcache_json(options, results));
  const std::string picture = options.output_folder + "/regcache.svg";
  if (!results.rows.empty()) write_picture(picture, regcache_picture(results, picture));
  if (results.interrupted) return 130;
  return results.failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::compare(argc, argv);
}
