#include "alloc/core/helper_threads.h"

#include <errno.h>
#include <link.h>
#include <signal.h>
#include <sys/prctl.h>

#include <cstring>

#include "alloc/os/cancel.h"
#include "alloc/os/fault.h"
#include "alloc/os/file.h"
#include "alloc/os/memory.h"
#include "alloc/os/os.h"
#include "alloc/os/rounding.h"

namespace rdmalloc {
namespace {

constexpr std::size_t kMostStackBytes = std::size_t{1} << 30;

// Where the loader can't be asked: more than programs have, and doubled where libc refuses it.
constexpr std::size_t kUnaskedBytes = std::size_t{1} << 20;

// Bytes of the thread-local variables of all that is loaded, most of which libc puts on the stack
// of each thread. Asked once: what libraries that come later may have there libc sets aside when
// the program starts. So no fork after the first helper's creation finds the loader locked by us.
std::size_t thread_local_bytes() {
  static constinit std::atomic<std::size_t> known{0};
  // Relaxed: a number, the same from all threads that ask.
  if (std::size_t bytes = known.load(std::memory_order_relaxed)) return bytes;
  if (loader_may_be_locked.load(std::memory_order_relaxed)) return kUnaskedBytes;
  std::size_t sum = 1;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* to) {
        for (int i = 0; i < info->dlpi_phnum; ++i)
          if (const auto& header = info->dlpi_phdr[i]; header.p_type == PT_TLS)
            *static_cast<std::size_t*>(to) += header.p_memsz + header.p_align;
        return 0;
      },
      &sum);
  known.store(sum, std::memory_order_relaxed);
  return sum;
}

// Gives the stack at least so many bytes. No thread runs on it.
int make_room(HelperStack* stack, std::size_t bytes) {
  if (stack->bytes >= bytes) return 0;
  HelperStack larger{0, bytes};
  // -EAGAIN, which libc says of threads, is the kernel's for a limit on locked memory here.
  if (os::map_metadata(bytes, &larger.base) != 0) return -ENOMEM;
  if (stack->base != 0) os::unreserve(stack->base, stack->bytes);
  *stack = larger;
  return 0;
}

int create_on(const HelperStack& stack, void* (*run)(void*), void* arg, pthread_t* thread) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  // A stack of our own: with one of libc's the creation would call mmap and mprotect by symbols
  // that a fabric may have patched. One of less than PTHREAD_STACK_MIN is refused here already
  // (128 KiB on aarch64).
  int error = pthread_attr_setstack(&attributes, reinterpret_cast<void*>(stack.base), stack.bytes);
  sigset_t before;
  helper_thread_mask(&before);
  if (error == 0)
    error = os::should_fail(os::Site::kThreadCreate)
                ? EAGAIN
                : pthread_create(thread, &attributes, run, arg);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return -error;
}

}  // namespace

int helper_thread_create(HelperStack* stack, std::size_t room_bytes, void* (*run)(void*), void* arg,
                         pthread_t* thread) {
  if (!os::is_first_thread_of_libc()) is_past_libc.store(true, std::memory_order_relaxed);
  std::size_t bytes = round_up(room_bytes + thread_local_bytes(), os::page_bytes());
  for (;; bytes *= 2) {
    if (int error = make_room(stack, bytes)) return error;
    int error = create_on(*stack, run, arg, thread);
    // libc wants more than the files say: it keeps room for libraries that come later (the tunable
    // glibc.rtld.optional_static_tls), and does not tell how much.
    if (error != -EINVAL || bytes > kMostStackBytes) return error;
  }
}

// The program's signals are not for our threads, but for those that the kernel sends one for what
// itself does: blocked, they would end the process, whatever handler there is for a call that a
// filter traps (SIGSYS) or for a page that is protected.
void helper_thread_mask(sigset_t* before) {
  sigset_t others;
  sigfillset(&others);
  for (int its_own : {SIGSYS, SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP})
    sigdelset(&others, its_own);
  pthread_sigmask(SIG_SETMASK, &others, before);
}

void helper_thread_begins(const char* name) {
  prctl(PR_SET_NAME, name);
  os::leave_real_time();
}

void helper_thread_ends() {
  prctl(PR_SET_NAME, "exit-handlers");
}

namespace {

// More than two other copies have: six each.
constexpr std::int64_t kMostOthers = 16;

struct LookAtNames {
  std::atomic<bool> is_taken{false};
  // By the thread that has taken it. After a look in vain: at how many others, and until when none
  // but fewer are looked at.
  std::int64_t others = 0, until_ns = 0;
  HelperStack stack;
};
constinit LookAtNames look;

bool begins_with(const char* name, const char* prefix) {
  return std::strncmp(name, prefix, std::strlen(prefix)) == 0;
}

// A thread has its creator's name until it has its own, so one of the purge thread's is known at
// once. "rdmckpt": of checkpoints, with its answer behind.
bool is_helpers_name(const char* name) {
  return begins_with(name, "rdmalloc-") || begins_with(name, "rdmckpt");
}

// On a thread with descriptors of its own, as in core/file_thread.h, which is the purge thread's.
// Others than that one ask too, seldom, so this one lives for one look.
void* count_strangers(void* to) {
  helper_thread_begins("rdmalloc-files");
  if (os::own_descriptors() == 0) *static_cast<int*>(to) = os::threads_but_those(is_helpers_name);
  return nullptr;
}

// Whether the `others` are helpers. By the thread that has taken the look.
bool are_helpers(std::int64_t others) {
  std::int64_t now_ns = os::monotonic_ns();
  if (others >= look.others && now_ns < look.until_ns) return false;
  pthread_t thread;
  int strangers = 1;  // or none can look
  if (helper_thread_create(&look.stack, kFileStackBytes, count_strangers, &strangers, &thread) ==
      0) {
    os::NoCancelScope scope;
    pthread_join(thread, nullptr);
  }
  // Where one ended meanwhile, another copy's look too, the next tick tells.
  look.others = others;
  look.until_ns = strangers > 0 ? now_ns + kUnnotifiedTickNs : 0;
  return strangers == 0;
}

}  // namespace

bool are_only_helpers_left() {
  std::int64_t others = os::threads_left_beside(helper_threads.load(std::memory_order_relaxed));
  if (others <= 0) return others == 0;
  // Acquire: pairs with the release below.
  if (others > kMostOthers || look.is_taken.exchange(true, std::memory_order_acquire)) return false;
  bool are_all = are_helpers(others);
  look.is_taken.store(false, std::memory_order_release);
  return are_all;
}

void helper_threads_after_fork() {
  helper_threads.store(0, std::memory_order_relaxed);
  look.is_taken.store(false, std::memory_order_relaxed);
}

const char* helper_thread_remedy(int error) {
  switch (error) {
    case -EAGAIN:
      return "no more threads may be made: check RLIMIT_NPROC, the cgroup's pids.max and "
             "kernel.threads-max";
    case -ENOMEM:
      return "its stack could not be mapped: check RLIMIT_AS, RLIMIT_DATA, vm.max_map_count and "
             "vm.overcommit_memory, after mlockall() RLIMIT_MEMLOCK";
    case -EINVAL:
      return "libc refuses stacks up to 1 GiB (GLIBC_TUNABLES?), or this thread has left its PID "
             "namespace (unshare) and can make none";
    default:
      return "the kernel or a sandbox forbids it: check seccomp filters for clone3 and clone";
  }
}

}  // namespace rdmalloc
