#include "alloc/os/os.h"

#include <errno.h>
#include <linux/futex.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>

#include <cstring>

#include "alloc/os/fault.h"
#include "alloc/os/rounding.h"
#include "alloc/os/syscall.h"
#include "alloc/os/topology.h"

#ifndef MAP_HUGE_SHIFT
#define MAP_HUGE_SHIFT 26
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace rdmalloc::os {
namespace {

int result_of(long value) {
  return value < 0 ? static_cast<int>(value) : 0;
}

int map(std::uintptr_t hint, std::size_t length, int protection, int extra_flags,
        std::uintptr_t* base) {
  long value = raw_syscall(SYS_mmap, static_cast<long>(hint), static_cast<long>(length), protection,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | extra_flags, -1, 0);
  if (value < 0 && value > -4096) return static_cast<int>(value);
  *base = static_cast<std::uintptr_t>(value);
  return 0;
}

int advise(std::uintptr_t base, std::size_t length, int advice) {
  return result_of(
      raw_syscall(SYS_madvise, static_cast<long>(base), static_cast<long>(length), advice));
}

}  // namespace

std::size_t page_bytes() {
  // Read each time: callers are cold, and a cached copy would need an initialised-test anyway.
  return static_cast<std::size_t>(getauxval(AT_PAGESZ));
}

int reserve(std::uintptr_t hint, std::size_t length, std::uintptr_t* base) {
  if (should_fail(Site::kReserve)) return -ENOMEM;
  return map(hint, length, PROT_NONE, 0, base);
}

int reserve_at(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kReserve)) return -ENOMEM;
  std::uintptr_t got = 0;
  // A hint, which the kernel follows where nothing is mapped. MAP_FIXED_NOREPLACE would say the
  // same, but Chromium's sandbox ends a process that passes this flag.
  if (int error = map(base, length, PROT_NONE, 0, &got)) return error;
  if (got == base) return 0;
  unreserve(got, length);
  return -EEXIST;
}

int unreserve(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kUnreserve)) return -ENOMEM;
  return result_of(raw_syscall(SYS_munmap, static_cast<long>(base), static_cast<long>(length)));
}

int make_readable(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kCommit)) return -ENOMEM;
  return result_of(
      raw_syscall(SYS_mprotect, static_cast<long>(base), static_cast<long>(length), PROT_READ));
}

int commit(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kCommit)) return -ENOMEM;
  return result_of(raw_syscall(SYS_mprotect, static_cast<long>(base), static_cast<long>(length),
                               PROT_READ | PROT_WRITE));
}

int revoke(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kCommit)) return -ENOMEM;
  return result_of(
      raw_syscall(SYS_mprotect, static_cast<long>(base), static_cast<long>(length), PROT_NONE));
}

int map_metadata(std::size_t length, std::uintptr_t* base) {
  if (should_fail(Site::kMapMetadata)) return -ENOMEM;
  return map(0, length, PROT_READ | PROT_WRITE, 0, base);
}

int wipe_on_fork(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kWipeOnFork)) return -EINVAL;
  return advise(base, length, MADV_WIPEONFORK);
}

int advise_huge(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kAdviseHuge)) return -EINVAL;
  return advise(base, length, MADV_HUGEPAGE);
}

int advise_small(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kAdviseSmall)) return -EINVAL;
  return advise(base, length, MADV_NOHUGEPAGE);
}

int count_resident(std::uintptr_t base, std::size_t length, std::size_t* pages) {
  // A byte for each page, of 4 KiB at least; malloc takes little of a thread's stack.
  constexpr std::size_t kAtOnce = std::size_t{1} << 20, kMostPages = kAtOnce / 4096;
  constexpr std::uint64_t kResidentBits = 0x0101010101010101;  // the others say nothing
  if (should_fail(Site::kResident)) return -ENOMEM;
  *pages = 0;
  for (std::size_t done = 0, bytes = 0; done < length; done += bytes) {
    std::uint64_t is_resident[kMostPages / 8] = {};
    bytes = length - done < kAtOnce ? length - done : kAtOnce;
    if (int error =
            result_of(raw_syscall(SYS_mincore, static_cast<long>(base + done),
                                  static_cast<long>(bytes), reinterpret_cast<long>(is_resident))))
      return error;
    // Summed up in the highest byte; without an instruction for it std::popcount() is a call.
    for (std::uint64_t eight : is_resident) *pages += (eight & kResidentBits) * kResidentBits >> 56;
  }
  return 0;
}

