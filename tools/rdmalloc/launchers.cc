#include "tools/rdmalloc/launchers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace rdmalloc::tool {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The value of "NAME=VALUE", or of the bare NAME in our environment; nothing for another name.
std::optional<std::string> value_in(const std::string& word, const std::string& name) {
  if (word == name) return variable(name.c_str());
  if (word.rfind(name + "=", 0) == 0) return word.substr(name.size() + 1);
  return std::nullopt;
}

std::string assignment(const std::string& name, const std::string& value) {
  return fmt::format("{}={}", name, value);
}

void add_programs(const Launcher& launcher, const std::vector<Context>& contexts,
                  const Words& command, Plan& plan) {
  for (const Context& context : contexts)
    if (const std::string program = program_of(launcher, command, context); !program.empty())
      plan.programs.push_back(program);
}

// ---- Open MPI and PRRTE: -x NAME=VALUE, of each context apart; the last one of a name counts.

std::optional<std::string> mca_value(const Launcher& launcher, const std::vector<Context>& contexts,
                                     const std::string& name) {
  for (const Context& context : contexts)
    for (const Option& option : context.options)
      if (option.values.size() == 2 && option.values[0] == name) return option.values[1];
  const std::string value = variable(("OMPI_MCA_" + name).c_str());
  return value.empty() ? mca_in_files(launcher, contexts, name) : value;
}

// mca_base_env_list is the other way to pass variables, and 4 refuses both in one command: where
// the user took it, it gets ours too.
bool add_to_env_list(const Launcher& launcher, const Wanted& wanted,
                     const std::vector<Context>& contexts, Plan& plan) {
  const std::string named =
      mca_value(launcher, contexts, "mca_base_env_list_delimiter").value_or("");
  const char delimiter = named.empty() ? ';' : named[0];
  const auto extended = [&wanted, delimiter](const std::string& list) {
    std::string preload = variable("LD_PRELOAD");
    std::string text;
    std::istringstream entries(list);
    for (std::string entry; std::getline(entries, entry, delimiter);)
      if (const auto theirs = value_in(entry, "LD_PRELOAD"))
        preload = *theirs;
      else if (!entry.empty())
        text += entry + delimiter;
    for (const auto& [name, value] : wanted.settings) text += assignment(name, value) + delimiter;
    return text + assignment("LD_PRELOAD", merged_preload(wanted.library, preload));
  };
  for (const Context& context : contexts)
    for (const Option& option : context.options)
      if (option.values.size() == 2 && option.values[0] == "mca_base_env_list") {
        // Not at + 2: the name may be part of the first word (--mca=mca_base_env_list).
        plan.command[option.at + option.words - 1] = extended(option.values[1]);
        return true;
      }
  std::string list = variable("OMPI_MCA_mca_base_env_list");
  // The environment comes before files, also before that of --tune.
  if (list.empty()) list = mca_in_files(launcher, contexts, "mca_base_env_list").value_or("");
  if (list.empty()) return false;
  plan.environment["OMPI_MCA_mca_base_env_list"] = extended(list);
  return true;
}

void plan_open_mpi(const Launcher& launcher, const Wanted& wanted, Plan& plan) {
  const std::vector<Context> contexts = contexts_of(launcher, plan.command);
  add_programs(launcher, contexts, plan.command, plan);
  if (launcher.major < 5 && add_to_env_list(launcher, wanted, contexts, plan)) return;
  const std::string tuned = x_in_files(contexts, "LD_PRELOAD").value_or("LD_PRELOAD");
  Words command = {plan.command[0]};
  for (const Context& context : contexts) {
    if (context.begin > 1) command.emplace_back(":");
    const std::size_t options = command.size();
    std::string preload = value_in(tuned, "LD_PRELOAD").value_or("");
    std::size_t copied = context.begin;
    const auto copy_to = [&](std::size_t end) {
      while (copied < end) command.push_back(plan.command[copied++]);
    };
    for (const Option& option : context.options) {
      if (option.name == "app")
        plan.warnings.emplace_back(
            "the launcher reads its command from an --app file and ignores the rest of the command "
            "line, so nothing can be added: put the -x options that --dry-run shows into each of "
            "its lines");
      if (option.name != "x" || option.values.empty()) continue;
      // A later -x would win over ours: theirs is taken out here, and comes after ours in it.
      if (const auto theirs = value_in(option.values[0], "LD_PRELOAD")) {
        preload = *theirs;
        copy_to(option.at);
        copied += option.words;
      }
    }
    copy_to(context.end);
    Words ours = {"-x", assignment("LD_PRELOAD", merged_preload(wanted.library, preload))};
    for (const auto& [name, value] : wanted.settings) {
      ours.emplace_back("-x");
      ours.push_back(assignment(name, value));
    }
    command.insert(command.begin() + static_cast<std::ptrdiff_t>(options), ours.begin(),
                   ours.end());
  }
  plan.command = std::move(command);
}

