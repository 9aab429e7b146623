#include "bench/launch/calls.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "bench/support/marks.h"

namespace rdmalloc::bench {
namespace {

using Address = std::uint64_t;
using CallInfo = __ptrace_syscall_info;

// clang-format off
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped)
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define TELL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE)
constexpr sock_filter kAll[] = {TELL};
constexpr sock_filter kMemory[] = {
    LOAD(nr),
    UNLESS(SYS_madvise, 1), TELL,
    UNLESS(SYS_munmap, 1), TELL,
    UNLESS(SYS_mremap, 1), TELL,
    UNLESS(SYS_brk, 1), TELL,
    UNLESS(SYS_process_madvise, 1), TELL,
    UNLESS(SYS_mmap, 3), LOAD(args[3]),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_FIXED, 0, 5), TELL,
    UNLESS(SYS_prctl, 3), LOAD(args[0]),
    UNLESS(kMarkOption, 1), TELL,
    ALLOW,
};
// clang-format on

constexpr long kOptions = PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE |
                          PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;

// libc's thread stacks are no longer than this, unless the program asks for longer ones.
constexpr Address kStackBytes = Address{8} << 20;

struct Thread {
  // A new thread stops at once and its creator stops too, in any order: it goes on after both.
  bool is_announced = false;
  bool has_stopped = false;
  bool is_at_work = false;  // between the marks
  Address stack_top = 0;    // 0: the first thread of a process
};

class Counter {
 public:
  explicit Counter(Counting counting) : counting_(counting) {}

  // Until `root` has ended; its wait status.
  int follow(pid_t root, rusage& usage);
  void write(FILE* report) const;

 private:
  void on_stop(pid_t tid, int status);
  void announce_child_of(pid_t tid);
  bool is_first_stop(pid_t tid, int status);
  void on_call(pid_t tid);
  void on_memory_call(pid_t tid, const CallInfo& call);
  bool is_libc_stack_work(const Thread& thread, const CallInfo& call) const;
  bool is_named_by_itself(pid_t tid) const;

  Counting counting_;
  pid_t root_ = 0;
  bool root_became_the_program_ = false;
  std::map<pid_t, Thread> threads_;
  std::set<Address> stacks_;  // their tops; also of threads that have ended and were not joined yet
  unsigned long all_ = 0;
  std::map<std::string, unsigned long> of_program_;  // by threads of the program
  std::map<std::string, unsigned long> of_others_;   // by threads that an allocator started
  unsigned long of_libc_stacks_ = 0;
};

std::string name_of(const CallInfo& call) {
  switch (call.seccomp.nr) {
    case SYS_madvise:
      return call.seccomp.args[2] == MADV_HUGEPAGE ? "madvise(MADV_HUGEPAGE)" : "madvise";
    case SYS_munmap:
      return "munmap";
    case SYS_mremap:
      return "mremap";
    case SYS_brk:
      return "brk";
    case SYS_process_madvise:
      return "process_madvise";
    case SYS_mmap:
      return "mmap(MAP_FIXED)";
    default:
      return "other";
  }
}

std::string comm_of(pid_t tid) {
  char text[64] = "";
  FILE* file = std::fopen(("/proc/" + std::to_string(tid) + "/comm").c_str(), "re");
  if (file == nullptr) return {};
  if (std::fgets(text, sizeof text, file) == nullptr) text[0] = '\0';
  std::fclose(file);
  return text;
}

pid_t process_of(pid_t tid) {
  FILE* file = std::fopen(("/proc/" + std::to_string(tid) + "/status").c_str(), "re");
  if (file == nullptr) return tid;
  pid_t process = tid;
  for (char line[256]; std::fgets(line, sizeof line, file) != nullptr;)
    if (std::sscanf(line, "Tgid: %d", &process) == 1) break;
  std::fclose(file);
  return process;
}

bool look_at(pid_t tid, CallInfo& info) {
  return ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) > 0;
}

// Allocators name the threads that they start; programs here name none.
bool Counter::is_named_by_itself(pid_t tid) const {
  return comm_of(tid) != comm_of(process_of(tid));
}

// The stack of a thread that ends, below where it still stands, and that of one that was joined.
bool Counter::is_libc_stack_work(const Thread& thread, const CallInfo& call) const {
  const Address from = call.seccomp.args[0];
  const Address to = from + call.seccomp.args[1];
  if (call.seccomp.nr == SYS_madvise && thread.stack_top != 0 && to <= call.stack_pointer &&
      from >= thread.stack_top - kStackBytes)
    return true;
  if (call.seccomp.nr != SYS_munmap) return false;
  const auto top = stacks_.upper_bound(from);
  return top != stacks_.end() && *top <= to;
}

