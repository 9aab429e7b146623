#include "bench/support/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

extern char** environ;

namespace rdmalloc::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

volatile std::sig_atomic_t interrupts = 0;
void note_interrupt(int) {
  interrupts = interrupts + 1;
}

struct ProcessEntry {
  pid_t parent = 0;
  unsigned long long started = 0;  // ticks since boot: tells a reused id from the process we saw
};

bool read_entry(pid_t pid, ProcessEntry& entry) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(stat, text)) return false;
  // The name, field 2, is in parentheses and may hold anything; state, field 3, follows it.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return false;
  std::istringstream rest(text.substr(name_end + 1));
  std::string field;
  for (int number = 3; rest >> field && number <= 22; ++number) {
    if (number == 4) entry.parent = std::stoi(field);
    if (number == 22) entry.started = std::stoull(field);
  }
  return entry.started != 0;
}

std::map<pid_t, ProcessEntry> tree_of(pid_t root) {
  std::map<pid_t, ProcessEntry> all;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    ProcessEntry found;
    const pid_t pid = std::stoi(name);
    if (read_entry(pid, found)) all.emplace(pid, found);
  }
  std::map<pid_t, ProcessEntry> tree;
  if (auto it = all.find(root); it != all.end()) tree.insert(*it);
  for (bool grew = !tree.empty(); grew;) {
    grew = false;
    for (const auto& [pid, entry] : all)
      if (!tree.contains(pid) && tree.contains(entry.parent)) {
        tree.emplace(pid, entry);
        grew = true;
      }
  }
  return tree;
}

// It is not waited for yet.
bool has_ended(pid_t child) {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid == child;
}

// The command first gets to end its own children, as mpirun does; then what is left is killed:
// below it, and in its group, where init's orphans are. While it is not waited for, the group's
// number is no other's.
void end_tree(pid_t root) {
  const auto tree = tree_of(root);
  kill(root, SIGTERM);
  for (int i = 0; i < 30; ++i) {
    if (has_ended(root)) break;
    std::this_thread::sleep_for(milliseconds(100));
  }
  for (const auto& [pid, entry] : tree) {
    ProcessEntry now;
    if (read_entry(pid, now) && now.started == entry.started) kill(pid, SIGKILL);
  }
  kill(-root, SIGKILL);
}

struct Pipe {
  int read_end = -1;
  int write_end = -1;
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) == 0) {
      read_end = ends[0];
      write_end = ends[1];
    }
  }
  ~Pipe() {
    close_read();
    close_write();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_read() { close_end(read_end); }
  void close_write() { close_end(write_end); }

 private:
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
};

// Cuts a stream into lines.
class Lines {
 public:
  explicit Lines(std::function<void(std::string_view)> on_line) : on_line_(std::move(on_line)) {}
  void add(std::string_view text) {
    if (!on_line_) return;
    pending_ += text;
    std::size_t end;
    while ((end = pending_.find('\n')) != std::string::npos) {
      on_line_(std::string_view(pending_).substr(0, end));
      pending_.erase(0, end + 1);
    }
  }
  void finish() {
    if (on_line_ && !pending_.empty()) on_line_(pending_);
    pending_.clear();
  }

 private:
  std::function<void(std::string_view)> on_line_;
  std::string pending_;
};

constexpr int kReportFd = 3;

std::vector<std::string> launched(const Command& command) {
  if (command.launcher.empty()) return command.arguments;
  const char* counted = command.calls_counted == CallsCounted::all      ? "all"
                        : command.calls_counted == CallsCounted::memory ? "memory"
                                                                        : "none";
  std::vector<std::string> arguments = {command.launcher, fmt::format("{}", kReportFd), counted};
  arguments.insert(arguments.end(), command.arguments.begin(), command.arguments.end());
  return arguments;
}

