// The options that each launcher has, and how many words each takes: to find where they end.
#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include "tools/rdmalloc/launchers.h"

namespace rdmalloc::tool {
namespace {

// The words after an option of Open MPI's; kAbsent where a release does not have it.
struct OpenMpiOption {
  std::string_view name;
  int in_4, in_5;
};
constexpr int kAbsent = -1;

// clang-format off
// 4.1.4: its --help all. 5.0.7: the tables of its libprrte, whose help does not say it (test
// tools.launchers compares both), and of later releases of PRRTE gprtemca, gpmixmca, gpu-support
// and server-wait-time.
constexpr OpenMpiOption kOpenMpi[] = {
    {"add-host", kAbsent, 1}, {"add-hostfile", kAbsent, 1}, {"allow-run-as-root", 0, 0},
    {"am", 1, 1}, {"amca", kAbsent, 1}, {"app", 1, 1}, {"arch", kAbsent, 1}, {"bind-to", 1, 1},
    {"bind-to-core", 0, 0}, {"bind-to-socket", 0, kAbsent}, {"bycore", 0, 0}, {"bynode", 0, 0},
    {"byslot", 0, 0}, {"c", 1, 1}, {"cartofile", 1, kAbsent}, {"cf", 1, kAbsent},
    {"continuous", 0, 0}, {"cpu-list", 1, 1}, {"cpu-set", 1, 1}, {"cpus-per-proc", 1, 1},
    {"cpus-per-rank", 1, 1}, {"d", 0, kAbsent}, {"daemonize", kAbsent, 0}, {"debug", 0, 0},
    {"debug-daemons", 0, 0}, {"debug-daemons-file", 0, 0}, {"debug-devel", 0, kAbsent},
    {"debugger", 1, kAbsent}, {"default-hostfile", 1, 1}, {"disable-recovery", 0, 0},
    {"display", kAbsent, 1}, {"display-allocation", 0, 0}, {"display-comm", kAbsent, 0},
    {"display-comm-finalize", kAbsent, 0}, {"display-devel-allocation", 0, 0},
    {"display-devel-map", 0, 0}, {"display-diffable-map", 0, kAbsent}, {"display-map", 0, 0},
    {"display-topo", 0, 1}, {"do-not-connect", kAbsent, 0}, {"do-not-launch", 0, 0},
    {"do-not-resolve", 0, kAbsent}, {"dvm", 0, 1}, {"dvm-uri", kAbsent, 1},
    {"enable-instant-on-support", 0, kAbsent}, {"enable-recovery", 0, 0},
    {"exec-agent", kAbsent, 1}, {"file", kAbsent, 1}, {"forward-signals", kAbsent, 1},
    {"fwd-environment", kAbsent, 0}, {"fwd-mpirun-port", 0, kAbsent},
    {"get-stack-traces", 0, 0}, {"gmca", 2, 2}, {"gomca", kAbsent, 2},
    {"gpmixmca", kAbsent, 2}, {"gprtemca", kAbsent, 2}, {"gpu-support", kAbsent, 1},
    {"h", 1, 0}, {"H", 1, 1}, {"help", 1, 0}, {"hnp", 1, kAbsent}, {"host", 1, 1},
    {"hostfile", 1, 1}, {"index-argv-by-rank", 0, kAbsent}, {"initial-errhandler", kAbsent, 1},
    {"keepalive", kAbsent, 1}, {"launch-agent", 1, 1}, {"launcher-hostfile", kAbsent, 1},
    {"leave-session-attached", 0, 0}, {"machinefile", 1, 1}, {"map-by", 1, 1},
    {"max-restarts", 1, 1}, {"max-vm-size", 1, 1}, {"mca", 2, 2},
    {"memory-alloc-kind", kAbsent, 1}, {"memory-alloc-kinds", kAbsent, 1},
    {"merge-stderr-to-stdout", 0, 0}, {"N", 1, 1}, {"n", 1, 1}, {"namespace", kAbsent, 1},
    {"no-aggregate-help", kAbsent, 0}, {"no-ready-msg", kAbsent, 0}, {"nolocal", 0, 0},
    {"nooversubscribe", 0, 0}, {"noprefix", 0, 0}, {"novm", 0, kAbsent}, {"np", 1, 1},
    {"npernode", 1, 1}, {"npersocket", 1, 1}, {"num-connect-retries", kAbsent, 1},
    {"omca", kAbsent, 2}, {"ompi-server", 1, kAbsent}, {"output", kAbsent, 1},
    {"output-directory", kAbsent, 1}, {"output-filename", 1, 1}, {"output-proctable", 0, 0},
    {"oversubscribe", 0, 0}, {"p", kAbsent, 0}, {"parsable", kAbsent, 0},
    {"parseable", kAbsent, 0}, {"path", 1, 1}, {"pernode", 0, 0}, {"personality", 1, 1},
    {"pid", kAbsent, 1}, {"pmixam", kAbsent, 1}, {"pmixmca", kAbsent, 2}, {"ppr", 1, 1},
    {"prefix", 1, 1}, {"preload-binary", 0, 0}, {"preload-files", 1, 1},
    {"prtemca", kAbsent, 2}, {"prtemca-file", kAbsent, 1}, {"pset", kAbsent, 1},
    {"q", 0, kAbsent}, {"quiet", 0, kAbsent}, {"rank-by", 1, 1}, {"rankfile", 1, 1},
    {"report-bindings", 0, 0}, {"report-child-jobs-separately", 0, 0},
    {"report-events", 1, kAbsent}, {"report-pid", 1, 1}, {"report-state-on-timeout", 0, 0},
    {"report-uri", 1, 1}, {"rf", 1, kAbsent}, {"rtos", kAbsent, 1},
    {"runtime-options", kAbsent, 1}, {"s", 0, 0}, {"server-wait-time", kAbsent, 1},
    {"set-cwd-to-session-dir", 0, 0}, {"set-sid", kAbsent, 0}, {"show-progress", 0, 0},
    {"singleton", kAbsent, 1}, {"soft", kAbsent, 0}, {"spawn-timeout", kAbsent, 1},
    {"stdin", 1, 1}, {"stop-in-app", kAbsent, 0}, {"stop-in-init", kAbsent, 0},
    {"stop-on-exec", kAbsent, 0}, {"stream-buffering", kAbsent, 1},
    {"system-server", kAbsent, 0}, {"system-server-first", kAbsent, 0},
    {"system-server-only", kAbsent, 0}, {"tag-output", 0, 0}, {"timeout", 1, 1},
    {"timestamp-output", 0, 0}, {"tmpdir", kAbsent, 1}, {"tune", 1, 1}, {"tv", 0, kAbsent},
    {"use-hwthread-cpus", 0, 0}, {"use-regexp", 0, kAbsent}, {"V", 0, 0}, {"v", 0, 0},
    {"verbose", 0, 0}, {"version", 0, 0}, {"wait-to-connect", kAbsent, 1}, {"wd", 1, 1},
    {"wdir", 1, 1}, {"with-ft", kAbsent, 1}, {"x", 1, 1}, {"xml", 0, 0},
    {"xml-file", 1, kAbsent}, {"xterm", 1, 1},
};

// mpiexec.hydra -help of 4.0.2
const std::set<std::string_view>& hydra_with_value() {
  static const std::set<std::string_view> names = {
    "bind-to", "configfile", "demux", "envlist", "errfile-pattern", "f", "genvlist",
    "gpus-per-proc", "host", "hostfile", "hosts", "iface", "launcher", "launcher-exec",
    "localhost", "machinefile", "map-by", "membind", "n", "nameserver", "np", "order-nodes",
    "outfile-pattern", "ppn", "prepend-pattern", "rmk", "topolib", "usize", "wdir",
  };
  return names;
}

// The table in libslurmfull of 22.05 (test tools.launchers compares it), of which --help leaves out
// some, and tres-per-task of later releases.
const std::set<std::string_view>& slurm_with_value() {
  static const std::set<std::string_view> names = {
    "A", "a", "b", "B", "c", "C", "d", "D", "e", "F", "G", "i", "J", "L", "m", "M", "n", "N", "o",
    "p", "q", "r", "S", "T", "t", "W", "w", "x", "accel-bind", "account", "acctg-freq", "array",
    "batch", "bb", "bbf", "bcast-exclude", "begin", "chdir", "cluster", "cluster-constraint",
    "clusters", "comment", "constraint", "container", "core-spec", "cores-per-socket", "cpu-bind",
    "cpu-freq", "cpu_bind", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot",
    "dependency", "distribution", "epilog", "error", "exclude", "export", "export-file",
    "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-socket",
    "gpus-per-task", "gres", "gres-flags", "het-group", "hint", "input", "job-name", "jobid",
    "kill-on-invalid-dep", "licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind",
    "mem-per-cpu", "mem-per-gpu", "mincpus", "mpi", "msg-timeout", "network", "nodefile",
    "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu", "ntasks-per-node",
    "ntasks-per-socket", "ntasks-per-tres", "open-mode", "output", "pack-group", "partition",
    "power", "prefer", "priority", "profile", "prolog", "qos", "relative", "reservation",
    "signal", "slurmd-debug", "sockets-per-node", "switches", "task-epilog", "task-prolog",
    "tasks-per-node", "thread-spec", "threads", "threads-per-core", "time", "time-min", "tmp",
    "tres-per-task", "uid", "wait", "wait-all-nodes", "wckey", "wrap",
  };
  return names;
}
// clang-format on

bool slurm_takes_value(const Launcher& launcher, const std::string& name) {
  // srun waits that many seconds, sbatch for the end of the job.
  if (launcher.is_batch && (name == "W" || name == "wait")) return false;
  return slurm_with_value().count(name) != 0;
}

// Nothing for an option that is in no release we know.
std::optional<int> open_mpi_words(const Launcher& launcher, std::string_view name) {
  // Open MPI 5's mpirun takes a value here, PRRTE's own prterun none.
  if (name == "display-topo" && launcher.name.rfind("PRRTE", 0) == 0) return 0;
  const auto is_it = [name](const OpenMpiOption& one) { return one.name == name; };
  const auto* found = std::find_if(std::begin(kOpenMpi), std::end(kOpenMpi), is_it);
  if (found == std::end(kOpenMpi)) return std::nullopt;
  const int own = launcher.major < 5 ? found->in_4 : found->in_5;
  return own != kAbsent ? own : launcher.major < 5 ? found->in_5 : found->in_4;
}

// An option in `word` ("-x", "--map-by=core"), with the value that is part of the word, if any.
Option split(const Launcher& launcher, const std::string& word) {
  Option option;
  const bool is_short = word[1] != '-';
  option.name = word.substr(is_short ? 1 : 2);
  // getopt's letters, with the value attached: "-n2"; of several letters the last may have one.
  if (launcher.kind == Launcher::Kind::slurm && is_short) {
    std::size_t at = 1;
    while (at + 1 < word.size() && !slurm_takes_value(launcher, word.substr(at, 1))) at++;
    option.name = word.substr(at, 1);
    if (at + 1 < word.size()) option.values.push_back(word.substr(at + 1));
  } else if (const std::size_t equals = option.name.find('='); equals != std::string::npos) {
    option.values.push_back(option.name.substr(equals + 1));
    option.name.resize(equals);
  }
  return option;
}

// How many of the words after it are its own.
std::size_t words_of(const Launcher& launcher, const std::vector<std::string>& command,
                     const Option& option, std::size_t end) {
  const std::size_t next = option.at + 1;
  const bool has_value = !option.values.empty();
  switch (launcher.kind) {
    case Launcher::Kind::hydra:
      if (option.name == "env" || option.name == "genv") {
        // `-genv NAME=VALUE` for `-genv NAME VALUE`
        if (has_value) return 0;
        return next < end && command[next].find('=') != std::string::npos ? 1 : 2;
      }
      return !has_value && hydra_with_value().count(option.name) != 0 ? 1 : 0;
    case Launcher::Kind::slurm:
      return !has_value && slurm_takes_value(launcher, option.name) ? 1 : 0;
    case Launcher::Kind::open_mpi: {
      const std::optional<int> known = open_mpi_words(launcher, option.name);
      if (known) return static_cast<std::size_t>(*known) - (has_value && *known > 0 ? 1 : 0);
      // Of a release that we don't know: what follows is its value if it is no program and more
      // follows, since a launcher refuses to start what is none.
      const bool is_value = !has_value && next + 1 < end && command[next][0] != '-' &&
                            find_program(command[next]).path.empty();
      return is_value ? 1 : 0;
    }
    case Launcher::Kind::none:
      break;
  }
  return 0;
}

}  // namespace

std::string program_of(const Launcher& launcher, const std::vector<std::string>& command,
                       const Context& context) {
  if (context.program >= context.end) return {};
  const std::string& program = command[context.program];
  // sbatch looks for its script where it is itself.
  if (program.find('/') == std::string::npos || program[0] == '/' || launcher.is_batch)
    return program;
  std::string folder;
  for (const Option& option : context.options)
    for (const char* name : {"wdir", "wd", "D", "chdir"})
      if (option.name == name && !option.values.empty() &&
          (launcher.kind == Launcher::Kind::slurm) == (*name != 'w'))
        folder = option.values[0];
  return folder.empty() ? program : folder + "/" + program;
}

std::vector<Context> contexts_of(const Launcher& launcher,
                                 const std::vector<std::string>& command) {
  std::vector<Context> all;
  std::size_t begin = 1;
  while (begin <= command.size()) {
    Context context = {begin, begin, command.size(), {}};
    context.end = static_cast<std::size_t>(
        std::find(command.begin() + static_cast<std::ptrdiff_t>(begin), command.end(), ":") -
        command.begin());
    while (context.program < context.end) {
      const std::string& word = command[context.program];
      if (word == "--") context.program++;
      if (word == "--" || word.size() < 2 || word[0] != '-') break;
      Option option = split(launcher, word);
      option.at = context.program;
      const std::size_t more = words_of(launcher, command, option, context.end);
      option.words = std::min(1 + more, context.end - option.at);
      for (std::size_t at = 1; at < option.words; at++)
        option.values.push_back(command[option.at + at]);
      context.program += option.words;
      context.options.push_back(std::move(option));
    }
    // What follows sbatch's script is the script's, with any ":" in it.
    if (launcher.is_batch && context.program < context.end) context.end = command.size();
    begin = context.end + 1;
    all.push_back(std::move(context));
  }
  return all;
}

}  // namespace rdmalloc::tool
