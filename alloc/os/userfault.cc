#include "alloc/os/userfault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <time.h>

#include "alloc/os/decimal.h"
#include "alloc/os/fault.h"
#include "alloc/os/file.h"
#include "alloc/os/os.h"
#include "alloc/os/syscall.h"

// Of newer headers than may be there.
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif

namespace rdmalloc::os {
namespace {

long control(int fd, unsigned long request, const void* argument) {
  return raw_syscall(SYS_ioctl, fd, static_cast<long>(request), reinterpret_cast<long>(argument));
}

// PROCMAP_QUERY (Linux 6.11): the mapping at an address, or the next one.
struct MappingQuery {
  std::uint64_t size;
  std::uint64_t query_flags;
  std::uint64_t query_address;
  std::uint64_t start, end;
  std::uint64_t flags;
  std::uint64_t page_size;
  std::uint64_t offset;
  std::uint64_t inode;
  std::uint32_t device_major, device_minor;
  std::uint32_t name_size, build_id_size;
  std::uint64_t name_address, build_id_address;
};
static_assert(sizeof(MappingQuery) == 104, "the kernel's struct procmap_query");
constexpr unsigned long kQueryMapping = _IOWR('f', 17, MappingQuery);
constexpr std::uint64_t kIsShared = 0x08, kThisOrNext = 0x10;

struct Mapping {
  std::uintptr_t low, high;
  bool is_private_anonymous;
};

// The first mapping that ends behind `address`. 0, -ENOENT, or -ENOTTY before Linux 6.11.
int query_mapping(int maps_fd, std::uintptr_t address, Mapping* mapping) {
  if (should_fail(Site::kQueryMapping)) return -ENOMEM;
  MappingQuery query = {};
  query.size = sizeof query;
  query.query_flags = kThisOrNext;
  query.query_address = address;
  long error = control(maps_fd, kQueryMapping, &query);
  if (error != 0) return static_cast<int>(error);
  bool is_file = query.inode != 0 || query.device_major != 0 || query.device_minor != 0;
  *mapping = {static_cast<std::uintptr_t>(query.start), static_cast<std::uintptr_t>(query.end),
              !is_file && (query.flags & kIsShared) == 0};
  return 0;
}

// Reads the lines of /proc/self/maps, "low-high rwxp offset major:minor inode ...".
class MappingLines {
 public:
  explicit MappingLines(int maps_fd) : fd_(maps_fd) {}
  bool next(Mapping* mapping) {
    if (!fill()) return false;
    std::uintptr_t low = 0, high = 0;
    hexadecimal(&low);
    skip(1);
    hexadecimal(&high);
    skip(4);
    bool is_private = fill() && *at_ == 'p';
    skip(2);
    std::uintptr_t number = 0;
    bool is_anonymous = true;
    hexadecimal(&number);  // the offset, which anonymous memory may have
    for (int field = 0; field < 3; ++field) {
      skip(1);
      number = 0;
      hexadecimal(&number);
      is_anonymous &= number == 0;
    }
    while (fill() && *at_ != '\n') ++at_;
    skip(1);
    *mapping = {low, high, is_private && is_anonymous};
    return true;
  }

 private:
  bool fill() {
    if (at_ != end_) return true;
    std::size_t got = read_some_at(fd_, buffer_, sizeof buffer_, offset_);
    offset_ += got;
    at_ = buffer_;
    end_ = buffer_ + got;
    return got != 0;
  }
  void skip(int count) {
    for (; count > 0 && fill(); --count) ++at_;
  }
  void hexadecimal(std::uintptr_t* value) {
    for (; fill(); ++at_) {
      unsigned digit = 0;
      if (*at_ >= '0' && *at_ <= '9')
        digit = static_cast<unsigned>(*at_ - '0');
      else if (*at_ >= 'a' && *at_ <= 'f')
        digit = static_cast<unsigned>(*at_ - 'a') + 10;
      else
        return;
      *value = *value << 4 | digit;
    }
  }