int spawn_child(const Command& command, const Pipe& out, const Pipe& err, const Pipe& report,
                pid_t& pid) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) merged[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : command.environment) merged[name] = value;
  std::vector<std::string> texts;
  for (const auto& [name, value] : merged) texts.push_back(name + "=" + value);
  std::vector<char*> envp;
  for (std::string& text : texts) envp.push_back(text.data());
  envp.push_back(nullptr);
  std::vector<std::string> arguments = launched(command);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write_end, STDERR_FILENO);
  if (!command.launcher.empty())
    posix_spawn_file_actions_adddup2(&actions, report.write_end, kReportFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A group of its own: a ^C at the terminal reaches us alone, and we end the tree in order.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  const int error = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

// Reads both pipes for at most `wait`; false when both have ended.
bool pump(Pipe& out, Pipe& err, Outcome& outcome, Lines& lines, milliseconds wait) {
  std::array<pollfd, 2> watched{{{out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}}};
  if (out.read_end < 0 && err.read_end < 0) return false;
  if (poll(watched.data(), watched.size(), static_cast<int>(wait.count())) <= 0) return true;
  std::array<char, 65536> buffer;
  for (pollfd& entry : watched) {
    if (entry.fd < 0 || entry.revents == 0) continue;
    Pipe& pipe = entry.fd == out.read_end ? out : err;
    const ssize_t got = read(entry.fd, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      pipe.close_read();
      continue;
    }
    const std::string_view text(buffer.data(), static_cast<std::size_t>(got));
    if (&pipe == &out) {
      outcome.standard_output += text;
      lines.add(text);
    } else {
      outcome.standard_error += text;
    }
  }
  return true;
}

void note_end(int status, const rusage& usage, Outcome& outcome) {
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  outcome.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  outcome.peak_rss_kib = usage.ru_maxrss;
  outcome.page_faults = usage.ru_minflt + usage.ru_majflt;
}

// What the launcher says of the program takes the place of what is known of the launcher.
void take_report(Pipe& report, Outcome& outcome) {
  report.close_write();
  std::array<char, 4096> buffer;
  for (ssize_t got; (got = read(report.read_end, buffer.data(), buffer.size())) > 0;)
    outcome.launch_report.append(buffer.data(), static_cast<std::size_t>(got));
  const auto said = nlohmann::json::parse(outcome.launch_report, nullptr, false);
  if (said.is_discarded() || !said.is_object()) {
    if (!outcome.timed_out && !outcome.interrupted)
      outcome.start_error = outcome.standard_error + outcome.launch_report;
    return;
  }
  const int status = said.value("status", 0);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome.wall_s = said.value("wall_s", 0.0);
  outcome.cpu_s = said.value("cpu_s", 0.0);
  outcome.peak_rss_kib = said.value("peak_rss_kib", 0L);
  outcome.page_faults = said.value("page_faults", 0L);
}

// Until the child has ended, by itself, by its limit or by an interrupt.
void attend(pid_t pid, const Command& command, Pipe& out, Pipe& err, Outcome& outcome) {
  Lines lines(command.on_line);
  const auto deadline = Clock::now() + command.limit;
  int status = 0;
  rusage usage{};
  bool ended = false;
  while (!ended) {
    if (!pump(out, err, outcome, lines, milliseconds(20)))
      std::this_thread::sleep_for(milliseconds(5));
    if (has_ended(pid)) {
      // What it left in its group would run beside the next program; see end_tree().
      kill(-pid, SIGKILL);
      ended = wait4(pid, &status, 0, &usage) == pid;
      break;
    }
    outcome.timed_out = Clock::now() >= deadline;
    outcome.interrupted = interrupt_seen();
    if (!outcome.timed_out && !outcome.interrupted) continue;
    if (outcome.timed_out && command.on_limit) outcome.limit_report = command.on_limit(pid);
    end_tree(pid);
    ended = wait4(pid, &status, 0, &usage) == pid;
    break;
  }
  if (ended) note_end(status, usage, outcome);
  // A grandchild may still hold the pipes: what is in them now, 1 MiB where pages are of 64 KiB, is
  // read, and no more is waited for.
  for (int reads = 0; reads < 16; reads++) pump(out, err, outcome, lines, milliseconds(0));
  lines.finish();
}

}  // namespace

