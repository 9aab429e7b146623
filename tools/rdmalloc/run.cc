#include "tools/rdmalloc/run.h"

#include <elf.h>
#include <fmt/format.h>
#include <rdmalloc/rdmalloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "alloc/os/fault.h"
#include "tools/rdmalloc/elf_file.h"
#include "tools/rdmalloc/info.h"
#include "tools/rdmalloc/launchers.h"
#include "tools/rdmalloc/programs.h"

namespace rdmalloc::tool {
namespace {

namespace fs = std::filesystem;
constexpr const char* kPrefix = "RDMALLOC_";

int fail(const std::string& sentence, int status = kExitRunFailed) {
  fmt::print(stderr, "rdmalloc: run: {}\n", visible(sentence));
  return status;
}

// Absolute, since ranks may start in other folders; symbolic links stay, since other machines may
// have another release behind the same link.
std::string library_path(const std::string& named) {
  return fs::absolute(named.empty() ? our_library() : named).lexically_normal().string();
}

// What is wrong with it as a library to preload here; empty when nothing is.
std::string library_problem(const std::string& library) {
  if (access(library.c_str(), R_OK) != 0)
    return fmt::format("{}: {}; name librdmalloc.so by --library", library, std::strerror(errno));
  if (library.find_first_of(" :") != std::string::npos)
    return fmt::format(
        "'{}': LD_PRELOAD is divided at spaces and colons, so that a path with one can't be "
        "preloaded; install it elsewhere, or name it through a symbolic link without one",
        library);
  const std::optional<ElfFile> file = read_elf(library);
  const std::optional<ElfFile> here = read_elf(own_program());
  if (!file || file->type != ET_DYN)
    return fmt::format("{}: is not a shared library; name librdmalloc.so by --library", library);
  if (here && (file->bits != here->bits || file->machine != here->machine))
    return fmt::format(
        "{}: is for {}, and this machine's programs are for {}; build rdmalloc for it, and name "
        "that library by --library",
        library, architecture_of(*file), architecture_of(*here));
  if (!defines(*file, "rdmalloc_version") || !defines(*file, "malloc"))
    return fmt::format("{}: is another library than librdmalloc.so; name that by --library",
                       library);
  return {};
}

// The loader goes on without a preload that it can't load, and says so on standard error only. It
// is asked with this program, before anything is started that runs for hours.
std::string loader_problem(const std::string& library) {
  // Its statistics are of no rank.
  const Said said = ask({own_program(), "--version"},
                        {{"LD_PRELOAD", library}, {"RDMALLOC_STATS", std::nullopt}});
  if (said.err.find("ld.so: object") == std::string::npos && said.exit_status == 0) return {};
  if (said.exit_status < 0)
    return fmt::format(
        "the loader could not be asked whether it can preload {}: {} can't be started: {}; mount "
        "/proc, or give this program's whole path",
        library, own_program(), said.err);
  return fmt::format(
      "the loader can't preload {}; use a library built for this system. It says: {}", library,
      said.err.empty() ? fmt::format("exit status {}", said.exit_status)
                       : said.err.substr(0, said.err.find('\n')));
}

bool is_setting(const std::string& name) {
  for (const Setting& setting : gather().settings)
    if (setting.name == name) return true;
  return name == "RDMALLOC_FAULT";
}

std::string names_of_settings() {
  std::string names;
  for (const Setting& setting : gather().settings)
    names += (names.empty() ? "" : ", ") + setting.name.substr(std::strlen(kPrefix));
  return names;
}

// All RDMALLOC_ variables of our environment, and those of the command line, which come first.
// Returns what is wrong.
std::string collect_settings(const RunOptions& options, Wanted& wanted) {
  for (char** entry = environ; *entry != nullptr; entry++) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (text.rfind(kPrefix, 0) == 0 && equals != std::string::npos)
      wanted.settings[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const std::string& text : options.settings) {
    const std::size_t equals = text.find('=');
    std::string name = text.substr(0, equals);
    if (name.rfind(kPrefix, 0) != 0) name = kPrefix + name;
    if (equals == std::string::npos)
      return fmt::format("--set {}: has no '='; write --set NAME=VALUE", text);
    if (!is_setting(name))
      return fmt::format("--set {}: there is no setting {}; there are: {}", text, name,
                         names_of_settings());
    wanted.settings[name] = text.substr(equals + 1);
  }
  return {};
}

// "commit:1,decommit:2" names sites that there are, each with a number from 1: what for_each_fault
// of alloc/core/options.cc takes, so that no rank warns of what is passed on.
std::string fault_problem(const std::string& value) {
  std::istringstream faults(value);
  for (std::string fault; std::getline(faults, fault, ',');) {
    const std::size_t colon = fault.find(':');
    bool is_site = false;
    const char *name = nullptr, *help = nullptr;
    for (std::size_t i = 0; rdmalloc_fault_site(i, &name, &help) != 0; i++)
      is_site = is_site || fault.substr(0, colon) == name;
    const std::string number = colon == std::string::npos ? "" : fault.substr(colon + 1);
    std::uint64_t nth = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), nth);
    if (!is_site || error != std::errc() || end != number.data() + number.size() || nth == 0)
      return fmt::format(
          "'{}' is no site with a number from 1 to 2^64 - 1, as in commit:1; rdmalloc info "
          "--fault-sites lists the sites",
          fault);
  }
  return {};
}

