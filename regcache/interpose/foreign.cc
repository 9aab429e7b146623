// In librdmalloc.so only: memory that is not ours, for libraries whose own watching was turned off
// and who rely on us instead (notifiers/watching.h; I9). Until one does, each of these is a load
// and a jump to libc's.
//
// Then: first the caches are notified, then libc's function is called, with no lock held and
// nothing allocated between. It is libc's and not a raw system call, so that a hook that a library
// has put there after all hears of it too. What we notify of is notified even if the call then
// fails: a registration too few costs time, one too many costs data.
//
// Not seen: what libc does inside itself (the stacks of ended threads), raw system calls, and brk,
// which rdmalloc never uses and programs seldom do.
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>

#include "alloc/for_regcache.h"
#include "regcache/interpose/in_front_of.h"
#include "regcache/notifiers/notifiers.h"
#include "regcache/notifiers/watching.h"

namespace {

using rdmalloc::next_of;
namespace os = rdmalloc::os;

RDMALLOC_AT_START constinit std::atomic<int (*)(void*, size_t)> next_munmap{nullptr};
RDMALLOC_AT_START constinit std::atomic<void* (*)(void*, size_t, size_t, int, void*)> next_mremap{
    nullptr};
RDMALLOC_AT_START constinit std::atomic<int (*)(void*, size_t, int)> next_madvise{nullptr};
RDMALLOC_AT_START constinit std::atomic<void* (*)(void*, size_t, int, int, int, off_t)> next_mmap{
    nullptr};
RDMALLOC_AT_START constinit std::atomic<ssize_t (*)(int, const iovec*, size_t, int, unsigned)>
    next_process_madvise{nullptr};
RDMALLOC_AT_START constinit std::atomic<int (*)(const void*)> next_shmdt{nullptr};
RDMALLOC_AT_START constinit std::atomic<void* (*)(int, const void*, int)> next_shmat{nullptr};

RDMALLOC_FINDS(find_all) {
  next_of(next_munmap, "munmap");
  next_of(next_mremap, "mremap");
  next_of(next_madvise, "madvise");
  next_of(next_mmap, "mmap");
  next_of(next_process_madvise, "process_madvise");  // none before glibc 2.36
  next_of(next_shmdt, "shmdt");
  next_of(next_shmat, "shmat");
}

void notify(const void* address, size_t length) {
  int error = errno;  // the callbacks may change it, and libc's function sets it only when it fails
  rdmalloc::notifiers_notify_foreign(reinterpret_cast<std::uintptr_t>(address), length);
  errno = error;
}

constexpr int kDontneedLocked = 24;  // MADV_DONTNEED_LOCKED, Linux 5.18

bool takes_pages_away(int advice) {
  return advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE ||
         advice == kDontneedLocked;
}

const char* name_of(int advice) {
  switch (advice) {
    case MADV_FREE:
      return "madvise(MADV_FREE)";
    case MADV_REMOVE:
      return "madvise(MADV_REMOVE)";
    default:
      return "madvise(MADV_DONTNEED)";
  }
}

// Reads /proc/self/maps by lines without allocating, past libc: shmdt() may not end a thread that
// is cancelled.
class Maps {
 public:
  Maps() : fd_(os::open_to_read("/proc/self/maps")) {}
  Maps(const Maps&) = delete;
  Maps& operator=(const Maps&) = delete;
  ~Maps() {
    if (fd_ >= 0) os::close_file(fd_);
  }
  // Bounds and inode of the next mapping; false at the end, or where it can't be read.
  bool next(std::uintptr_t* low, std::uintptr_t* high, unsigned long* inode) {
    if (!read_line()) return false;
    // "low-high perms offset device inode name"
    const char* at = line_;
    *low = number(at, 16);
    *high = number(++at, 16);
    for (int field = 0; field < 4; field++)
      while (*at != 0 && *at++ != ' ') {
      }
    *inode = number(at, 10);
    return true;
  }
  // Whether all mappings were there to be read.
  bool was_readable() const { return fd_ >= 0 && !has_failed_; }

