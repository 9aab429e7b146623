// SPDX-License-Identifier: BSD-3-Clause
//
// Steps through malloc and its relatives, one instruction at a time, and prints which instructions
// of librdmalloc.so ran. golden.py names them by objdump and compares with the golden table.
//
//     LD_PRELOAD=librdmalloc.so golden_steps paths       addresses of each hot operation
//     LD_PRELOAD=librdmalloc.so golden_steps longest     a fixed sequence: the longest way through
//                                                        each entry point, and the sum
//
// A child stops itself by a breakpoint instruction before and after each operation; between them
// this process steps it by ptrace(2). What runs outside the library (memset, memcpy, the call's
// own set-up) is not counted.
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <rdmalloc/rdmalloc.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>
#include <string>
#include <vector>

#if !defined(__x86_64__)
#error "golden_steps knows the breakpoint instruction and the registers of x86-64 only"
#endif

namespace {

constexpr const char* kOperations[] = {
    "malloc(64)",
    "free(64)",
    "malloc(8000)",
    "free(8000)",
    "malloc(200000)",
    "free(200000)",
    "aligned_alloc(256, 1000)",
    "calloc(1, 64)",
    "operator new(64)",
    "delete(p, 64)",
    "realloc(p of 64, 60)",
    "usable_size(64)",
    "free(NULL)",
    "heap malloc(64)",
    "heap free(64)",
    "malloc",
    "calloc",
    "realloc",
    "free",
};
enum Operation : long {
  kMalloc64,
  kFree64,
  kMalloc8000,
  kFree8000,
  kMalloc200000,
  kFree200000,
  kAligned1000,
  kCalloc64,
  kNew64,
  kDelete64,
  kRealloc64,
  kUsable64,
  kFreeNull,
  kHeapMalloc64,
  kHeapFree64,
  kMalloc,
  kCalloc,
  kRealloc,
  kFree,
};

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "golden_steps: %s: %s\n", what, strerror(errno));
  exit(1);
}

// ---- the child ----

void* volatile block = nullptr;

template <typename Call>
[[gnu::noinline]] void step(Operation operation, Call call) {
  asm volatile("int3" ::"a"(operation) : "memory");
  call();
  asm volatile("int3" ::"a"(operation) : "memory");
}

// The operations of the golden table, on a thread whose bins hold blocks and have room.
void hot_operations() {
  for (size_t bytes : {64, 1000, 8000, 200000}) {
    for (int round = 0; round < 20; round++) {
      void* warm[3];
      for (void*& each : warm) each = malloc(bytes);
      for (void* each : warm) free(each);
    }
  }
  step(kMalloc64, [] { block = malloc(64); });
  step(kUsable64, [] { (void)malloc_usable_size(block); });
  step(kRealloc64, [] { block = realloc(block, 60); });
  step(kFree64, [] { free(block); });
  step(kMalloc8000, [] { block = malloc(8000); });
  step(kFree8000, [] { free(block); });
  step(kMalloc200000, [] { block = malloc(200000); });
  step(kFree200000, [] { free(block); });
  step(kAligned1000, [] { block = aligned_alloc(256, 1000); });
  free(block);
  step(kCalloc64, [] { block = calloc(1, 64); });
  free(block);
  step(kNew64, [] { block = ::operator new(64); });
  step(kDelete64, [] { ::operator delete (block, size_t{64}); });
  step(kFreeNull, [] { free(nullptr); });
}

// A function of the preloaded library, which this program does not link.
template <typename Function>
Function* in_library(const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr) fail(name);
  return found;
}

// The same of a heap of the user; free() finds the heap by itself.
void hot_operations_of_a_heap() {
  static auto* allocate = in_library<decltype(rdmalloc_heap_malloc)>("rdmalloc_heap_malloc");
  static rdmalloc_heap* heap = nullptr;
  auto* create = in_library<decltype(rdmalloc_heap_create)>("rdmalloc_heap_create");
  if (create(nullptr, &heap) != 0) fail("rdmalloc_heap_create");
  for (int round = 0; round < 20; round++) {
    void* warm[3];
    for (void*& each : warm) each = allocate(heap, 64);
    for (void* each : warm) free(each);
  }
  step(kHeapMalloc64, [] { block = allocate(heap, 64); });
  step(kHeapFree64, [] { free(block); });
}

// A fixed sequence of mixed operations; sizes stay below what would make libc's memcpy step long.
void sequence() {
  constexpr int kSlots = 400, kSteps = 6000;
  static void* slots[kSlots];
  static void** slot;
  static size_t bytes;
  uint64_t state = 1;
  auto random = [&] {  // splitmix64, Steele et al., OOPSLA 2014
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  };
  for (int i = 0; i < kSteps; i++) {
    slot = &slots[random() % kSlots];
    uint64_t kind = random() % 100;
    bytes = kind < 60 ? 1 + random() % 512 : kind < 97 ? 1 + random() % 8192 : random() % 200000;
    if (*slot == nullptr && random() % 8 == 0) {
      bytes %= 2048;
      step(kCalloc, [] { *slot = calloc(1, bytes); });
    } else if (*slot == nullptr) {
      step(kMalloc, [] { *slot = malloc(bytes); });
    } else if (random() % 8 == 0) {
      bytes = bytes % 4096 + 1;
      step(kRealloc, [] { *slot = realloc(*slot, bytes); });
    } else {
      step(kFree, [] { free(*slot); });
      *slot = nullptr;
    }
  }
}

// ---- the parent ----

struct Range {
  uintptr_t begin = 0, end = 0, file_offset = 0;
};

