// rdmalloc doctor: the launcher, the program, and what they load.
#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "tools/rdmalloc/elf_file.h"
#include "tools/rdmalloc/findings.h"
#include "tools/rdmalloc/programs.h"

namespace rdmalloc::tool {
namespace {

namespace fs = std::filesystem;

Finding good(const char* id, const std::string& seen) {
  return {id, Severity::good, seen, "", ""};
}

// What the loader would load for `file`, by the loader itself: --list starts nothing of it. A
// library has no loader of its own; ours is taken.
std::vector<Library> list_libraries(const std::string& file) {
  std::optional<ElfFile> elf = read_elf(file);
  if (!elf) return {};
  if (elf->interpreter.empty()) elf = read_elf(own_program());
  if (!elf || elf->interpreter.empty()) return {};
  const Said said = ask({elf->interpreter, "--list", file}, {{"LD_PRELOAD", std::nullopt}});
  std::vector<Library> all;
  std::istringstream lines(said.out);
  // "libm.so.6 => /lib/libm.so.6 (0x00007f00)", or "=> not found". A path may have spaces.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t arrow = line.find(" => "), address = line.rfind(" (0x");
    if (arrow == std::string::npos) continue;
    const std::size_t name = line.find_first_not_of(" \t"), path = arrow + std::strlen(" => ");
    const bool is_found = address != std::string::npos && address >= path;
    all.push_back({line.substr(name, arrow - name),
                   is_found ? line.substr(path, address - path) : std::string()});
  }
  return all;
}

// Open MPI opens its components by itself, so that no list has them: those through which it speaks
// to libfabric and UCX. In Debian 13 they are part of its libraries.
std::vector<std::string> components_of(const std::string& libopen_pal) {
  std::vector<std::string> found;
  std::error_code ignored;
  const fs::path folder = fs::canonical(libopen_pal, ignored).parent_path();
  for (const fs::path& parent : {folder, folder / "openmpi", folder / "openmpi" / "lib"})
    for (const auto& entry : fs::directory_iterator(parent, ignored)) {
      if (entry.path().filename().string().rfind("openmpi", 0) != 0) continue;
      for (const char* name : {"mca_mtl_ofi.so", "mca_btl_ofi.so", "mca_pml_ucx.so"})
        if (fs::exists(entry.path() / name, ignored)) found.push_back(entry.path() / name);
    }
  return found;
}

void add_libraries(const std::vector<Library>& more, std::vector<Library>& all) {
  for (const Library& library : more) {
    const auto is_same = [&](const Library& one) { return one.name == library.name; };
    if (std::none_of(all.begin(), all.end(), is_same)) all.push_back(library);
  }
}

// A preload as the loader finds it: a path, or a name in LD_LIBRARY_PATH or the folders of libc.
std::string preload_path(const std::string& entry) {
  if (entry.find('/') != std::string::npos) return entry;
  const char* more = std::getenv("LD_LIBRARY_PATH");
  std::string text = more != nullptr ? more : "";
  std::replace(text.begin(), text.end(), ';', ':');
  std::istringstream folders(text);
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string path = (folder.empty() ? "." : folder) + "/" + entry;
        access(path.c_str(), R_OK) == 0)
      return path;
  Dl_info place = {};
  if (dladdr(reinterpret_cast<void*>(&std::fprintf), &place) == 0) return entry;
  return (fs::path(place.dli_fname).parent_path() / entry).string();
}

void add_program(const Found& found, Job& job) {
  if (found.path.empty())
    job.missing.push_back(found.problem);
  else
    job.programs.push_back(started_for(found.path));
}

// Ranks may start on machines that see other files than this one.
bool has_other_hosts(const Job& job) {
  if (job.launcher.kind == Launcher::Kind::slurm) return true;
  for (const char* option :
       {"host", "hosts", "hostfile", "machinefile", "default-hostfile", "H", "f"})
    if (job.has_option(option)) return true;
  return false;
}

