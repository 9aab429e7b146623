// Programs: where the shell would find one, what the loader would do to it, what it says.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace rdmalloc::tool {

// Changes of the environment: a value, or nothing where the variable is taken out.
using Changes = std::map<std::string, std::optional<std::string>>;

constexpr int kExitNotExecutable = 126;  // as the shell has them
constexpr int kExitNotFound = 127;

struct Found {
  std::string path;     // empty unless it can be executed
  int status = 0;       // otherwise the shell's exit status for it,
  std::string problem;  // and why
};

// The librdmalloc.so that this program runs on, without the ".." of the tool's own search path.
// Symbolic links stay, since other machines may have another release behind the same link.
std::string our_library();

// This program, also where /proc is not mounted.
std::string own_program();

// As execvp(3) and the shell look: a name with a slash is a path, others are searched in PATH.
Found find_program(const std::string& name);

// The ELF program that the kernel starts for `path`: itself, or the interpreter of a script's
// first line. Empty when there is none.
std::string started_for(const std::string& path);

// Why the loader would not load `library` into `program`, or would not let it be its malloc; one
// sentence, empty when it does as far as the files show, or the program was linked with rdmalloc.
std::string preload_obstacle(const std::string& program, const std::string& library);

struct Said {
  bool has_ended = false;  // by itself, within the limit
  int exit_status = -1;    // 128 + N for signal N
  std::string out, err;
};

// Runs a program without standard input, and kills it at the limit. `more` changes its environment.
Said ask(const std::vector<std::string>& command, const Changes& more,
         std::chrono::milliseconds limit = std::chrono::seconds(20));

// Control characters as \x1b, for a terminal: as the library's messages have them
// (alloc/core/report.cc).
std::string visible(const std::string& text);

// A word as a shell needs it.
std::string quoted(const std::string& word);

}  // namespace rdmalloc::tool
