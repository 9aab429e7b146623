// Launchers of parallel jobs, and how each carries an environment to its ranks.
//
// The environment that a launcher is started with reaches ranks on the same machine at most; each
// launcher has its own option for the others. By that option the preload reaches the ranks without
// the launcher itself, which keeps the malloc that it was built and tested with
// (docs/launchers.md has the facts behind each).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/rdmalloc/programs.h"

namespace rdmalloc::tool {

struct Launcher {
  enum class Kind { none, open_mpi, hydra, slurm };
  Kind kind = Kind::none;
  int major = 0;     // of its release, where that makes a difference
  std::string name;  // "Open MPI 4.1.4", as it says itself
  std::string path;
  bool is_batch = false;  // sbatch: one script, whose arguments follow it
  std::string complaint;  // it is called like a launcher but is none that we know
};

// By the name of the program, through symbolic links, and by what it says of itself.
Launcher launcher_of(const std::string& path);

// What is to reach every rank.
struct Wanted {
  std::string library;                          // first in LD_PRELOAD
  std::map<std::string, std::string> settings;  // RDMALLOC_*
};

struct Plan {
  std::vector<std::string> command;
  Changes environment;                // of the launcher, or of the program when there is none
  std::vector<std::string> programs;  // that the ranks run, as far as they are known
  std::vector<std::string> warnings;  // sentences
  std::string refusal;                // why there is no plan
};

// "-x A=1": x, {A=1}; "--map-by=core": map-by, {core}; "-n2" of Slurm: n, {2}.
struct Option {
  std::string name;                 // without dashes
  std::vector<std::string> values;  // as many as it takes
  std::size_t at = 0, words = 1;    // of the command: where it is, how many, itself included
};

// One of the commands that ":" divides a launcher's into: its options, then its program. Indices of
// words; program == end where no program was found.
struct Context {
  std::size_t begin, program, end;
  std::vector<Option> options;
};
std::vector<Context> contexts_of(const Launcher& launcher, const std::vector<std::string>& command);

// The program of a context as it is found from here: a relative path begins in the folder that the
// launcher's option for it names. Empty where there is none.
std::string program_of(const Launcher& launcher, const std::vector<std::string>& command,
                       const Context& context);

// A parameter of Open MPI's that neither an option nor the environment gives: of a --tune file, of
// the user's mca-params.conf, of the installation's, or of those that the parameters for them name.
std::optional<std::string> mca_in_files(const Launcher& launcher,
                                        const std::vector<Context>& contexts,
                                        const std::string& name);

// "NAME" or "NAME=VALUE" of an -x in a --tune file; it is of all contexts, and theirs come before
// it.
std::optional<std::string> x_in_files(const std::vector<Context>& contexts,
                                      const std::string& name);

// The words of a line as launchers divide those of their files: at spaces outside of quotes, up to
// a "#" that begins a word.
std::vector<std::string> words_of_line(const std::string& text);

// `command` begins with the launcher, or with the program itself.
Plan plan_for(const Launcher& launcher, const std::vector<std::string>& command,
              const Wanted& wanted);

// LD_PRELOAD with `library` first, what was there after it, and no second rdmalloc.
std::string merged_preload(const std::string& library, const std::string& before);

}  // namespace rdmalloc::tool
