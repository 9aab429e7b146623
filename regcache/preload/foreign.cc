// In librdmalloc.so only: memory that is not ours, for libraries whose own watching was turned off
// and who rely on us instead (notifiers/watching.h; I9). Until one does, each of these is a load
// and a jump to libc's.
//
// Then: first the caches are told, then libc's function is called, with no lock held and nothing
// allocated between. It is libc's and not a raw system call, so that a hook that somebody has put
// there after all hears of it too. What we tell of is told even if the call then fails: a
// registration too few costs time, one too many costs data.
//
// Not seen: what libc does inside itself (the stacks of ended threads), raw system calls, and brk,
// which rdmalloc never uses and programs seldom do.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include <cstdint>

#include "regcache/notifiers/notifiers.h"
#include "regcache/notifiers/watching.h"
#include "regcache/preload/interpose.h"

namespace {

using rdmalloc::next_of;

constinit std::atomic<int (*)(void*, size_t)> next_munmap{nullptr};
constinit std::atomic<void* (*)(void*, size_t, size_t, int, void*)> next_mremap{nullptr};
constinit std::atomic<int (*)(void*, size_t, int)> next_madvise{nullptr};
constinit std::atomic<void* (*)(void*, size_t, int, int, int, off_t)> next_mmap{nullptr};
constinit std::atomic<int (*)(const void*)> next_shmdt{nullptr};
constinit std::atomic<void* (*)(int, const void*, int)> next_shmat{nullptr};

// Found before anybody can call one of them from a signal handler, where dlsym has no business.
__attribute__((constructor)) void find_all() {
  next_of(next_munmap, "munmap");
  next_of(next_mremap, "mremap");
  next_of(next_madvise, "madvise");
  next_of(next_mmap, "mmap");
  next_of(next_shmdt, "shmdt");
  next_of(next_shmat, "shmat");
}

// Before the notifiers' own start, which is an ordinary constructor.
__attribute__((constructor(101))) void say_that_we_can() {
  rdmalloc::set_can_watch_foreign();
}

void tell(const void* address, size_t length) {
  int error = errno;  // the callbacks may change it, and libc's function sets it only when it fails
  rdmalloc::notifiers_tell_foreign(reinterpret_cast<std::uintptr_t>(address), length);
  errno = error;
}

bool takes_pages_away(int advice) {
  constexpr int kDontneedLocked = 24;  // MADV_DONTNEED_LOCKED, Linux 5.18
  return advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE ||
         advice == kDontneedLocked;
}

// Reads /proc/self/maps by lines without allocating.
class Maps {
 public:
  Maps() : fd_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  Maps(const Maps&) = delete;
  Maps& operator=(const Maps&) = delete;
  ~Maps() {
    if (fd_ >= 0) close(fd_);
  }
  // Bounds and inode of the next mapping; false at the end.
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
        ssize_t got = fd_ < 0 ? 0 : read(fd_, buffer_, sizeof buffer_);
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
  std::size_t at_ = 0, end_ = 0;
  char buffer_[1024], line_[128];  // a line's end, the file's name, is of no interest
};

// Bytes of the shared memory segment attached at `address`: the mappings of its inode from there
// on. Where /proc is not to be had, all that lies above: too much is right.
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
  return end == 0 ? SIZE_MAX - base : end - base;
}

}  // namespace

RDMALLOC_IN_FRONT_OF(munmap);
int rdmalloc_in_front_of_munmap(void* address, size_t length) noexcept {
  if (rdmalloc::notifiers_watch_foreign()) tell(address, length);
  return next_of(next_munmap, "munmap")(address, length);
}

RDMALLOC_IN_FRONT_OF(madvise);
int rdmalloc_in_front_of_madvise(void* address, size_t length, int advice) noexcept {
  if (takes_pages_away(advice) && rdmalloc::notifiers_watch_foreign()) tell(address, length);
  return next_of(next_madvise, "madvise")(address, length, advice);
}

// Its fifth argument is there only with MREMAP_FIXED; passing on an unset one does no harm.
asm(".symver rdmalloc_in_front_of_mremap,mremap@" RDMALLOC_LIBC_VERSION);
extern "C" __attribute__((visibility("default"), used)) void* rdmalloc_in_front_of_mremap(
    void* address, size_t length, size_t new_length, int flags, void* target) noexcept {
  if (rdmalloc::notifiers_watch_foreign()) {
    tell(address, length);
    if ((flags & MREMAP_FIXED) != 0) tell(target, new_length);
  }
  return next_of(next_mremap, "mremap")(address, length, new_length, flags, target);
}

namespace {

void* map(void* address, size_t length, int protection, int flags, int fd, off_t offset) {
  // What lay there goes.
  if ((flags & MAP_FIXED) != 0 && rdmalloc::notifiers_watch_foreign()) tell(address, length);
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
  if (rdmalloc::notifiers_watch_foreign()) tell(address, attached_bytes(address));
  return next_of(next_shmdt, "shmdt")(address);
}

RDMALLOC_IN_FRONT_OF(shmat);
void* rdmalloc_in_front_of_shmat(int segment, const void* address, int flags) noexcept {
  shmid_ds status;
  if ((flags & SHM_REMAP) != 0 && rdmalloc::notifiers_watch_foreign() &&
      shmctl(segment, IPC_STAT, &status) == 0) {
    auto base = reinterpret_cast<std::uintptr_t>(address);
    std::uintptr_t low = (flags & SHM_RND) != 0 ? base - base % SHMLBA : base;
    tell(reinterpret_cast<const void*>(low), status.shm_segsz);
  }
  return next_of(next_shmat, "shmat")(segment, address, flags);
}