// Whose MPI a program is linked with; empty: none that is known. libmpi.so.12 alone is the name
// that MPICH, Intel MPI and MVAPICH share.
std::string mpi_of(const Job& job, const Library** library) {
  for (const auto& [name, project] :
       {std::pair<const char*, const char*>{"libopen-pal.so", "Open MPI"},
        {"libmpich.so", "MPICH"},
        {"libmpi.so.12", "MPICH"}})
    if (const Library* found = job.library(name)) {
      *library = found;
      return project;
    }
  return {};
}

struct Release {
  unsigned major = 0, minor = 0;
  bool operator<(const Release& other) const {
    return major != other.major ? major < other.major : minor < other.minor;
  }
};

// By its own word, fi_version(); its files' names are of the interface, not of the release.
std::optional<Release> release_of(const std::string& libfabric) {
  void* handle = dlopen(libfabric.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return std::nullopt;
  const auto version = reinterpret_cast<std::uint32_t (*)()>(dlsym(handle, "fi_version"));
  if (version == nullptr) return std::nullopt;
  return Release{version() >> 16, version() & 0xffff};
}

// The library whose malloc the programs would have by LD_PRELOAD, if it is not ours.
std::string foreign_malloc(const std::string& preloads) {
  std::string text = preloads;
  std::replace(text.begin(), text.end(), ':', ' ');
  std::istringstream entries(text);
  for (std::string entry; entries >> entry;) {
    const std::optional<ElfFile> file = read_elf(preload_path(entry));
    if (!file || !defines(*file, "malloc")) continue;
    return defines(*file, "rdmalloc_version") ? "" : entry;
  }
  return {};
}

}  // namespace