int decommit(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kDecommit)) return -EINVAL;
  return advise(base, length, MADV_DONTNEED);
}

int decommit_hooked(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kDecommit)) return -EINVAL;
  int saved = errno;
  int error = madvise(reinterpret_cast<void*>(base), length, MADV_DONTNEED) == 0 ? 0 : -errno;
  errno = saved;
  return error;
}

int populate_for_reading(std::uintptr_t page) {
  constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers do not have
  return advise(page, page_bytes(), kPopulateRead);
}

int populate(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kPopulate)) return -EINVAL;
  return advise(base, length, MADV_POPULATE_WRITE);
}

int bind_to_node(std::uintptr_t base, std::size_t length, unsigned node) {
  constexpr unsigned kMostNodes = 1024, kBits = 8 * sizeof(unsigned long);
  if (node >= kMostNodes) return -EINVAL;
  if (should_fail(Site::kBindNode)) return -ENOMEM;
  unsigned long nodes[kMostNodes / kBits] = {};
  nodes[node / kBits] = 1ul << node % kBits;
  // The kernel takes one off the number of bits.
  return result_of(raw_syscall(SYS_mbind, static_cast<long>(base), static_cast<long>(length),
                               MPOL_BIND, reinterpret_cast<long>(nodes), kMostNodes + 1,
                               MPOL_MF_STRICT | MPOL_MF_MOVE));
}

int unbind(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kUnbindNode)) return -ENOMEM;
  return result_of(raw_syscall(SYS_mbind, static_cast<long>(base), static_cast<long>(length),
                               MPOL_DEFAULT, 0, 0, 0));
}

namespace {

int move(std::uintptr_t from, std::size_t length, std::uintptr_t to) {
  long value =
      raw_syscall(SYS_mremap, static_cast<long>(from), static_cast<long>(length),
                  static_cast<long>(length), MREMAP_MAYMOVE | MREMAP_FIXED, static_cast<long>(to));
  return value < 0 && value > -4096 ? static_cast<int>(value) : 0;
}

// Gives back a room of `length` bytes from `base` on, but for a part that may be another's.
void unreserve_but(std::uintptr_t base, std::size_t length, std::uintptr_t part,
                   std::size_t part_bytes) {
  if (part != base) unreserve(base, part - base);
  std::uintptr_t after = part + part_bytes, end = base + length;
  if (after != end) unreserve(after, end - after);
}

// Maps a piece of huge pages and moves it into a room that is reserved, to learn whether the
// kernel can: one that can't finds out only after it has unmapped what lies at the new place, and
// returns -EINVAL.
int map_piece(std::uintptr_t to, std::size_t length, std::size_t page_bytes) {
  if (should_fail(Site::kMapHuge)) return -ENOMEM;
  int size_flag = __builtin_ctzl(page_bytes) << MAP_HUGE_SHIFT;
  // Not MAP_NORESERVE: it is the reservation that lets the parent of a fork, and not its child,
  // keep a page that both write when no other is free.
  long value = raw_syscall(SYS_mmap, 0, static_cast<long>(length), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | size_flag, -1, 0);
  // What map_huge() says of a kernel without such a pool.
  if (value == -EINVAL) return -ENOTSUP;
  if (value < 0 && value > -4096) return static_cast<int>(value);
  auto mapped = static_cast<std::uintptr_t>(value);
  int error = advise(mapped, length, MADV_DONTFORK);
  if (error == 0) error = move(mapped, length, to);
  if (error != 0) unreserve(mapped, length);
  return error;
}

}  // namespace

// Each piece is a mapping of its own, which the kernel joins with no other, and is moved whole: of
// a part that is not backed it would lose the reservation.
constinit std::size_t huge_piece_bytes = std::size_t{1} << 30;

