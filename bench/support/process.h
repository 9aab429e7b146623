// Runs a command with a time limit, and leaves nothing of it behind.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rdmalloc::bench {

// What bench_launch counts of a program's system calls (bench/launch/calls.h).
enum class CallsCounted { none, all, memory };

struct Command {
  std::vector<std::string> arguments;              // the program first, looked up in PATH
  std::map<std::string, std::string> environment;  // added to ours
  std::chrono::milliseconds limit{60'000};
  // Path of bench_launch, which then starts it: cpu_s, wall_s and peak_rss_kib are of the program
  // alone. Without one peak_rss_kib includes this process's own.
  std::string launcher;
  CallsCounted calls_counted = CallsCounted::none;     // needs the launcher
  std::function<void(std::string_view line)> on_line;  // each line of its standard output
  std::function<std::string(pid_t)> on_limit;          // before it is killed; returns a report
};

struct Outcome {
  int exit_code = -1;  // -1 unless it exited by itself
  int signal = 0;      // what it died of, 0 for none
  bool timed_out = false;
  bool interrupted = false;  // SIGINT, SIGTERM or SIGHUP came to us
  std::string start_error;   // why it could not be started
  std::string limit_report;  // what on_limit returned
  std::string standard_output;
  std::string standard_error;
  double wall_s = 0;
  double cpu_s = 0;           // user + system, of it and of the children it waited for
  long peak_rss_kib = 0;      // the largest of these processes
  long page_faults = 0;       // of all of them
  std::string launch_report;  // the launcher's, a JSON object

  bool ok() const { return exit_code == 0 && !timed_out && !interrupted && start_error.empty(); }
  std::string describe() const;  // one line: "exited with 3", "killed by SIGSEGV", …
};

Outcome run(const Command& command);

// SIGINT, SIGTERM and SIGHUP, unless we were started with them ignored, end the running command and
// everything below it, then run() returns with `interrupted`; without this they would leave an
// mpirun's ranks spinning.
void end_children_on_interrupt();
bool interrupt_seen();

// The processes below `root`, itself first.
std::vector<pid_t> process_tree(pid_t root);

// Stacks of all threads of the processes below `root` whose executable is called `program`, by gdb;
// a sentence when there is no gdb or it may not look.
std::string stacks_below(pid_t root, std::string_view program);

// Absolute path of a program found in PATH, or empty.
std::string find_program(const std::string& name);

}  // namespace rdmalloc::bench