// ---- Hydra (MPICH, MVAPICH, Intel MPI): -genv NAME VALUE (or NAME=VALUE), once for all contexts;
// the last one of a name counts, and -env of one context before it.

void plan_hydra(const Launcher& launcher, const Wanted& wanted, Plan& plan) {
  const std::vector<Context> contexts = contexts_of(launcher, plan.command);
  add_programs(launcher, contexts, plan.command, plan);
  for (const Context& context : contexts)
    for (const Option& option : context.options) {
      if ((option.name != "genv" && option.name != "env") || option.values.empty()) continue;
      const std::string& name = option.values[0];
      std::string& last = plan.command[option.at + option.words - 1];
      if (name == "LD_PRELOAD" && option.values.size() == 2)
        last = merged_preload(wanted.library, last);
      else if (const auto theirs = value_in(name, "LD_PRELOAD"); theirs && name != "LD_PRELOAD")
        last = assignment("LD_PRELOAD", merged_preload(wanted.library, *theirs));
    }
  Words ours = {"-genv", "LD_PRELOAD", merged_preload(wanted.library, variable("LD_PRELOAD"))};
  for (const auto& [name, value] : wanted.settings) ours.insert(ours.end(), {"-genv", name, value});
  plan.command.insert(plan.command.begin() + 1, ours.begin(), ours.end());
}

// ---- Slurm: --export=LIST. Its commas have no escape, so that settings go by name, from the
// environment; and with ALL that environment comes before the list's values, so that LD_PRELOAD is
// taken out of it.

std::string exported(const std::string& list, const Wanted& wanted) {
  std::string preload = variable("LD_PRELOAD");
  std::string text;
  bool has_all = false;
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, ',');) {
    has_all = has_all || entry == "ALL";
    if (const auto theirs = value_in(entry, "LD_PRELOAD")) preload = *theirs;
    // NONE and NIL allow no names beside them; naming ours alone leaves out the same others.
    else if (entry != "NONE" && entry != "NIL" && !entry.empty())
      text += entry + ",";
  }
  if (!has_all)
    for (const auto& [name, value] : wanted.settings) text += name + ",";
  return text + assignment("LD_PRELOAD", merged_preload(wanted.library, preload));
}

// A batch script's own --export, which an option of the command line would override: of its
// "#SBATCH" lines before the first command, the last one.
// Nothing where it can't be read twice: a pipe is emptied by us, or never has a writer.
std::optional<std::string> list_of_script(const Launcher& launcher, const std::string& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored) && !fs::is_regular_file(path, ignored)) return std::nullopt;
  std::ifstream file(path);
  constexpr std::string_view kDirective = "#SBATCH";
  std::string list;
  for (std::string line; std::getline(file, line);) {
    // As sbatch looks: blank lines and indented comments are no command, and no directive.
    const std::size_t first = line.find_first_not_of(" \t\r\v\f");
    if (first != std::string::npos && line[first] != '#') break;
    if (line.rfind(kDirective, 0) != 0) continue;
    Words words = words_of_line(line.substr(kDirective.size()));
    words.insert(words.begin(), path);
    for (const Option& option : contexts_of(launcher, words)[0].options)
      if (option.name == "export" && !option.values.empty()) list = option.values[0];
  }
  return list;
}