// What rdmalloc itself says of the values of the command line: a child of ours is started with each
// alone, and reads it as any program does. Refused here, since ranks would warn and go on with the
// default. Left out: RDMALLOC_FAULT, which would fail our child, and a file for its statistics.
std::string value_problem(const RunOptions& options) {
  for (const std::string& text : options.settings) {
    std::string name = text.substr(0, text.find('='));
    if (name.rfind(kPrefix, 0) != 0) name = kPrefix + name;
    const std::string value = text.substr(text.find('=') + 1);
    const bool is_file = name == "RDMALLOC_STATS" && value.find('/') != std::string::npos;
    if (name == "RDMALLOC_FAULT")
      if (const std::string wrong = fault_problem(value); !wrong.empty())
        return fmt::format("--set {}: {}", text, wrong);
    if (name == "RDMALLOC_FAULT" || is_file) continue;
    Changes alone;
    for (char** entry = environ; *entry != nullptr; entry++)
      if (const std::string other = *entry; other.rfind(kPrefix, 0) == 0)
        alone[other.substr(0, other.find('='))] = std::nullopt;
    alone["LD_PRELOAD"] = std::nullopt;
    alone[name] = value;
    const std::string said = ask({own_program(), "--version"}, alone).err;
    // The value itself may be cut in what is said of it.
    const std::size_t at = said.find(visible(name) + "=");
    if (at == std::string::npos) continue;
    // "RDMALLOC_DECAY_MS=x is not understood; allowed: 0 to 3600000 (milliseconds); using 5000"
    const std::string problem = said.substr(at, said.find('\n', at) - at);
    if (problem.rfind(" is not understood; allowed: ") == std::string::npos) continue;
    return fmt::format("--set {}: {}", text, problem.substr(0, problem.rfind("; using ")));
  }
  return {};
}

// The folder with an absolute name, since ranks may start elsewhere.
std::string absolute_folder(const std::string& named) {
  std::string path = fs::absolute(named).lexically_normal().string();
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// A file for each process, in the form that `rdmalloc job` knows (job_files.h).
std::string file_setting(const std::string& folder) {
  std::string pattern;
  for (const char c : folder) pattern += c == '%' ? "%%" : std::string(1, c);
  return pattern + "/%r.%h.%p.json";
}

// Makes the folder. Returns what is wrong: what another job left there would be taken for this
// one's, and a user who may rename what is in it could have ranks write to files of ours.
std::string folder_problem(const std::string& folder) {
  std::error_code error;
  constexpr mode_t kMode = 0775;  // not for all to write to, whatever the umask
  struct stat state = {};
  const bool is_made = mkdir(folder.c_str(), kMode) == 0;
  if ((!is_made && errno != EEXIST) || stat(folder.c_str(), &state) != 0)
    return fmt::format("--stats={}: can't be made: {}; name a place that can be written to", folder,
                       std::strerror(errno));
  if (!S_ISDIR(state.st_mode))
    return fmt::format("--stats={}: can't be made: it is a file; name another place", folder);
  // Of one that is new NFS may name another owner (root_squash), and there is nothing to change.
  if (is_made) return {};
  if (state.st_uid != geteuid() && state.st_uid != 0)
    return fmt::format("--stats={}: belongs to another user ({}); name a folder of your own",
                       folder, state.st_uid);
  if ((state.st_mode & S_IWOTH) != 0 && (state.st_mode & S_ISVTX) == 0)
    return fmt::format(
        "--stats={}: all users may rename what is in it; name another folder, or chmod o-w {}",
        folder, quoted(folder));
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    return fmt::format("--stats={}: {}; name a folder that can be written to", folder,
                       std::strerror(errno));
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".json")
      return fmt::format(
          "--stats={}: has statistics of another job ({}); name a new folder, or remove it", folder,
          entry.path().filename().string());
  return {};
}

