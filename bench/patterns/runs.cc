#include "bench/patterns/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "bench/support/table.h"

namespace rdmalloc::bench {
namespace {

std::string short_size(std::size_t bytes) {
  if (bytes != 0 && bytes % (1 << 20) == 0) return fmt::format("{}M", bytes >> 20);
  if (bytes != 0 && bytes % (1 << 10) == 0) return fmt::format("{}K", bytes >> 10);
  return fmt::format("{}", bytes);
}

}  // namespace

std::string PatternRun::shape() const {
  return least == most
             ? fmt::format("{}:{}:{}", pattern, short_size(least), live)
             : fmt::format("{}:{}-{}:{}", pattern, short_size(least), short_size(most), live);
}

std::string PatternRun::name() const {
  return fmt::format("{}@{}", shape(), threads);
}

bool PatternRun::is_of_registrations() const {
  return pattern.rfind("reg-", 0) == 0 || is_of_ucx();
}

bool PatternRun::is_of_ucx() const {
  return pattern.rfind("ucx-", 0) == 0;
}

std::vector<std::string> PatternRun::command(const std::string& folder) const {
  const char* program = is_of_ucx()             ? "/ucx_patterns"
                        : is_of_registrations() ? "/reg_patterns"
                                                : "/thread_patterns";
  return {folder + program, pattern,
          "--threads",      fmt::format("{}", threads),
          "--sizes",        fmt::format("{}-{}", least, most),
          "--live",         fmt::format("{}", live)};
}

std::string parse_run(const std::string& text, PatternRun& run) {
  const std::string wrong = fmt::format(
      "'{}': PATTERN:LEAST-MOST:LIVE@THREADS is wanted, as in replace:1K-32K:32@16", text);
  const std::size_t sizes = text.find(':');
  const std::size_t live = sizes == std::string::npos ? sizes : text.find(':', sizes + 1);
  if (sizes == 0 || live == std::string::npos) return wrong;
  const std::size_t threads = text.find('@', live);
  run.pattern = text.substr(0, sizes);
  const std::string range = text.substr(sizes + 1, live - sizes - 1);
  const std::size_t dash = range.find('-');
  run.least = parse_bytes(range.substr(0, dash));
  run.most = dash == std::string::npos ? run.least : parse_bytes(range.substr(dash + 1));
  // Counts, but read like sizes: 0 is what is none.
  run.live = parse_bytes(
      text.substr(live + 1, threads == std::string::npos ? threads : threads - live - 1));
  constexpr std::size_t kMostThreads = 10'000;
  if (threads != std::string::npos)
    run.threads =
        static_cast<unsigned>(std::min(parse_bytes(text.substr(threads + 1)), kMostThreads + 1));
  const bool is_right = run.least != 0 && run.most >= run.least && run.live != 0 &&
                        run.threads != 0 && run.threads <= kMostThreads;
  return is_right ? "" : wrong;
}

PatternRun run_of(const std::string& text) {
  PatternRun run;
  if (const std::string problem = parse_run(text, run); !problem.empty())
    throw std::invalid_argument(problem);
  return run;
}

}  // namespace rdmalloc::bench
