// A run of thread_patterns, or of reg_patterns (PATTERN is reg-…), as the drivers name it:
// PATTERN:LEAST-MOST:LIVE@THREADS, as in replace:1K-32K:32@16.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rdmalloc::bench {

struct PatternRun {
  std::string pattern;
  std::size_t least = 0;  // bytes of a block
  std::size_t most = 0;
  std::size_t live = 0;  // blocks of a thread
  unsigned threads = 0;

  std::string shape() const;  // without the threads
  std::string name() const;
  bool is_of_registrations() const;
  bool is_of_ucx() const;  // UCX's cache of registrations in place of ours
  // The program in `folder`, with all arguments but the number of operations.
  std::vector<std::string> command(const std::string& folder) const;
};

// What is wrong with the text, or nothing. The sizes may be one, and without @THREADS `threads`
// stays.
std::string parse_run(const std::string& text, PatternRun& run);
// Of texts of our own.
PatternRun run_of(const std::string& text);

}  // namespace rdmalloc::bench