// The sentence for what is not there names what to install where that is plain.
std::string not_found(const Found& found, const std::string& name) {
  for (const char* launcher : {"mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra"})
    if (name == launcher)
      return found.problem +
             "; install an MPI (apt install openmpi-bin, or mpich), or load its module, or give "
             "its "
             "path";
  if (name == "srun" || name == "sbatch")
    return found.problem +
           "; install Slurm's client (apt install slurm-client), or load its module";
  return found.status == kExitNotFound ? found.problem + "; check the name, or give its path"
                                       : found.problem;
}

// Programs that, by their files, will run without rdmalloc.
std::vector<std::string> without_us(const Plan& plan, const std::string& library) {
  std::vector<std::string> all;
  for (const std::string& name : plan.programs) {
    // What is not here may be on the machines where the ranks run: the launcher will say so.
    const Found found = find_program(name);
    if (found.path.empty()) continue;
    const std::string obstacle = preload_obstacle(started_for(found.path), library);
    if (!obstacle.empty()) all.push_back(obstacle);
  }
  return all;
}

std::string as_shell_line(const Plan& plan) {
  std::string removed, set, command;
  for (const auto& [name, value] : plan.environment)
    if (value)
      set += quoted(name + "=" + *value) + " ";
    else if (std::getenv(name.c_str()) != nullptr)
      removed += "-u " + quoted(name) + " ";
  for (const std::string& word : plan.command)
    command += (command.empty() ? "" : " ") + quoted(word);
  return (removed.empty() && set.empty() ? "" : "env ") + removed + set + command;
}

int become(const Plan& plan, const Found& program) {
  for (const auto& [name, value] : plan.environment)
    if (value)
      setenv(name.c_str(), value->c_str(), 1);
    else
      unsetenv(name.c_str());
  std::vector<std::string> words = plan.command;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  // It has been found by now: the name that was given stays its argument 0, and execvp runs as a
  // shell script what the kernel does not know.
  execvp(program.path.c_str(), pointers.data());
  const int error = errno;
  const std::string interpreter = started_for(program.path);
  const bool lacks_interpreter = error == ENOENT;
  return fail(
      lacks_interpreter
          ? fmt::format("{}: its interpreter or loader is not there{}; install what it names",
                        program.path, interpreter != program.path ? " (" + interpreter + ")" : "")
          : fmt::format("{}: {}", program.path, std::strerror(error)),
      lacks_interpreter ? kExitNotFound : kExitNotExecutable);
}

}  // namespace

int run(const RunOptions& options) {
  if (options.command.empty())
    return fail("no command; write: rdmalloc run [options] -- program arguments");
  Wanted wanted;
  if (const std::string wrong = collect_settings(options, wanted); !wrong.empty())
    return fail(wrong);
  if (const std::string wrong = value_problem(options); !wrong.empty()) return fail(wrong);
  const std::string folder =
      options.stats_folder.empty() ? "" : absolute_folder(options.stats_folder);
  if (!folder.empty()) wanted.settings["RDMALLOC_STATS"] = file_setting(folder);
  wanted.library = library_path(options.library);
  for (const auto& problem : {library_problem, loader_problem})
    if (const std::string wrong = problem(wanted.library); !wrong.empty()) return fail(wrong);
  const Found program = find_program(options.command[0]);
  if (program.path.empty()) return fail(not_found(program, options.command[0]), program.status);
  const Launcher launcher = launcher_of(program.path);
  const Plan plan = plan_for(launcher, options.command, wanted);
  if (!plan.refusal.empty()) return fail(plan.refusal);
  for (const std::string& warning : plan.warnings) fail(warning);
  if (launcher.kind != Launcher::Kind::none && wanted.settings["RDMALLOC_STATS"] == "1")
    fail(
        "--stats writes some 45 lines a rank to one standard error, with rank and process at their "
        "head; "
        "--stats=FOLDER keeps them apart, and 'rdmalloc job FOLDER' makes one table of them");
  const std::vector<std::string> obstacles = without_us(plan, wanted.library);
  for (const std::string& obstacle : obstacles)
    fail(obstacle + (options.is_strict ? "" : ". It runs without rdmalloc."));
  if (options.is_strict && !obstacles.empty()) return kExitRunFailed;
  if (options.is_dry) {
    fmt::print("{}\n", as_shell_line(plan));
    return std::fflush(stdout) == 0 ? 0 : fail("standard output can't be written to");
  }
  if (!folder.empty())
    if (const std::string wrong = folder_problem(folder); !wrong.empty()) return fail(wrong);
  return become(plan, program);
}

}  // namespace rdmalloc::tool