int map_huge(std::size_t length, std::size_t page_bytes, std::uintptr_t* base) {
  std::uintptr_t room = 0;
  if (int error = map(0, length + page_bytes, PROT_NONE, 0, &room)) return error;
  *base = round_up(room, page_bytes);
  unreserve_but(room, length + page_bytes, *base, length);
  for (std::size_t done = 0; done < length;) {
    std::size_t bytes = length - done < huge_piece_bytes ? length - done : huge_piece_bytes;
    if (int error = map_piece(*base + done, bytes, page_bytes)) {
      // After -EINVAL nothing of ours is at the piece's place; another's mapping may be.
      unreserve_but(*base, length, *base + done, error == -EINVAL ? bytes : 0);
      return error == -EINVAL ? -ENOTSUP : error;
    }
    done += bytes;
  }
  return 0;
}

int move_huge(std::uintptr_t from, std::size_t length, std::uintptr_t to) {
  for (std::size_t done = 0; done < length;) {
    std::size_t bytes = length - done < huge_piece_bytes ? length - done : huge_piece_bytes;
    int error = should_fail(Site::kMoveHuge) ? -ENOMEM : move(from + done, bytes, to + done);
    if (error != 0) {
      unreserve(from + done, length - done);
      return error;
    }
    done += bytes;
  }
  advise(to, length, MADV_DOFORK);  // of whole mappings: nothing in it can fail
  return 0;
}

int reserve_over(std::uintptr_t base, std::size_t length) {
  if (should_fail(Site::kReserveOver)) return -ENOMEM;
  std::uintptr_t got = 0;
  return map(base, length, PROT_NONE, MAP_FIXED, &got);
}

int futex_wait(const std::uint32_t* word, std::uint32_t expected, std::int64_t timeout_ns) {
  if (should_fail(Site::kFutexWait)) return -EINTR;
  timespec timeout{timeout_ns / 1000000000, timeout_ns % 1000000000};
  return result_of(raw_syscall(SYS_futex, reinterpret_cast<long>(word), FUTEX_WAIT_PRIVATE,
                               static_cast<long>(expected),
                               timeout_ns < 0 ? 0 : reinterpret_cast<long>(&timeout)));
}

int futex_wake(const std::uint32_t* word, int count) {
  return result_of(raw_syscall(SYS_futex, reinterpret_cast<long>(word), FUTEX_WAKE_PRIVATE, count));
}

int barrier_of_all_threads() {
  constexpr long kExpedited = 1 << 3, kRegisterExpedited = 1 << 4;
  auto ask = [](long command) {
    if (should_fail(Site::kBarrier)) return -ENOSYS;
    return result_of(raw_syscall(SYS_membarrier, command, 0));
  };
  int error = ask(kExpedited);
  // Not registered yet, nor is a process that was restored from a checkpoint.
  if (error != -EPERM) return error;
  error = ask(kRegisterExpedited);
  return error != 0 ? error : ask(kExpedited);
}

int process_id() {
  return static_cast<int>(raw_syscall(SYS_getpid));
}

bool process_exists(int id) {
  return raw_syscall(SYS_tgkill, id, id, 0) != -ESRCH;
}

bool is_first_thread_of_libc() {
  std::uintptr_t list = 0;
  std::size_t bytes = 0;
  return raw_syscall(SYS_get_robust_list, raw_syscall(SYS_getpid), reinterpret_cast<long>(&list),
                     reinterpret_cast<long>(&bytes)) != 0 ||
         list != 0;
}

void host_name(char (&name)[kMostHostBytes]) {
  utsname names = {};
  raw_syscall(SYS_uname, reinterpret_cast<long>(&names));
  static_assert(sizeof names.nodename == kMostHostBytes);
  std::memcpy(name, names.nodename, sizeof name);
}

int thread_id() {
  return static_cast<int>(raw_syscall(SYS_gettid));
}

bool is_first_thread() {
  return raw_syscall(SYS_gettid) == raw_syscall(SYS_getpid);
}

