// `rdmalloc run`: a command with librdmalloc.so in front of malloc, in every rank that it launches.
#pragma once

#include <string>
#include <vector>

namespace rdmalloc::tool {

// Why no command was started; env(1), nice(1) and timeout(1) have the same.
constexpr int kExitRunFailed = 125;

struct RunOptions {
  std::string library;                // empty: the one that this program runs on
  std::vector<std::string> settings;  // NAME=VALUE, with or without RDMALLOC_
  std::string stats_folder;           // empty: none. Where each process leaves its statistics
  bool is_dry = false;                // print the command and do not start it
  bool is_strict = false;             // what would run without rdmalloc does not run
  std::vector<std::string> command;
};

// Becomes the command, so that its exit status, signals and files are its own. Returns only when it
// did not: the exit status, after a sentence on standard error.
int run(const RunOptions& options);

}  // namespace rdmalloc::tool
