#include "tools/rdmalloc/checkpoint.h"

#include <errno.h>
#include <fmt/format.h>
#include <rdmalloc/rdmalloc.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

namespace rdmalloc::tool {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kName = "rdmckpt";  // regcache/checkpoint/control.h
constexpr std::string_view kBusy = ":busy";
constexpr int kMostNumber = 100;
constexpr std::chrono::milliseconds kPoll(2);
constexpr int kAnswerMs = 5000;  // for the answer, beside what it waits for registrations
// Beside both, of a quiesce: for the kernel's threads of a ring that was closed
// (wait_for_ring_workers(), regcache/checkpoint/quiesce.cc). The first 5 s of it are usual.
constexpr int kRingsMs = 15000;

// A thread that can be asked, its name, which is its last answer, and the number of the next
// request to it: another than that of this answer, which would be taken for the one to the request.
struct Control {
  int process;
  int thread;
  std::string name;
  int number;
};

std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

fs::path task_of(const Control& control) {
  return fmt::format("/proc/{}/task/{}", control.process, control.thread);
}

// By the process id, so that two that ask at once have two numbers, most likely.
int number_after(const std::string& name) {
  const int last = name.size() > kName.size() ? std::atoi(name.c_str() + kName.size() + 1) : 0;
  return (last + 1 + getpid() % (kMostNumber - 1)) % kMostNumber;
}

// The process and all that it has started, itself first.
std::vector<int> tree_of(int process) {
  std::vector<int> tree = {process};
  for (std::size_t i = 0; i < tree.size(); i++) {
    std::error_code error;
    for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", tree[i]), error)) {
      std::ifstream children(task.path() / "children");
      for (int child = 0; children >> child;) tree.push_back(child);
    }
  }
  return tree;
}

// Whether one of these is at work. We are none of them, where a program of the tree has started us.
bool look_for_controls(const std::vector<int>& processes, std::vector<Control>& found) {
  bool is_busy = false;
  for (int process : processes) {
    if (process == getpid()) continue;
    std::error_code error;
    for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", process), error)) {
      const std::string name = line_of(task.path() / "comm");
      if (!name.starts_with(kName)) continue;
      is_busy = is_busy || name.ends_with(kBusy);
      found.push_back(
          {process, std::atoi(task.path().filename().c_str()), name, number_after(name)});
    }
  }
  return is_busy;
}

// A thread that a resume has just made has the name of the one that made it, which is at work, and
// names itself in a moment: taken for one that can be asked, it would never answer.
std::vector<Control> controls_of(const std::vector<int>& processes) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kAnswerMs);
  for (;;) {
    std::vector<Control> found;
    if (!look_for_controls(processes, found) || std::chrono::steady_clock::now() >= end)
      return found;
    std::this_thread::sleep_for(kPoll);
  }
}

int ask_process(const Control& control, bool resumes, int timeout_ms) {
  siginfo_t request = {};
  request.si_signo = SIGRTMAX;
  request.si_code = SI_QUEUE;
  request.si_pid = getpid();
  request.si_uid = getuid();
  request.si_value.sival_int = timeout_ms << 8 | (resumes ? 0x80 : 0) | control.number;
  return syscall(SYS_rt_tgsigqueueinfo, control.process, control.thread, SIGRTMAX, &request) == 0
             ? 0
             : -errno;
}

// What it answers to the request; -ETIME when it does not, -ECANCELED when it has answered another
// one meanwhile, perhaps after this one: an answer stands until the next request is served.
int answer_of(const Control& control, int timeout_ms) {
  const std::string prefix = fmt::format("{}:{}:", kName, control.number);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  bool is_anothers = false;
  do {
    const std::string name = line_of(task_of(control) / "comm");
    if (name.empty()) return -ESRCH;
    if (!name.starts_with(prefix))
      is_anothers = is_anothers || name != control.name;
    else if (!name.ends_with(kBusy))
      return std::atoi(name.c_str() + prefix.size());
    std::this_thread::sleep_for(kPoll);
  } while (std::chrono::steady_clock::now() < end);
  return is_anothers ? -ECANCELED : -ETIME;
}

// Whether nothing of the process is left but what its parent may ask of it.
bool is_gone(int process) {
  const std::string stat = line_of(fmt::format("/proc/{}/stat", process));
  // Its name, in brackets, may hold anything: what follows the last one is fixed.
  std::istringstream fields(stat.substr(std::min(stat.rfind(')') + 1, stat.size())));
  constexpr int kBetween = 16;  // the state, and the number of threads: one that has ended itself
  std::string state, field;
  fields >> state;
  for (int i = 0; i < kBetween; ++i) fields >> field;
  int threads = 0;
  fields >> threads;
  return stat.empty() || (state == "Z" && threads <= 1) || state == "X";
}

// What a process that ends while it is asked would have kept open went with it: no reason for the
// others not to be dumped. Its thread may be gone first.
bool ends_meanwhile(const Control& control, int error, int root) {
  if (error != -ESRCH || control.process == root) return false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kAnswerMs);
  while (!is_gone(control.process)) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kPoll);
  }
  fmt::print(stderr, "rdmalloc: checkpoint: process {} has ended meanwhile\n", control.process);
  return true;
}