// Where the library's code lies in the child: it has several mappings.
std::vector<Range> library_in(pid_t pid) {
  std::string path = "/proc/" + std::to_string(pid) + "/maps";
  FILE* maps = fopen(path.c_str(), "r");
  if (maps == nullptr) fail(path.c_str());
  char line[1024];
  std::vector<Range> ranges;
  while (fgets(line, sizeof line, maps) != nullptr) {
    Range range;
    if (strstr(line, "/librdmalloc.so") != nullptr &&
        sscanf(line, "%lx-%lx r-xp %lx", &range.begin, &range.end, &range.file_offset) == 3)
      ranges.push_back(range);
  }
  fclose(maps);
  if (ranges.empty()) {
    fprintf(stderr, "golden_steps: librdmalloc.so is not loaded; preload it\n");
    exit(1);
  }
  return ranges;
}

// Lets the child run (PTRACE_CONT) or step until it stops. False at its end.
bool go_on(pid_t pid, __ptrace_request how) {
  int status = 0;
  if (ptrace(how, pid, nullptr, nullptr) != 0) fail("ptrace");
  if (waitpid(pid, &status, 0) != pid) fail("waitpid");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return false;
  if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP) {
    fprintf(stderr, "golden_steps: the child ended or stopped with status %#x\n",
            static_cast<unsigned>(status));
    exit(1);
  }
  return true;
}

user_regs_struct registers_of(pid_t pid) {
  user_regs_struct registers{};
  if (ptrace(PTRACE_GETREGS, pid, nullptr, &registers) != 0) fail("PTRACE_GETREGS");
  return registers;
}

// The byte before the child's next instruction: 0xcc right after a breakpoint was executed.
bool is_at_breakpoint(pid_t pid, uintptr_t instruction) {
  errno = 0;
  long word = ptrace(PTRACE_PEEKTEXT, pid, instruction - 1, nullptr);
  if (errno != 0) fail("PTRACE_PEEKTEXT");
  return (word & 0xff) == 0xcc;
}

// Steps over one operation, from its first breakpoint to its second. Returns the file offsets of
// the library's instructions that ran.
std::vector<uintptr_t> step_over(pid_t pid, const std::vector<Range>& library, uintptr_t text_begin,
                                 uintptr_t text_end) {
  std::vector<uintptr_t> ran;
  for (uintptr_t at = registers_of(pid).rip;;) {
    for (const Range& range : library)
      if (at >= range.begin && at < range.end) ran.push_back(at - range.begin + range.file_offset);
    if (!go_on(pid, PTRACE_SINGLESTEP)) fail("the child ended inside an operation");
    uintptr_t next = registers_of(pid).rip;
    // Only this program's own code holds the breakpoint that ends the operation.
    if (next >= text_begin && next < text_end && next == at + 1 && is_at_breakpoint(pid, next))
      return ran;
    at = next;
  }
}

// This program's code in the child: where the first breakpoint lies.
void code_around(pid_t pid, uintptr_t address, uintptr_t* begin, uintptr_t* end) {
  std::string path = "/proc/" + std::to_string(pid) + "/maps";
  FILE* maps = fopen(path.c_str(), "r");
  if (maps == nullptr) fail(path.c_str());
  char line[1024];
  while (fgets(line, sizeof line, maps) != nullptr) {
    uintptr_t from = 0, to = 0;
    if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= address && address < to) {
      *begin = from;
      *end = to;
    }
  }
  fclose(maps);
}

// Each step wakes the child and then us. On one processor that is a switch of tasks; a second one,
// idle until then, is woken by an interrupt, which in a virtual machine takes many times as long.
void stay_on_one_processor() {
  int here = sched_getcpu();
  if (here < 0) fail("sched_getcpu");
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(here, &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) fail("sched_setaffinity");
}

struct Counts {
  size_t calls = 0, instructions = 0, longest = 0;
};

}  // namespace

int main(int argc, char** argv) {
  std::string mode = argc >= 2 ? argv[1] : "";
  bool is_child = argc == 3 && strcmp(argv[2], "child") == 0;
  if (mode != "paths" && mode != "longest") {
    fprintf(stderr, "usage: LD_PRELOAD=librdmalloc.so golden_steps paths|longest\n");
    return 2;
  }
  if (is_child) {
    if (mode == "longest") {
      sequence();
    } else {
      hot_operations();
      hot_operations_of_a_heap();
    }
    _exit(0);
  }
  stay_on_one_processor();
  pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) fail("PTRACE_TRACEME");
    execl("/proc/self/exe", argv[0], mode.c_str(), "child", nullptr);
    fail("exec");
  }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) fail("the child did not start");
  std::vector<Range> library;
  uintptr_t text_begin = 0, text_end = 0;
  std::map<std::string, Counts> counts;
  while (go_on(pid, PTRACE_CONT)) {
    user_regs_struct registers = registers_of(pid);
    if (library.empty()) {
      library = library_in(pid);
      code_around(pid, registers.rip, &text_begin, &text_end);
    }
    const char* name = kOperations[registers.rax];
    std::vector<uintptr_t> ran = step_over(pid, library, text_begin, text_end);
    if (mode == "paths") {
      printf("%s:", name);
      for (uintptr_t offset : ran) printf(" %lx", offset);
      printf("\n");
    }
    Counts& of = counts[name];
    of.calls++;
    of.instructions += ran.size();
    of.longest = std::max(of.longest, ran.size());
  }
  if (mode == "longest")
    for (const auto& [name, of] : counts)
      printf("%s: %zu calls, %zu instructions, longest %zu\n", name.c_str(), of.calls,
             of.instructions, of.longest);
  return 0;
}