  int fd_;
  std::size_t offset_ = 0;
  const char* at_ = nullptr;
  const char* end_ = nullptr;
  char buffer_[2048];
};

}  // namespace

int userfault_open() {
  if (should_fail(Site::kUserfault)) return -EPERM;
  int fd = moved_away(
      static_cast<int>(raw_syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
  if (fd < 0) return fd;
  uffdio_api api = {};
  api.api = UFFD_API;
  // Not asked for: EVENT_FORK. A child's memory is not watched, and its cache is empty (I11). The
  // last one is not used; kernels that have it count the changes under way (5.15), and don't forget
  // one when another has ended, which userfault_settled() relies on.
  api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP |
                 UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
  long error = should_fail(Site::kUserfaultFeatures) ? -EINVAL : control(fd, UFFDIO_API, &api);
  if (error == 0 && userfault_settled(fd) == 0) return fd;
  close_file(fd);
  return error != 0 ? static_cast<int>(error) : -ENOSYS;
}

int userfault_register(int fd, std::uintptr_t low, std::size_t length) {
  if (should_fail(Site::kUserfaultRegister)) return -ENOMEM;
  uffdio_register range = {};
  range.range = {low, length};
  range.mode = UFFDIO_REGISTER_MODE_WP;
  return static_cast<int>(control(fd, UFFDIO_REGISTER, &range));
}

int userfault_unregister(int fd, std::uintptr_t low, std::size_t length) {
  if (should_fail(Site::kUserfaultUnregister)) return -ENOMEM;
  uffdio_range range = {low, length};
  return static_cast<int>(control(fd, UFFDIO_UNREGISTER, &range));
}

int userfault_settled(int fd) {
  if (should_fail(Site::kUserfaultSettled)) return -EAGAIN;
  // The kernel looks for changes under way before it looks at the argument, which is none.
  long error = control(fd, UFFDIO_WRITEPROTECT, nullptr);
  return error == -EFAULT ? 0 : error == 0 ? -EINVAL : static_cast<int>(error);
}

bool userfault_has_event(int fd) {
  pollfd event = {fd, POLLIN, 0};
  timespec none{0, 0};
  return raw_syscall(SYS_ppoll, reinterpret_cast<long>(&event), 1, reinterpret_cast<long>(&none),
                     0) == 1;
}

namespace {

// The kernel had no memory for a wait, or RLIMIT_NOFILE is below two. Threads that unmap watched
// memory wait for the reader, so it goes on, without waiting.
Ready look_at_each(int stop_fd) {
  std::uint64_t raised = 0;
  long got = raw_syscall(SYS_read, stop_fd, reinterpret_cast<long>(&raised), sizeof raised);
  if (got != -EAGAIN && got != -EINTR) return Ready::kStop;
  sleep_ns(1000000);
  return Ready::kEvents;
}

}  // namespace

Ready userfault_wait(int fd, int stop_fd) {
  pollfd both[2] = {{fd, POLLIN, 0}, {stop_fd, POLLIN, 0}};
  for (;;) {
    // A descriptor that the program closes meanwhile wakes no reader: look again, now and then.
    timespec limit{10, 0};
    long ready = should_fail(Site::kUserfaultWait)
                     ? -ENOMEM
                     : raw_syscall(SYS_ppoll, reinterpret_cast<long>(both), 2,
                                   reinterpret_cast<long>(&limit), 0);
    if (ready == -EINTR || ready == 0) continue;
    if (ready < 0) return look_at_each(stop_fd);
    if (both[1].revents != 0) return Ready::kStop;
    return (both[0].revents & POLLIN) != 0 ? Ready::kEvents : Ready::kBroken;
  }
}

std::size_t userfault_read(int fd, UserfaultEvent* events, std::size_t most) {
  constexpr std::size_t kAtOnce = 16;
  uffd_msg messages[kAtOnce];
  if (most > kAtOnce) most = kAtOnce;
  if (should_fail(Site::kUserfaultRead)) return 0;
  long got = raw_syscall(SYS_read, fd, reinterpret_cast<long>(messages),
                         static_cast<long>(most * sizeof messages[0]));
  std::size_t count = 0;
  for (long i = 0; i < got / static_cast<long>(sizeof messages[0]); ++i) {
    const uffd_msg& message = messages[i];
    UserfaultEvent& event = events[count];
    switch (message.event) {
      case UFFD_EVENT_UNMAP:
      case UFFD_EVENT_REMOVE:
        event = {message.event == UFFD_EVENT_UNMAP ? PageEvent::kUnmapped : PageEvent::kRemoving,
                 message.arg.remove.start, message.arg.remove.end, 0};
        ++count;
        break;
      case UFFD_EVENT_REMAP:
        event = {PageEvent::kMoved, message.arg.remap.from,
                 message.arg.remap.from + message.arg.remap.len, message.arg.remap.to};
        ++count;
        break;
      default:
        break;  // not asked for
    }
  }
  return count;
}

bool is_private_anonymous(int maps_fd, std::uintptr_t low, std::uintptr_t high) {
  MappingLines lines(maps_fd);
  bool reads_lines = false;
  Mapping mapping = {};
  while (low < high) {
    int error = reads_lines ? -ENOTTY : query_mapping(maps_fd, low, &mapping);
    if (error == -ENOTTY) {
      reads_lines = true;
      do {
        if (!lines.next(&mapping)) return false;
      } while (mapping.high <= low);
    } else if (error != 0) {
      return false;
    }
    if (mapping.low > low || !mapping.is_private_anonymous) return false;
    low = mapping.high;
  }
  return true;
}

void userfault_unregister_all(int fd, int maps_fd) {
  MappingLines lines(maps_fd);
  Mapping mapping = {};
  while (lines.next(&mapping))
    if (mapping.is_private_anonymous)
      userfault_unregister(fd, mapping.low, mapping.high - mapping.low);
}

std::uint64_t most_mappings() {
  char text[32];
  std::uint64_t number = 0;
  if (read_file("/proc/sys/vm/max_map_count", text) != 0) parse_number(text, &number);
  return number != 0 ? number : 65530;  // the kernel's default
}

int event_open() {
  if (should_fail(Site::kEventOpen)) return -EMFILE;
  return moved_away(static_cast<int>(raw_syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK)));
}

void event_raise(int fd) {
  std::uint64_t one = 1;
  raw_syscall(SYS_write, fd, reinterpret_cast<long>(&one), sizeof one);
}

}  // namespace rdmalloc::os