namespace {

// Of "A=1,NAME=2" at its commas, or at another letter. The last one counts.
std::optional<std::string> value_in_list(const std::string& list, char between,
                                         const std::string& name) {
  std::optional<std::string> value;
  std::istringstream entries(list);
  for (std::string entry; std::getline(entries, entry, between);)
    if (entry.rfind(name + "=", 0) == 0) value = entry.substr(name.size() + 1);
  return value;
}

// What an option gives a rank: -x NAME=VALUE, -genv NAME VALUE, --export=LIST, and Open MPI's list.
std::optional<std::string> value_by(const Option& option, Launcher::Kind kind,
                                    const std::string& name, char delimiter) {
  if (option.values.empty()) return std::nullopt;
  const std::string& first = option.values[0];
  const bool is_pair = option.values.size() == 2;
  switch (kind) {
    case Launcher::Kind::open_mpi:
      if (option.name == "x") return value_in_list(first, '\0', name);
      if (is_pair && first == "mca_base_env_list")
        return value_in_list(option.values[1], delimiter, name);
      return std::nullopt;
    case Launcher::Kind::hydra:
      if (option.name != "genv" && option.name != "env") return std::nullopt;
      if (is_pair && first == name) return option.values[1];
      return value_in_list(first, '\0', name);
    case Launcher::Kind::slurm:
      return option.name == "export" ? value_in_list(first, ',', name) : std::nullopt;
    case Launcher::Kind::none:
      break;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> Job::variable(const std::string& name) const {
  // Open MPI's list is itself a parameter, and so a variable.
  const bool has_list =
      launcher.kind == Launcher::Kind::open_mpi && name.find("_MCA_") == std::string::npos;
  const std::string named =
      has_list ? mca("mca_base_env_list_delimiter").value_or("") : std::string();
  const char delimiter = named.empty() ? ';' : named[0];
  for (const Context& context : contexts) {
    std::optional<std::string> found;
    for (const Option& option : context.options)
      if (auto value = value_by(option, launcher.kind, name, delimiter)) found = value;
    if (found) return found;
  }
  if (has_list)
    if (auto value = value_in_list(mca("mca_base_env_list").value_or(""), delimiter, name))
      return value;
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

std::optional<std::string> Job::mca(const std::string& name) const {
  for (const Context& context : contexts)
    for (const Option& option : context.options)
      if (option.values.size() == 2 && option.values[0] == name && option.name != "env" &&
          option.name != "genv")
        return option.values[1];
  if (auto value = variable("OMPI_MCA_" + name)) return value;
  if (launcher.major >= 5)
    if (auto value = variable("PRTE_MCA_" + name)) return value;
  return launcher.kind == Launcher::Kind::open_mpi ? mca_in_files(launcher, contexts, name)
                                                   : std::nullopt;
}

bool Job::has_option(const std::string& name) const {
  for (const Context& context : contexts)
    for (const Option& option : context.options)
      if (option.name == name) return true;
  return false;
}

const Library* Job::library(const std::string& prefix) const {
  for (const Library& library : libraries)
    if (library.name.rfind(prefix, 0) == 0) return &library;
  return nullptr;
}

Job job_of(const std::vector<std::string>& command) {
  Job job;
  job.command = command;
  // Without a command the launcher that a user would call is looked at.
  const std::string first = command.empty() ? "mpirun" : command[0];
  const Found found = find_program(first);
  if (!found.path.empty()) job.launcher = launcher_of(found.path);
  if (command.empty()) return job;
  if (job.launcher.kind != Launcher::Kind::none) {
    job.contexts = contexts_of(job.launcher, command);
    for (const Context& context : job.contexts)
      if (const std::string program = program_of(job.launcher, command, context); !program.empty())
        add_program(find_program(program), job);
  } else {
    add_program(found, job);
  }
  for (const std::string& program : job.programs)
    add_libraries(list_libraries(program), job.libraries);
  if (const Library* pal = job.library("libopen-pal.so"); pal != nullptr && !pal->path.empty())
    for (const std::string& component : components_of(pal->path))
      add_libraries(list_libraries(component), job.libraries);
  return job;
}

Finding check_root_refusal(const Job& job) {
  if (job.launcher.kind != Launcher::Kind::open_mpi)
    return good("root", "no Open MPI launcher in question: others start as root");
  if (geteuid() != 0) return good("root", "not root");
  // PRRTE's own launcher reads its own names; Open MPI's mpirun reads Open MPI's, in 5 as in 4.
  const bool is_prrte = job.launcher.name.rfind("PRRTE", 0) == 0;
  const std::string ours = is_prrte ? "PRTE_" : "OMPI_", other = is_prrte ? "OMPI_" : "PRTE_";
  const std::string name = "ALLOW_RUN_AS_ROOT";
  if (job.has_option("allow-run-as-root")) return good("root", "root, with --allow-run-as-root");
  const auto value_of = [](const std::string& variable) {
    const char* value = std::getenv(variable.c_str());
    return std::string(value != nullptr ? value : "");
  };
  // mpirun takes "1" and no other word for yes.
  const auto is_set = [&](const std::string& variable) { return value_of(variable) == "1"; };
  if (is_set(ours + name) && is_set(ours + name + "_CONFIRM"))
    return good("root", fmt::format("root, with {}{} and {}{}_CONFIRM", ours, name, ours, name));
  std::string seen = fmt::format("root, and {} refuses to start as root", job.launcher.name);
  for (const std::string& variable : {ours + name, ours + name + "_CONFIRM"})
    if (!value_of(variable).empty() && !is_set(variable))
      seen += fmt::format("; {} is {}, and counts only as 1", variable, value_of(variable));
  if (is_set(ours + name) != is_set(ours + name + "_CONFIRM"))
    seen += fmt::format("; only one of {}{} and {}{}_CONFIRM is 1", ours, name, ours, name);
  else if (is_set(other + name))
    seen += fmt::format("; {}{} is set, which this launcher does not read", other, name);
  return {"root", Severity::bad, seen,
          "a launcher started by another program, as by IPython Parallel, ends unheard, and its "
          "ranks are waited for without end",
          fmt::format("export {}{}=1 {}{}_CONFIRM=1", ours, name, ours, name)};
}

Finding check_remote_shell(const Job& job) {
  if (job.launcher.kind != Launcher::Kind::open_mpi)
    return good("remote_shell", "no Open MPI launcher in question");
  if (job.launcher.major >= 5)
    return good("remote_shell", job.launcher.name + " needs no ssh for ranks on this machine");
  if (const auto plm = job.mca("plm"); plm && *plm == "isolated")
    return good("remote_shell", "plm=isolated: no remote shell is looked for");
  if (std::getenv("SLURM_JOB_ID") != nullptr && !find_program("srun").path.empty())
    return good("remote_shell", "inside a Slurm job, which launches");
  // "ssh : rsh": the first word of each is a program.
  std::istringstream agents(job.mca("plm_rsh_agent").value_or("ssh : rsh"));
  for (std::string agent; std::getline(agents, agent, ':');) {
    std::istringstream words(agent);
    std::string program;
    words >> program;
    if (const Found found = find_program(program); !program.empty() && !found.path.empty())
      return good("remote_shell", found.path + " is there");
  }
  return {"remote_shell", Severity::bad,
          fmt::format("no ssh or rsh in PATH, and {} wants one even for ranks on this machine",
                      job.launcher.name),
          "mpirun ends with \"plm_rsh_agent was set to a path that could not be found\", or, where "
          "its errors are not shown, with nothing",
          "export OMPI_MCA_plm=isolated  # for several machines: apt install openssh-client"};
}

Finding check_preload(const Job& job) {
  const std::string preloads = job.variable("LD_PRELOAD").value_or("");
  if (preloads.empty()) return good("preload", "LD_PRELOAD is empty");
  std::string text = preloads;
  std::replace(text.begin(), text.end(), ':', ' ');
  std::istringstream entries(text);
  for (std::string entry; entries >> entry;)
    if (access(preload_path(entry).c_str(), R_OK) != 0)
      return {"preload", Severity::warning,
              fmt::format("LD_PRELOAD names {}, which is not there", entry),
              "the loader goes on without it and writes a line for each process",
              "unset LD_PRELOAD  # or take it out"};
  const std::string other = foreign_malloc(preloads);
  if (other.empty()) return good("preload", "LD_PRELOAD has no other malloc before rdmalloc");
  return {"preload", Severity::warning,
          fmt::format("LD_PRELOAD names {}, which is another malloc", other),
          "the first malloc in LD_PRELOAD is everybody's; rdmalloc after it does nothing",
          "unset LD_PRELOAD  # or leave it: rdmalloc run puts rdmalloc before it"};
}

Finding check_program(const Job& job, const std::string& library) {
  if (job.command.empty()) return good("program", "no command was given");
  if (!job.missing.empty()) {
    const std::string& problem = job.missing[0];
    const std::string name = problem.substr(0, problem.find(": "));
    if (has_other_hosts(job))
      return {"program", Severity::note, problem + " on this machine; the ranks may run on others",
              "where it is not there, the launcher ends with that error", "ls -l " + quoted(name)};
    return {"program", Severity::bad, problem,
            fmt::format("no program is started: the {} ends with that error",
                        job.launcher.kind == Launcher::Kind::none ? "command" : "launcher"),
            fmt::format("ls -l {}  # and give the path of the program", quoted(name))};
  }
  if (job.programs.empty()) return good("program", "the command names no program");
  for (const std::string& program : job.programs)
    if (const std::string obstacle = preload_obstacle(program, library); !obstacle.empty()) {
      const std::size_t remedy = obstacle.rfind("; ");
      return {"program", Severity::bad, obstacle.substr(0, remedy),
              "it runs with another malloc, and rdmalloc has no part in it",
              obstacle.substr(remedy + 2)};
    }
  const std::optional<ElfFile> file = read_elf(job.programs[0]);
  return good("program", file && file->has_our_malloc
                             ? job.programs[0] + " was linked with rdmalloc's malloc"
                             : "the loader will load rdmalloc into " + job.programs[0]);
}

// A rank asks the launcher that it was built for who the others are.
Finding check_mpi(const Job& job) {
  const bool is_open_mpi = job.launcher.kind == Launcher::Kind::open_mpi;
  if (!is_open_mpi && job.launcher.kind != Launcher::Kind::hydra)
    return good("mpi", "no launcher of an MPI in question");
  const Library* library = nullptr;
  const std::string linked = mpi_of(job, &library);
  if (linked.empty()) return good("mpi", "no program is linked with an MPI that is known");
  if ((linked == "Open MPI") == is_open_mpi)
    return good("mpi",
                fmt::format("{} of {}, started by {}", library->name, linked, job.launcher.name));
  return {"mpi", Severity::bad,
          fmt::format("the program is linked with {}'s {}, and the launcher is {}", linked,
                      library->name, job.launcher.name),
          "each rank takes itself for rank 0 of 1, or MPI_Init fails",
          fmt::format("{} ...  # the launcher of the MPI that the program was built with",
                      linked == "Open MPI" ? "mpirun.openmpi" : "mpirun.mpich")};
}

namespace {

// UCX takes its words in whichever letters.
bool is_ucx_hook_mode_none(const Job& job) {
  return strcasecmp(job.variable("UCX_MEM_MMAP_HOOK_MODE").value_or("").c_str(), "none") == 0;
}

}  // namespace

Finding check_hooks(const Job& job) {
  const Library* opal = job.library("libopen-pal.so");
  const Library* ucm = job.library("libucm.so");
  const Library* fabric = job.library("libfabric.so");
  std::string names;
  for (const Library* one : {opal, ucm, fabric})
    if (one != nullptr) names += (names.empty() ? "" : ", ") + one->name;
  if (names.empty()) return good("hooks", "nothing that caches registrations is loaded");
  const std::string seen = names + " cache registrations, and watch by hooks in libc";
  const std::string notify = job.variable("RDMALLOC_NOTIFY").value_or("auto");
  if (notify == "off")
    return {"hooks", Severity::bad, seen + "; RDMALLOC_NOTIFY=off",
            "rdmalloc notifies none of them before pages go: messages are sent from, and received "
            "into, pages that the program no longer has, without any error",
            "unset RDMALLOC_NOTIFY"};
  std::string off;
  // As the library reads it: a list of components wanted, or behind ^ unwanted.
  const std::string memory = job.mca("memory").value_or("");
  const bool names_patcher = memory.find("patcher") != std::string::npos;
  if (opal != nullptr && !memory.empty() && (memory[0] == '^') == names_patcher)
    off = "OMPI_MCA_memory=" + memory;
  else if (ucm != nullptr && is_ucx_hook_mode_none(job))
    off = "UCX_MEM_MMAP_HOOK_MODE=none";
  if (!off.empty() && notify != "explicit")
    return {"hooks", Severity::warning, fmt::format("{}; {} turns hooks off", seen, off),
            "registrations of memory that is not rdmalloc's are not watched by any library "
            "(docs/notifiers.md)",
            "export RDMALLOC_NOTIFY=explicit"};
  return good("hooks",
              fmt::format("{}; rdmalloc notifies them (RDMALLOC_NOTIFY={})", seen, notify));
}

// open-mpi/ompi #13021: closing the component takes the patcher with it, and the next opening
// restores patches of what is no longer mapped. The branch 5.0.x has the cure (#13034) from 5.0.7.
Finding check_open_mpi(const Job& job) {
  constexpr const char* kName = "Open MPI 5.0.";
  constexpr int kMended = 7;
  const std::string& name = job.launcher.name;
  if (job.launcher.kind != Launcher::Kind::open_mpi || name.rfind(kName, 0) != 0)
    return good("open_mpi", "no Open MPI 5.0 in question");
  const int patch = std::atoi(name.c_str() + std::strlen(kName));
  if (patch >= kMended) return good("open_mpi", name);
  const Library* pal = job.library("libopen-pal.so");
  const std::vector<std::string> components =
      pal != nullptr && !pal->path.empty() ? components_of(pal->path) : std::vector<std::string>();
  const auto is_btl = [](const std::string& path) {
    return fs::path(path).filename() == "mca_btl_ofi.so";
  };
  const auto found = std::find_if(components.begin(), components.end(), is_btl);
  if (found == components.end())
    return good("open_mpi", name + ", without mca_btl_ofi.so as a file of its own");
  return {"open_mpi", Severity::note, fmt::format("{}, and {}", name, *found),
          "a program that begins another MPI session after the last has ended crashes in "
          "opal_patcher_base_restore_all, over libfabric: open-mpi/ompi #13021, mended in 5.0.7",
          "install Open MPI 5.0.7 or later, or one built without --enable-mca-dso"};
}

// docs/deadlock-matrix.md has what is behind each of these.
Finding check_libfabric(const Job& job) {
  const Library* library = job.library("libfabric.so");
  if (library == nullptr) return good("libfabric", "no libfabric is loaded");
  const std::optional<Release> release = release_of(library->path);
  if (!release) return good("libfabric", library->name + " does not say its release");
  std::string seen =
      fmt::format("libfabric {}.{} ({})", release->major, release->minor, library->path);
  if (job.variable("FI_MR_CACHE_MAX_COUNT").value_or("") == "0")
    return good("libfabric", seen + "; FI_MR_CACHE_MAX_COUNT=0: it caches nothing");
  const Release first_deadlock = {1, 14}, race = {2, 6}, last_crash = {1, 17};
  const bool is_race = !(*release < race) && !(race < *release);
  const std::string purge = job.variable("RDMALLOC_PURGE").value_or("auto");
  if (is_race && (purge == "auto" || purge == "thread"))
    return {"libfabric", Severity::bad, seen,
            "2.6.0's cache takes nodes from a list without its lock: a notification from another "
            "thread, as from rdmalloc's purge thread, may crash or hang it (it does not say its "
            "patch level)",
            "export RDMALLOC_PURGE=off  # or FI_MR_CACHE_MAX_COUNT=0, or another release"};
  if (is_race || *release < first_deadlock || race < *release) return good("libfabric", seen);
  // By the layer that Open MPI is set to send through; over UCX nothing goes through libfabric.
  if (job.mca("pml").value_or("") == "ucx")
    return good("libfabric", seen + "; pml=ucx: messages do not go through it");
  // The preload that decides is the first malloc's; `rdmalloc run` makes it ours.
  const std::string other = foreign_malloc(job.variable("LD_PRELOAD").value_or(""));
  std::string why =
      "1.14 to 2.5 hang for ever (MPI_Bcast) under a malloc that gives pages back inside malloc or "
      "free, as mimalloc and jemalloc do: open-mpi/ompi #13149. rdmalloc does not, and does not "
      "hang";
  if (!(last_crash < *release))
    why += "; up to 1.17 a monitor's notify() before its start() crashes, which rdmalloc waits for";
  return {"libfabric", other.empty() ? Severity::note : Severity::bad,
          other.empty() ? seen : fmt::format("{}, and LD_PRELOAD has {}", seen, other), why,
          "rdmalloc run -- ..."};
}

// docs/reports/heap-that-shrinks.md: libucm's jump in sbrk passes Open MPI's in brk by, so that
// over libfabric no cache hears of a heap that shrinks. Seen with Open MPI 5.0.7, which loads
// libucm whatever it sends through; not with 4.1.4.
Finding check_heap(const Job& job) {
  const bool is_open_mpi_5 = job.launcher.kind == Launcher::Kind::open_mpi &&
                             job.launcher.name.rfind("Open MPI 5.", 0) == 0;
  const Library* ucm = job.library("libucm.so");
  const Library* fabric = job.library("libfabric.so");
  if (!is_open_mpi_5 || ucm == nullptr || fabric == nullptr)
    return good("heap", "not Open MPI 5 with both UCX and libfabric");
  const std::string seen = fmt::format("{}, {} and {}", job.launcher.name, ucm->name, fabric->name);
  if (job.variable("FI_MR_CACHE_MAX_COUNT").value_or("") == "0")
    return good("heap", seen + "; FI_MR_CACHE_MAX_COUNT=0");
  if (is_ucx_hook_mode_none(job)) return good("heap", seen + "; UCX_MEM_MMAP_HOOK_MODE=none");
  if (job.mca("pml").value_or("") == "ucx") return good("heap", seen + "; pml=ucx");
  return {"heap", Severity::note, seen,
          "with glibc's own malloc MPI_Bcast over libfabric sends wrong bytes once the heap has "
          "shrunk (free, "
          "malloc_trim): UCX's hook of sbrk keeps Open MPI from hearing of it (docs/reports). "
          "rdmalloc has no such heap",
          "rdmalloc run -- ...  # without rdmalloc: export UCX_MEM_MMAP_HOOK_MODE=none"};
}

}  // namespace rdmalloc::tool
