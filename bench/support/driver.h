// What the comparing programs share: their options, their notice of what is compared, how they
// write reports, and their exit status.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "bench/support/allocators.h"
#include "bench/support/command_line.h"

namespace rdmalloc::bench {

struct DriverOptions {
  std::string name;                 // of the program, in messages
  bool compares_allocators = true;  // false: nothing of `allocators` is asked for
  AllocatorSearch allocators;
  int repetitions = 3;
  int limit_s = 120;
  int backed_mib = 0;  // free memory that is backed before each run (backed_memory.h)
  bool list = false;
  bool quiet = false;
  std::string output_folder = "out";
  std::string json_path;       // default: default_json in output_folder
  std::string program_folder;  // where this program and those that it runs are
  std::string allocator_list;  // --allocators as given
};

// --allocators, --peer, --peers, --rdmalloc, where allocators are compared; --repetitions,
// --limit-s, --backed-mib, --output, --json, --list, --quiet, besides what `line` has. -1 to go on,
// otherwise the exit status: the message or the help is printed. `default_json` is the file's name
// in the output folder.
int parse_driver_options(CommandLine& line, int argc, char** argv, DriverOptions& options,
                         const std::string& default_json);

// "NAME: message" on standard error; returns 2.
int refuse(const DriverOptions& options, const std::string& message);

// One line for each allocator, and for what is left out.
void print_allocators(std::span<const Allocator> allocators, std::span<const LeftOut> left_out);

nlohmann::json to_json(const Allocator& allocator);

// Whether reports can be written where they are asked for: what is wrong, or nothing. To be asked
// before anything is measured.
std::string problem_of_output(const DriverOptions& options);
// Of a report. What a program said that is no UTF-8 is replaced.
std::string json_text(const nlohmann::json& report);
// Writes `report` and says where it is, or what went wrong: then false.
bool write_json(const DriverOptions& options, const nlohmann::json& report);
// Draws and says where the picture is, or what is missing.
void write_picture(const std::string& picture, const std::string& script);

// Of every comparing program: 130 when interrupted; 1 when rdmalloc failed, or was asked for by
// name and is not there; 3 when nothing was measured; 2 for wrong arguments (refuse()), and when
// the report could not be written; otherwise 0.
struct Ending {
  bool interrupted = false;
  bool rdmalloc_failed = false;
  bool measured = false;
  bool reported = true;
};
int exit_status(const DriverOptions& options, std::span<const Allocator> found,
                const Ending& ending);

}  // namespace rdmalloc::bench