const char* remedy_for(int error) {
  switch (error) {
    case -ETIMEDOUT:
      return "registrations are held, or being made: give it more time (--timeout), or put them in "
             "the domain's event() at RDMALLOC_DOMAIN_PREPARE";
    case -EBUSY:
      return "it has files open that CRIU can't dump, which its own warning on standard error "
             "names: close them in the domain's event() at RDMALLOC_DOMAIN_CLOSE";
    case -ENOTSUP:
      return "a domain of it may be called on the program's own threads only: call "
             "rdmalloc_quiesce() and rdmalloc_resume() there";
    case -ENODEV:
      return "a device could not be opened again: its domain is lost, memory stays usable";
    case -EALREADY:
      return "it was not quiesced";
    case -ETIME:
      return "it does not answer: stopped, or in a callback that does not return";
    case -ECANCELED:
      return "another rdmalloc checkpoint asked it meanwhile, and has its answer in the place of "
             "this one's: ask again, one after the other";
    case -ESRCH:
      return "it has ended";
    case -EPERM:
      return "signals to it are not permitted: be the same user, or root";
    default:
      return rdmalloc_strerror(error);
  }
}

bool is_asked_for_nothing(const std::vector<Control>& controls, int process) {
  if (!controls.empty()) return false;
  fmt::print(stderr,
             "rdmalloc: checkpoint: neither process {} nor one that it has started can be asked: "
             "start it with RDMALLOC_CHECKPOINT=on and librdmalloc.so\n",
             process);
  return true;
}

// Asks all of the tree at once, then waits for each. Those that did it are asked to resume when
// another could not.
int quiesce(int process, int timeout_ms) {
  std::vector<Control> controls = controls_of(tree_of(process));
  if (is_asked_for_nothing(controls, process)) return 1;
  std::vector<int> results;
  results.reserve(controls.size());
  for (const Control& control : controls)
    results.push_back(ask_process(control, false, timeout_ms));
  bool is_done = true;
  for (std::size_t i = 0; i < controls.size(); i++) {
    if (results[i] == 0) results[i] = answer_of(controls[i], timeout_ms + kRingsMs + kAnswerMs);
    if (results[i] == 0 || ends_meanwhile(controls[i], results[i], process)) continue;
    is_done = false;
    fmt::print(stderr, "rdmalloc: checkpoint: process {} is not quiesced (error {}): {}\n",
               controls[i].process, results[i], remedy_for(results[i]));
    if (results[i] == -ETIME)
      fmt::print(stderr,
                 "rdmalloc: checkpoint: it will be quiesced once it goes on: then, rdmalloc "
                 "checkpoint resume {}\n",
                 controls[i].process);
  }
  if (is_done) return 0;
  for (std::size_t i = 0; i < controls.size(); i++) {
    if (results[i] != 0) continue;
    controls[i].number = (controls[i].number + 1) % kMostNumber;
    ask_process(controls[i], true, 0);
  }
  return 1;
}

int resume(int process, int timeout_ms) {
  const std::vector<Control> controls = controls_of(tree_of(process));
  if (is_asked_for_nothing(controls, process)) return 1;
  int status = 0;
  bool is_any_resumed = false;
  std::vector<int> never_quiesced;
  const auto complain = [&status](int refused, int error) {
    status = 1;
    fmt::print(stderr, "rdmalloc: checkpoint: process {} is not resumed (error {}): {}\n", refused,
               error, remedy_for(error));
  };
  for (const Control& control : controls) {
    int error = ask_process(control, true, 0);
    if (error == 0) error = answer_of(control, timeout_ms + kAnswerMs);
    if (error == 0)
      is_any_resumed = true;
    else if (error == -EALREADY)
      never_quiesced.push_back(control.process);
    else if (!ends_meanwhile(control, error, process))
      complain(control.process, error);
  }
  // One that the tree has started since is as it should be.
  if (!is_any_resumed)
    for (int one : never_quiesced) complain(one, -EALREADY);
  return status;
}

// The tasks are stopped and can not answer. Of a dump that is not their end, or that has failed,
// they resume when they go on; else the request dies with them, and the images don't have it.
int leave_resume(int process) {
  for (const Control& control : controls_of(tree_of(process))) ask_process(control, true, 0);
  return 0;
}

int act_for_criu(const CheckpointOptions& options) {
  // NOLINTBEGIN(concurrency-mt-unsafe): one thread.
  const char* action = std::getenv("CRTOOLS_SCRIPT_ACTION");
  const char* process = std::getenv("CRTOOLS_INIT_PID");
  // NOLINTEND(concurrency-mt-unsafe)
  if (action == nullptr) {
    fmt::print(stderr,
               "rdmalloc: checkpoint: give quiesce or resume and a process, or let CRIU call it: "
               "criu dump --action-script \"$(command -v rdmalloc)\"\n");
    return 2;
  }
  const std::string_view what = action;
  const int id = process != nullptr ? std::atoi(process) : 0;
  if (what != "pre-dump" && what != "post-dump" && what != "post-resume") return 0;
  if (id <= 0) {
    fmt::print(stderr, "rdmalloc: checkpoint: CRIU names no process (CRTOOLS_INIT_PID) at {}\n",
               action);
    return 1;
  }
  if (what == "pre-dump") return quiesce(id, options.timeout_ms);
  return what == "post-dump" ? leave_resume(id) : resume(id, options.timeout_ms);
}

}  // namespace

int checkpoint(const CheckpointOptions& options) {
  if (options.action.empty()) return act_for_criu(options);
  if (options.process == 0) {
    fmt::print(stderr,
               "rdmalloc: checkpoint: no process is given; write: rdmalloc checkpoint {} PROCESS\n",
               options.action);
    return 2;
  }
  return options.action == "quiesce" ? quiesce(options.process, options.timeout_ms)
                                     : resume(options.process, options.timeout_ms);
}

}  // namespace rdmalloc::tool