bool has_option(const std::vector<Context>& contexts, const std::string& name) {
  for (const Context& context : contexts)
    for (const Option& option : context.options)
      if (option.name == name && !option.values.empty()) return true;
  return false;
}

void plan_slurm(const Launcher& launcher, const Wanted& wanted, Plan& plan) {
  const std::vector<Context> contexts = contexts_of(launcher, plan.command);
  add_programs(launcher, contexts, plan.command, plan);
  std::string inherited = variable(launcher.is_batch ? "SBATCH_EXPORT" : "SLURM_EXPORT_ENV");
  const bool has_list = has_option(contexts, "export");
  if (launcher.is_batch && inherited.empty() && !has_list && !has_option(contexts, "wrap")) {
    // Without a script's name sbatch reads standard input.
    const auto list =
        plan.programs.empty() ? std::nullopt : list_of_script(launcher, plan.programs[0]);
    if (!list)
      plan.warnings.push_back(fmt::format(
          "{}: an #SBATCH --export in it is not read, since only sbatch can read it, and the "
          "--export that is added to the command comes before it; give its list to sbatch: "
          "--export=LIST",
          plan.programs.empty() ? "the script on standard input" : plan.programs[0]));
    inherited = list.value_or("");
  }
  if (inherited.empty()) inherited = "ALL";
  // --export is of one component of a heterogeneous job. From the last on, so that indices hold.
  for (auto context = contexts.rbegin(); context != contexts.rend(); ++context) {
    bool is_exported = false;
    for (const Option& option : context->options) {
      if (option.name != "export" || option.values.empty()) continue;
      std::string& last = plan.command[option.at + option.words - 1];
      last = (option.words == 1 ? "--export=" : "") + exported(option.values[0], wanted);
      is_exported = true;
    }
    if (!is_exported)
      plan.command.insert(plan.command.begin() + static_cast<std::ptrdiff_t>(context->begin),
                          "--export=" + exported(inherited, wanted));
  }
  if (merged_preload(wanted.library, variable("LD_PRELOAD")).find(',') != std::string::npos)
    plan.refusal =
        "a path in LD_PRELOAD has a comma, which Slurm's --export divides its list at: name the "
        "library by a path without one (--library)";
  plan.environment["LD_PRELOAD"] = std::nullopt;
  for (const auto& [name, value] : wanted.settings) plan.environment[name] = value;
}

// ---- No launcher: the environment.

void plan_plain(const Wanted& wanted, Plan& plan) {
  plan.programs = {plan.command[0]};
  plan.environment["LD_PRELOAD"] = merged_preload(wanted.library, variable("LD_PRELOAD"));
  for (const auto& [name, value] : wanted.settings) plan.environment[name] = value;
}

// "mpirun", "mpiexec.openmpi", "prterun": what MPI's launchers are called, in any dressing.
bool is_called_like_one(const std::string& name) {
  const std::string stem = name.substr(0, name.find_first_of(".-"));
  for (const char* known : {"mpirun", "mpiexec", "orterun", "prterun", "oshrun", "shmemrun"})
    if (stem == known) return true;
  return false;
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

// "mpirun (Open MPI) 4.1.4", "orterun (OpenRTE) 4.1.4", "prterun (PRRTE) 3.0.8"
bool is_open_mpi(const std::string& said, Launcher& launcher) {
  const std::string line = first_line(said);
  for (const char* project : {"(Open MPI) ", "(OpenRTE) ", "(PRRTE) "}) {
    const std::size_t at = line.find(project);
    if (at == std::string::npos) continue;
    const std::string release = line.substr(at + std::string_view(project).size());
    const bool is_prrte = std::string_view(project) == "(PRRTE) ";
    launcher.kind = Launcher::Kind::open_mpi;
    // PRRTE is what Open MPI launches by from its release 5 on.
    launcher.major = is_prrte ? 5 : std::atoi(release.c_str());
    launcher.name = fmt::format("{} {}", is_prrte ? "PRRTE" : "Open MPI", release);
    return true;
  }
  return false;
}

bool is_hydra(const std::string& said, Launcher& launcher) {
  if (said.find("HYDRA build details") == std::string::npos &&
      said.find("Intel(R) MPI Library") == std::string::npos)
    return false;
  launcher.kind = Launcher::Kind::hydra;
  std::string version;
  if (const std::size_t at = said.find("Version:"); at != std::string::npos)
    std::istringstream(said.substr(at + std::string_view("Version:").size())) >> version;
  launcher.major = std::atoi(version.c_str());
  launcher.name = version.empty() ? first_line(said) : "MPICH " + version;
  return true;
}

}  // namespace