bool thread_exists(std::uint32_t id) {
  return raw_syscall(SYS_tgkill, raw_syscall(SYS_getpid), id, 0) == 0;
}

void sleep_ns(std::int64_t ns) {
  timespec time{ns / 1000000000, ns % 1000000000};
  raw_syscall(SYS_nanosleep, reinterpret_cast<long>(&time), 0);
}

void leave_real_time() {
  long policy = raw_syscall(SYS_sched_getscheduler, 0) & ~static_cast<long>(SCHED_RESET_ON_FORK);
  if (policy != SCHED_FIFO && policy != SCHED_RR) return;
  sched_param none = {};
  raw_syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, reinterpret_cast<long>(&none));
}

unsigned processors_allowed() {
  unsigned long mask[kMostCpus / (8 * sizeof(long))];
  if (should_fail(Site::kReadAffinity)) return 1;
  // The bytes that the kernel's mask has.
  long got = raw_syscall(SYS_sched_getaffinity, 0, sizeof mask, reinterpret_cast<long>(mask));
  int count = 0;
  for (long word = 0; word < got / static_cast<long>(sizeof(long)); ++word)
    count += __builtin_popcountl(mask[word]);
  return count > 0 ? static_cast<unsigned>(count) : 1;
}

namespace {

// Keeps from the program the signal that a write of ours brings: SIGPIPE where no process reads its
// pipe, SIGXFSZ beyond RLIMIT_FSIZE. The kernel sends it to the writing thread, which takes it back
// before it unblocks the signals. One that was pending before is the program's and stays; the two
// are one then.
class NoSignalOfWrite {
 public:
  NoSignalOfWrite() {
    set_mask(SIG_BLOCK, kAll, &before_);
    // What is pending was blocked.
    if ((before_ & kAll) != 0)
      raw_syscall(SYS_rt_sigpending, reinterpret_cast<long>(&pending_), sizeof pending_);
  }
  ~NoSignalOfWrite() {
    if (const Signals ours = sent_ & ~pending_; ours != 0) {
      const timespec no_time = {};
      while (raw_syscall(SYS_rt_sigtimedwait, reinterpret_cast<long>(&ours), 0,
                         reinterpret_cast<long>(&no_time), sizeof ours) == -EINTR) {
      }
    }
    if (const Signals ours = kAll & ~before_; ours != 0) set_mask(SIG_UNBLOCK, ours, nullptr);
  }
  NoSignalOfWrite(const NoSignalOfWrite&) = delete;
  NoSignalOfWrite& operator=(const NoSignalOfWrite&) = delete;
  void note_error(long error) {
    if (error == -EPIPE) sent_ = kPipe;
    if (error == -EFBIG) sent_ = kFileSize;
  }

 private:
  using Signals = std::uint64_t;  // the kernel's set of them
  static constexpr Signals kPipe = Signals{1} << (SIGPIPE - 1);
  static constexpr Signals kFileSize = Signals{1} << (SIGXFSZ - 1);
  static constexpr Signals kAll = kPipe | kFileSize;
  static void set_mask(int how, const Signals& signals, Signals* before) {
    raw_syscall(SYS_rt_sigprocmask, how, reinterpret_cast<long>(&signals),
                reinterpret_cast<long>(before), sizeof signals);
  }
  Signals before_ = kAll;  // where the mask can't be had (a filter) nothing is undone
  Signals pending_ = 0, sent_ = 0;
};

}  // namespace

int write_all(int fd, const char* bytes, std::size_t length) {
  NoSignalOfWrite no_signal;
  while (length > 0) {
    if (should_fail(Site::kWrite)) return -EIO;
    long wrote =
        raw_syscall(SYS_write, fd, reinterpret_cast<long>(bytes), static_cast<long>(length));
    if (wrote == -EINTR) continue;
    no_signal.note_error(wrote);
    if (wrote < 0) return static_cast<int>(wrote);
    bytes += wrote;
    length -= static_cast<std::size_t>(wrote);
  }
  return 0;
}

void abort_process() {
  abort();
}

}  // namespace rdmalloc::os