void Counter::on_memory_call(pid_t tid, const CallInfo& call) {
  Thread& thread = threads_[tid];
  if (call.seccomp.nr == SYS_prctl) {
    thread.is_at_work = static_cast<Mark>(call.seccomp.args[1]) == Mark::begin;
    return;
  }
  if (!thread.is_at_work) return;
  if (is_libc_stack_work(thread, call))
    ++of_libc_stacks_;
  else
    ++(is_named_by_itself(tid) ? of_others_ : of_program_)[name_of(call)];
}

void Counter::on_call(pid_t tid) {
  CallInfo call{};
  if (!look_at(tid, call) || call.op != PTRACE_SYSCALL_INFO_SECCOMP) return;
  if (counting_ == Counting::memory)
    on_memory_call(tid, call);
  else if (root_became_the_program_)
    ++all_;
}

// Its work is part of its creator's.
void Counter::announce_child_of(pid_t tid) {
  unsigned long child = 0;
  ptrace(PTRACE_GETEVENTMSG, tid, nullptr, &child);
  Thread& thread = threads_[static_cast<pid_t>(child)];
  thread.is_announced = true;
  thread.is_at_work = threads_[tid].is_at_work;
  if (thread.has_stopped) ptrace(PTRACE_CONT, static_cast<pid_t>(child), nullptr, 0);
}

// A thread shows itself by a SIGSTOP; its stack pointer is still where libc put it.
bool Counter::is_first_stop(pid_t tid, int status) {
  if (tid == root_ || status >> 16 != 0 || WSTOPSIG(status) != SIGSTOP) return false;
  Thread& thread = threads_[tid];
  if (thread.has_stopped) return false;
  thread.has_stopped = true;
  CallInfo info{};
  if (process_of(tid) != tid && look_at(tid, info)) {
    thread.stack_top = info.stack_pointer;
    stacks_.insert(thread.stack_top);
  }
  return true;
}

void Counter::on_stop(pid_t tid, int status) {
  const int event = status >> 16;
  if (is_first_stop(tid, status)) {
    if (threads_[tid].is_announced) ptrace(PTRACE_CONT, tid, nullptr, 0);
    return;
  }
  if (event == PTRACE_EVENT_SECCOMP) on_call(tid);
  if (event == PTRACE_EVENT_CLONE || event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK)
    announce_child_of(tid);
  if (event == PTRACE_EVENT_EXEC && tid == root_) root_became_the_program_ = true;
  ptrace(PTRACE_CONT, tid, nullptr, event == 0 ? WSTOPSIG(status) : 0);
}

int Counter::follow(pid_t root, rusage& usage) {
  root_ = root;
  int status = 0;
  // The child stops itself first.
  if (waitpid(root, &status, __WALL) != root || !WIFSTOPPED(status)) return status;
  ptrace(PTRACE_SETOPTIONS, root, nullptr, kOptions);
  ptrace(PTRACE_CONT, root, nullptr, 0);
  for (;;) {
    rusage ended{};
    const pid_t tid = wait4(-1, &status, __WALL, &ended);
    if (tid < 0 && errno == EINTR) continue;
    if (tid < 0) return status;
    if (WIFSTOPPED(status)) {
      on_stop(tid, status);
      continue;
    }
    threads_.erase(tid);
    if (tid != root) continue;
    usage = ended;
    return status;
  }
}

void write_counts(FILE* report, const char* name,
                  const std::map<std::string, unsigned long>& counts) {
  std::fprintf(report, "\"%s\":{", name);
  const char* comma = "";
  for (const auto& [call, count] : counts) {
    std::fprintf(report, "%s\"%s\":%lu", comma, call.c_str(), count);
    comma = ",";
  }
  std::fputs("},", report);
}

void Counter::write(FILE* report) const {
  if (counting_ == Counting::all) {
    std::fprintf(report, "\"calls\":%lu,", all_);
    return;
  }
  write_counts(report, "calls_of_program", of_program_);
  write_counts(report, "calls_of_others", of_others_);
  std::fprintf(report, "\"calls_of_libc_for_stacks\":%lu,", of_libc_stacks_);
}

}  // namespace

const char* let_calls_be_counted(Counting counting) {
  const bool all = counting == Counting::all;
  sock_fprog filter = {static_cast<unsigned short>(all ? std::size(kAll) : std::size(kMemory)),
                       const_cast<sock_filter*>(all ? kAll : kMemory)};
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return "ptrace";
  raise(SIGSTOP);  // until the tracer has set its options: a filter without one refuses the calls
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return "prctl";
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) return "seccomp";
  return nullptr;
}

int count_calls(pid_t root, Counting counting, rusage& usage, FILE* report) {
  Counter counter(counting);
  const int status = counter.follow(root, usage);
  counter.write(report);
  return status;
}

}  // namespace rdmalloc::bench