std::string Outcome::describe() const {
  if (!start_error.empty()) return "could not be started: " + start_error;
  if (interrupted) return "interrupted";
  if (timed_out) return fmt::format("ran into its limit after {:.0f} s", wall_s);
  if (signal != 0) return fmt::format("killed by signal {} ({})", signal, sigdescr_np(signal));
  return fmt::format("exited with {}", exit_code);
}

Outcome run(const Command& command) {
  Outcome outcome;
  Pipe out;
  Pipe err;
  Pipe report;
  if (out.read_end < 0 || err.read_end < 0 || report.read_end < 0) {
    outcome.start_error = "no pipe";
    return outcome;
  }
  const auto start = Clock::now();
  pid_t pid = 0;
  if (const int error = spawn_child(command, out, err, report, pid); error != 0) {
    outcome.start_error = fmt::format("{}: {}", command.arguments.at(0), strerrordesc_np(error));
    return outcome;
  }
  out.close_write();
  err.close_write();
  attend(pid, command, out, err, outcome);
  outcome.wall_s = std::chrono::duration<double>(Clock::now() - start).count();
  if (!command.launcher.empty()) take_report(report, outcome);
  return outcome;
}

void end_children_on_interrupt() {
  struct sigaction action {};
  action.sa_handler = note_interrupt;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);  // nohup
  }
}

bool interrupt_seen() {
  return interrupts != 0;
}

std::vector<pid_t> process_tree(pid_t root) {
  std::vector<pid_t> pids;
  for (const auto& [pid, entry] : tree_of(root)) pids.push_back(pid);
  std::stable_partition(pids.begin(), pids.end(), [&](pid_t pid) { return pid == root; });
  return pids;
}

std::string stacks_below(pid_t root, std::string_view program) {
  if (find_program("gdb").empty()) return "no stacks: gdb is not installed (apt install gdb)\n";
  std::string report;
  for (pid_t pid : process_tree(root)) {
    std::error_code ignored;
    const fs::path executable = fs::read_symlink(fmt::format("/proc/{}/exe", pid), ignored);
    if (executable.filename() != program) continue;
    Command gdb;
    gdb.arguments = {"gdb",
                     "-nx",
                     "-batch",
                     "-ex",
                     "set pagination off",
                     "-ex",
                     "thread apply all backtrace 40",
                     "--pid",
                     std::to_string(pid)};
    // No symbol server: the stacks are wanted now, also on a machine without a network.
    gdb.environment["DEBUGINFOD_URLS"] = "";
    gdb.limit = milliseconds(30'000);
    const Outcome looked = run(gdb);
    report += fmt::format("--- {} (process {}) ---\n{}", program, pid, looked.standard_output);
    if (!looked.ok())
      report += fmt::format("gdb {}\n{}\n", looked.describe(), looked.standard_error);
  }
  if (report.empty()) report = fmt::format("no process {} below process {}\n", program, root);
  return report;
}

std::string find_program(const std::string& name) {
  std::error_code ignored;
  if (name.find('/') != std::string::npos) return fs::exists(name, ignored) ? name : "";
  const char* path = std::getenv("PATH");
  std::istringstream directories(path != nullptr ? path : "/usr/bin:/bin");
  for (std::string directory; std::getline(directories, directory, ':');) {
    const fs::path candidate = fs::path(directory.empty() ? "." : directory) / name;
    if (access(candidate.c_str(), X_OK) == 0 && !fs::is_directory(candidate, ignored))
      return candidate.string();
  }
  return {};
}

}  // namespace rdmalloc::bench
