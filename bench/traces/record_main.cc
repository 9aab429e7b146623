// record_trace WORKLOAD, or record_trace --name NAME [--program PROGRAM] -- COMMAND...: leaves
// NAME.trace in the output folder and prints what is in it (docs/bench.md).
//
// Exit status: 0; 1 when there is no trace; 2 for wrong arguments.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "bench/support/command_line.h"
#include "bench/traces/workloads.h"

namespace {

using namespace rdmalloc::bench;

int refuse(const std::string& message) {
  fmt::print(stderr, "record_trace: {}\n", message);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::string name;
  std::string program;
  RecordingPlace place{{}, "out"};
  std::vector<std::string> command;
  CommandLine line("Records what a program asks of malloc, to be replayed under others.",
                   "record_trace");
  line.text("--name", name, "of the trace that COMMAND gives");
  line.text("--program", program, "which of the programs that COMMAND runs (default: any)");
  line.text("--output", place.output_folder, "folder of the trace");
  line.texts("command", command, "gcc, python, redis or mpi; with --name any command");
  if (const int status = line.parse(argc, argv); status >= 0) return status;
  std::error_code ignored;
  place.program_folder =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string();
  const auto is_named = [&](const Workload& workload) { return workload.name == command[0]; };
  if (command.empty()) return refuse("nothing to record: a workload, or --name NAME -- COMMAND");
  if (name.empty() &&
      (command.size() > 1 || std::none_of(workloads().begin(), workloads().end(), is_named)))
    return refuse(
        fmt::format("{}: there is no such workload, and a command needs --name", command[0]));
  if (name.find('/') != std::string::npos) return refuse("--name is a name and no path");
  const Recorded recorded = name.empty() ? record_workload(command[0], place)
                                         : record_command(name, command, program, place);
  if (recorded.trace.empty()) {
    fmt::print(stderr, "record_trace: {}\n", recorded.problem);
    return 1;
  }
  const Packed& packed = recorded.packed;
  fmt::print("{}: {}, {} threads, {} operations, {} slots{}{}\n", recorded.trace, packed.program,
             packed.threads, packed.operations, packed.slots,
             packed.unknown_blocks != 0
                 ? fmt::format(", {} ends of blocks from before left out", packed.unknown_blocks)
                 : "",
             packed.was_full ? ", cut off where the recording was full" : "");
  return 0;
}