std::vector<std::string> words_of_line(const std::string& text) {
  std::vector<std::string> words;
  bool is_in_word = false;
  char quote = 0;
  for (const char letter : text) {
    if (quote == 0 && (letter == ' ' || letter == '\t')) {
      is_in_word = false;
      continue;
    }
    if (!is_in_word && letter == '#') break;
    if (!is_in_word) words.emplace_back();
    is_in_word = true;
    if (quote == 0 && (letter == '\'' || letter == '"'))
      quote = letter;
    else if (letter == quote)
      quote = 0;
    else
      words.back() += letter;
  }
  return words;
}

std::string merged_preload(const std::string& library, const std::string& before) {
  std::string merged = library;
  std::size_t at = 0;
  while (at < before.size()) {
    const std::size_t end = std::min(before.find_first_of(": ", at), before.size());
    const std::string entry = before.substr(at, end - at);
    // Two copies of rdmalloc would each take half of the calls.
    const bool is_ours =
        entry == library || fs::path(entry).filename().string().rfind("librdmalloc.so", 0) == 0;
    if (!entry.empty() && !is_ours) merged += ":" + entry;
    at = end + 1;
  }
  return merged;
}

Launcher launcher_of(const std::string& path) {
  Launcher launcher;
  launcher.path = path;
  std::error_code ignored;
  const std::string called = fs::path(path).filename();
  const std::string real = fs::canonical(path, ignored).filename();
  // Not asked: without a Slurm at hand even `srun --version` fails, and nothing else has that name.
  for (const std::string& name : {called, real})
    if (name == "srun" || name == "sbatch") {
      launcher.kind = Launcher::Kind::slurm;
      launcher.name = "Slurm";
      launcher.is_batch = name == "sbatch";
      return launcher;
    }
  if (!is_called_like_one(called) && !is_called_like_one(real)) return launcher;
  const Said said = ask({path, "--version"}, {{"LD_PRELOAD", std::nullopt}});
  if (is_open_mpi(said.out, launcher) || is_hydra(said.out, launcher)) return launcher;
  const std::string words = first_line(said.out.empty() ? said.err : said.out);
  launcher.complaint = fmt::format(
      "{} --version says '{}', which is no launcher that rdmalloc knows (Open MPI, PRRTE, MPICH's "
      "Hydra, Slurm): the preload is put into its environment, and whether other machines get it "
      "is "
      "up to it",
      path, words);
  return launcher;
}

Plan plan_for(const Launcher& launcher, const std::vector<std::string>& command,
              const Wanted& wanted) {
  Plan plan;
  plan.command = command;
  if (!launcher.complaint.empty()) plan.warnings.push_back(launcher.complaint);
  switch (launcher.kind) {
    case Launcher::Kind::open_mpi:
      plan_open_mpi(launcher, wanted, plan);
      break;
    case Launcher::Kind::hydra:
      plan_hydra(launcher, wanted, plan);
      break;
    case Launcher::Kind::slurm:
      plan_slurm(launcher, wanted, plan);
      break;
    case Launcher::Kind::none:
      plan_plain(wanted, plan);
      break;
  }
  return plan;
}

}  // namespace rdmalloc::tool