 private:
  static unsigned long number(const char*& at, unsigned base) {
    unsigned long value = 0;
    for (;; at++) {
      unsigned digit = *at >= '0' && *at <= '9'   ? static_cast<unsigned>(*at - '0')
                       : *at >= 'a' && *at <= 'f' ? static_cast<unsigned>(*at - 'a') + 10
                                                  : 16;
      if (digit >= base) return value;
      value = value * base + digit;
    }
  }
  bool read_line() {
    std::size_t length = 0;
    for (;;) {
      if (at_ == end_) {
        if (fd_ < 0) return false;
        long got = os::try_read(fd_, buffer_, sizeof buffer_);
        has_failed_ = got < 0;
        if (got <= 0) return false;
        at_ = 0;
        end_ = static_cast<std::size_t>(got);
      }
      char c = buffer_[at_++];
      if (c == '\n') break;
      if (length + 1 < sizeof line_) line_[length++] = c;
    }
    line_[length] = 0;
    return true;
  }
  int fd_;
  bool has_failed_ = false;
  std::size_t at_ = 0, end_ = 0;
  char buffer_[1024], line_[128];  // a line's end, the file's name, is of no interest
};

// Whether a descriptor of a process is one of ours: "Pid:" in /proc/self/fdinfo.
bool is_this_process(int pidfd) {
  char text[512];
  os::Path path = os::Path("/proc/self/fdinfo/").number(static_cast<unsigned>(pidfd));
  if (os::read_file(path.c_str(), text) == 0) return false;
  const char* pid = strstr(text, "\nPid:");
  return pid != nullptr && atoi(pid + sizeof "\nPid:" - 1) == getpid();
}

// Bytes of the shared memory segment attached at `address`: the mappings of its inode from there
// on. Where /proc can't be read to their end, all that lies above: too much is right.
size_t attached_bytes(const void* address) {
  auto base = reinterpret_cast<std::uintptr_t>(address);
  Maps maps;
  std::uintptr_t low = 0, high = 0, end = 0;
  unsigned long inode = 0, wanted = 0;
  while (maps.next(&low, &high, &inode)) {
    if (low == base) {
      wanted = inode;
      end = high;
    } else if (end != 0 && low == end && inode == wanted) {
      end = high;
    } else if (end != 0) {
      break;
    }
  }
  return end == 0 || !maps.was_readable() ? SIZE_MAX - base : end - base;
}

}  // namespace

RDMALLOC_IN_FRONT_OF(munmap);
int rdmalloc_in_front_of_munmap(void* address, size_t length) noexcept {
  rdmalloc::check_foreign_call("munmap", address, length);
  if (rdmalloc::notifiers_watch_foreign()) notify(address, length);
  return next_of(next_munmap, "munmap")(address, length);
}

namespace {

// What libraries that were linked against libc are bound to. Not ours where librdmalloc was loaded
// late or stands behind libc.
bool is_munmap_ours() {
  return dlvsym(RTLD_DEFAULT, "munmap", RDMALLOC_LIBC_VERSION) ==
         reinterpret_cast<void*>(rdmalloc_in_front_of_munmap);
}

// Before the notifiers' own start, which is an ordinary constructor.
__attribute__((constructor(101))) void say_that_we_can() {
  rdmalloc::set_can_watch_foreign(is_munmap_ours);
}

}  // namespace

RDMALLOC_IN_FRONT_OF(madvise);
int rdmalloc_in_front_of_madvise(void* address, size_t length, int advice) noexcept {
  if (takes_pages_away(advice)) {
    rdmalloc::check_foreign_call(name_of(advice), address, length);
    if (rdmalloc::notifiers_watch_foreign()) notify(address, length);
  }
  return next_of(next_madvise, "madvise")(address, length, advice);
}

// Of libc since 2.36; the kernel takes such advice for the caller's own process since 6.13.
asm(".symver rdmalloc_in_front_of_process_madvise,process_madvise@GLIBC_2.36");
extern "C" __attribute__((visibility("default"), used)) ssize_t
rdmalloc_in_front_of_process_madvise(int pidfd, const iovec* ranges, size_t count, int advice,
                                     unsigned flags) noexcept {
  // Notified whatever the process is: a registration too few, again.
  bool is_notified = takes_pages_away(advice) && rdmalloc::notifiers_watch_foreign();
  bool is_checked =
      rdmalloc::kChecksForeignCalls && takes_pages_away(advice) && is_this_process(pidfd);
  for (size_t i = 0; i < count && (is_notified || is_checked); i++) {
    const iovec& range = ranges[i];
    if (is_checked) rdmalloc::check_foreign_call("process_madvise", range.iov_base, range.iov_len);
    if (is_notified) notify(range.iov_base, range.iov_len);
  }
  auto* next = next_of(next_process_madvise, "process_madvise");
  if (next == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  return next(pidfd, ranges, count, advice, flags);
}

// Its fifth argument is there only with MREMAP_FIXED; passing on an unset one does no harm.
asm(".symver rdmalloc_in_front_of_mremap,mremap@" RDMALLOC_LIBC_VERSION);
extern "C" __attribute__((visibility("default"), used)) void* rdmalloc_in_front_of_mremap(
    void* address, size_t length, size_t new_length, int flags, void* target) noexcept {
  rdmalloc::check_foreign_call("mremap", address, length);
  if ((flags & MREMAP_FIXED) != 0)
    rdmalloc::check_foreign_call("mremap(MREMAP_FIXED)", target, new_length);
  if (rdmalloc::notifiers_watch_foreign()) {
    notify(address, length);
    if ((flags & MREMAP_FIXED) != 0) notify(target, new_length);
  }
  return next_of(next_mremap, "mremap")(address, length, new_length, flags, target);
}

namespace {

void* map(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_FIXED) != 0) {  // what lay there goes
    rdmalloc::check_foreign_call("mmap(MAP_FIXED)", address, length);
    if (rdmalloc::notifiers_watch_foreign()) notify(address, length);
  }
  return next_of(next_mmap, "mmap")(address, length, protection, flags, fd, offset);
}

}  // namespace

static_assert(sizeof(off_t) == 8, "mmap and mmap64 are one function");
RDMALLOC_IN_FRONT_OF(mmap);
void* rdmalloc_in_front_of_mmap(void* address, size_t length, int protection, int flags, int fd,
                                off_t offset) noexcept {
  return map(address, length, protection, flags, fd, offset);
}
RDMALLOC_IN_FRONT_OF(mmap64);
void* rdmalloc_in_front_of_mmap64(void* address, size_t length, int protection, int flags, int fd,
                                  off64_t offset) noexcept {
  return map(address, length, protection, flags, fd, offset);
}

RDMALLOC_IN_FRONT_OF(shmdt);
int rdmalloc_in_front_of_shmdt(const void* address) noexcept {
  if (rdmalloc::notifiers_watch_foreign()) notify(address, attached_bytes(address));
  return next_of(next_shmdt, "shmdt")(address);
}

RDMALLOC_IN_FRONT_OF(shmat);
void* rdmalloc_in_front_of_shmat(int segment, const void* address, int flags) noexcept {
  shmid_ds status;
  if ((flags & SHM_REMAP) != 0 && rdmalloc::notifiers_watch_foreign() &&
      shmctl(segment, IPC_STAT, &status) == 0) {
    auto base = reinterpret_cast<std::uintptr_t>(address);
    std::uintptr_t low = (flags & SHM_RND) != 0 ? base - base % SHMLBA : base;
    notify(reinterpret_cast<const void*>(low), status.shm_segsz);
  }
  return next_of(next_shmat, "shmat")(segment, address, flags);
}
