#include "alloc/os/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <atomic>
#include <cstddef>
#include <cstring>

#include "alloc/os/decimal.h"
#include "alloc/os/fault.h"
#include "alloc/os/file.h"
#include "alloc/os/os.h"
#include "alloc/os/syscall.h"

namespace rdmalloc::os {
namespace {

// A number in a file of a cgroup; UINT64_MAX for "max", and for what is no number.
std::uint64_t number_or_max(const char* text) {
  std::uint64_t number = 0;
  return parse_number(text, &number) ? number : UINT64_MAX;
}

// The process's own cgroup and, by go_up(), those above it: each may have a limit. A container sees
// its own as the root. Version 1 where that has the memory controller, the line "N:memory:/path" of
// /proc/self/cgroup, else version 2, "0::/path".
class Cgroup {
 public:
  Cgroup() {
    char lines[4096];
    if (read_file("/proc/self/cgroup", lines) == 0) return;
    for (const char* line = lines; line != nullptr; line = next_line(line)) {
      const char* controllers = std::strchr(line, ':');
      const char* path = controllers != nullptr ? std::strchr(controllers + 1, ':') : nullptr;
      if (path == nullptr) return;
      bool is_version_1 = names_memory(controllers + 1, path);
      if (is_version_1 || (path == controllers + 1 && !exists())) use(path + 1, is_version_1);
    }
  }
  bool exists() const { return used_ != 0; }
  // Whether the limits asked for are those that the files state. The root has no such file, so
  // where none was there, one that it has too tells whether this is a cgroup.
  bool is_known() {
    if (!exists() || has_failed_) return false;
    if (has_limit_file_) return true;
    used_ = mount_length_;
    char text[64];
    return read(is_version_1_ ? "notify_on_release" : "cgroup.controllers", text) != 0;
  }
  bool go_up() {
    if (used_ <= mount_length_) return false;
    while (path_[--used_] != '/') {
    }
    return true;
  }
  // The first bytes of one of its files, as read_file() does.
  template <std::size_t size>
  std::size_t read(const char* file, char (&buffer)[size]) {
    return read_file(path_of(file), buffer);
  }
  // What it may use, UINT64_MAX without a limit.
  std::uint64_t max_bytes() {
    return limit(is_version_1_ ? "memory.limit_in_bytes" : "memory.max");
  }
  // From which on the kernel slows it down.
  std::uint64_t high_bytes() { return is_version_1_ ? UINT64_MAX : limit("memory.high"); }
  // The lines of memory.stat that tell of anonymous memory, and of shared memory and tmpfs, with
  // what is below this cgroup.
  const char* anonymous() const { return is_version_1_ ? "total_rss " : "anon "; }
  const char* shared() const { return is_version_1_ ? "total_shmem " : "\nshmem "; }

 private:
  static constexpr char kMount[] = "/sys/fs/cgroup", kMountOfVersion1[] = "/sys/fs/cgroup/memory";
  static constexpr std::size_t kLongest = 600;

  static const char* next_line(const char* line) {
    const char* end = std::strchr(line, '\n');
    return end != nullptr && end[1] != 0 ? end + 1 : nullptr;
  }
  // Whether the list of controllers before `end`, a colon, has "memory".
  static bool names_memory(const char* list, const char* end) {
    constexpr std::size_t kLength = sizeof "memory" - 1;
    for (const char* name = list; name < end;) {
      const char* comma = name;
      while (comma < end && *comma != ',') ++comma;
      if (comma == name + kLength && std::memcmp(name, "memory", kLength) == 0) return true;
      name = comma + 1;
    }
    return false;
  }
  void use(const char* path, bool is_version_1) {
    const char* mount = is_version_1 ? kMountOfVersion1 : kMount;
    is_version_1_ = is_version_1;
    used_ = mount_length_ = std::strlen(mount);
    std::memcpy(path_, mount, mount_length_);
    for (; *path != 0 && *path != '\n' && used_ < kLongest; ++path) path_[used_++] = *path;
    while (used_ > mount_length_ && path_[used_ - 1] == '/') --used_;
  }
  // A limit that one of its files states. Version 1 has the largest number of pages for "none".
  std::uint64_t limit(const char* file) {
    char value[64] = {};
    int fd = open_to_read(path_of(file));
    if (fd == -ENOENT) return UINT64_MAX;
    bool is_read = fd >= 0 && read_some(fd, value, sizeof value - 1) != 0;
    if (fd >= 0) close_file(fd);
    (is_read ? has_limit_file_ : has_failed_) = true;
    std::uint64_t bytes = number_or_max(value);
    return bytes > INT64_MAX / 2 ? UINT64_MAX : bytes;
  }
  const char* path_of(const char* file) {
    path_[used_] = '/';
    std::memcpy(path_ + used_ + 1, file, std::strlen(file) + 1);
    return path_;
  }

  char path_[kLongest + 32];
  std::size_t used_ = 0, mount_length_ = 0;
  bool is_version_1_ = false;
  bool has_limit_file_ = false, has_failed_ = false;
};

// The number behind `name` in a file of names and numbers; false when it is not there.
bool find_number(const char* text, const char* name, std::uint64_t* value) {
  const char* found = std::strstr(text, name);
  return found != nullptr && parse_number(found + std::strlen(name), value);
}

std::uint64_t least_of(std::uint64_t a, std::uint64_t b) {
  return a < b ? a : b;
}

// Limit of one cgroup, and what is left of it by memory that the kernel can't drop, if less is left
// than `state` says.
void note_limit(Cgroup& cgroup, MemoryState* state) {
  std::uint64_t limit = least_of(cgroup.max_bytes(), cgroup.high_bytes());
  state->cgroup_bytes = least_of(state->cgroup_bytes, limit);
  char stat[4096];
  std::uint64_t anon = 0, shared = 0;
  if (limit == UINT64_MAX || cgroup.read("memory.stat", stat) == 0 ||
      !find_number(stat, cgroup.anonymous(), &anon))
    return;
  find_number(stat, cgroup.shared(), &shared);  // older kernels do not tell
  std::uint64_t held = anon + shared, left = held < limit ? limit - held : 0;
  if (left >= state->left_bytes) return;
  state->left_bytes = left;
  state->limit_bytes = limit;
}

// 0: not looked up yet. Relaxed: all that look find the same.
constinit std::atomic<std::uint64_t> memory_limit{0};

}  // namespace

std::uint64_t physical_memory_bytes() {
  struct sysinfo info;
  if (should_fail(Site::kMemorySize) ||
      raw_syscall(SYS_sysinfo, reinterpret_cast<long>(&info)) != 0)
    return std::uint64_t{1} << 30;
  return static_cast<std::uint64_t>(info.totalram) * info.mem_unit;
}

MemoryLimits memory_limits() {
  std::uint64_t machine_bytes = physical_memory_bytes();
  MemoryLimits limits = {machine_bytes, UINT64_MAX, machine_bytes};
  Cgroup cgroup;
  if (cgroup.exists()) {
    do {
      std::uint64_t max = cgroup.max_bytes();
      limits.bytes = least_of(limits.bytes, max);
      limits.cgroup_bytes = least_of(limits.cgroup_bytes, least_of(max, cgroup.high_bytes()));
    } while (cgroup.go_up());
  }
  memory_limit.store(limits.bytes, std::memory_order_relaxed);
  return limits;
}

std::uint64_t memory_limit_bytes() {
  std::uint64_t bytes = memory_limit.load(std::memory_order_relaxed);
  return bytes != 0 ? bytes : memory_limits().bytes;
}

MemoryState memory_state() {
  MemoryState state;
  char pressure[256];
  Cgroup cgroup;
  std::size_t got = cgroup.exists() ? cgroup.read("memory.pressure", pressure) : 0;
  if (got == 0) got = read_file("/proc/pressure/memory", pressure);
  // The first line is "some", in which at least one task waited.
  if (got != 0) find_number(pressure, "total=", &state.stalled_us);
  if (!cgroup.exists()) return state;
  do note_limit(cgroup, &state);
  while (cgroup.go_up());
  state.is_cgroup_known = cgroup.is_known();
  return state;
}

AddressLimit address_limit() {
  rlimit limit;
  if (should_fail(Site::kReadLimit) ||
      raw_syscall(SYS_prlimit64, 0, RLIMIT_AS, 0, reinterpret_cast<long>(&limit)) != 0)
    return {};
  static_assert(RLIM_INFINITY == UINT64_MAX);
  return {limit.rlim_cur, limit.rlim_max};
}

std::uint64_t address_space_left_bytes() {
  std::uint64_t limit = address_limit().bytes;
  if (limit == UINT64_MAX) return limit;
  char statm[128];
  std::uint64_t pages = 0;
  if (read_file("/proc/self/statm", statm) != 0) parse_number(statm, &pages);
  std::uint64_t mapped = pages * page_bytes();
  return mapped < limit ? limit - mapped : 0;
}

namespace {

// A line of /proc/self/status in kilobytes; 0 when it is not there.
std::uint64_t status_bytes(const char* status, const char* name) {
  const char* found = std::strstr(status, name);
  if (found == nullptr) return 0;
  found += std::strlen(name);
  while (*found == ' ' || *found == '\t') ++found;
  std::uint64_t kilobytes = 0;
  parse_number(found, &kilobytes);
  return kilobytes * 1024;
}

// Whether this is another user namespace than the machine's first, as in a rootless container. What
// the kernel asks for CAP_IPC_LOCK before it counts locked pages it asks in the first.
bool is_in_lower_namespace() {
  constexpr char kFirst[] = "user:[4026531837]";  // PROC_USER_INIT_INO of the kernel's
  char name[sizeof kFirst] = {};
  if (raw_syscall(SYS_readlinkat, AT_FDCWD, reinterpret_cast<long>("/proc/thread-self/ns/user"),
                  reinterpret_cast<long>(name), sizeof name) <= 0)
    return false;
  for (std::size_t i = 0; i < sizeof name; ++i)
    if (name[i] != kFirst[i]) return true;
  return false;
}

bool may_lock_without_limit() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  return !should_fail(Site::kReadCapabilities) &&
         raw_syscall(SYS_capget, reinterpret_cast<long>(&header), reinterpret_cast<long>(data)) ==
             0 &&
         (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0 &&
         !is_in_lower_namespace();
}

}  // namespace

LockedMemory locked_memory() {
  LockedMemory memory;
  rlimit limit;
  if (should_fail(Site::kReadLimit) ||
      raw_syscall(SYS_prlimit64, 0, RLIMIT_MEMLOCK, 0, reinterpret_cast<long>(&limit)) != 0 ||
      limit.rlim_cur == RLIM_INFINITY || may_lock_without_limit())
    return memory;
  memory.limit_bytes = limit.rlim_cur;
  char status[4096];
  // Not /proc/self, which tells of no memory once the first thread has ended.
  if (read_file("/proc/thread-self/status", status) == 0) return memory;
  memory.locked_bytes = status_bytes(status, "VmLck:");
  memory.pinned_bytes = status_bytes(status, "VmPin:");
  return memory;
}

namespace {

// The folder of this process's threads counts them, one that has ended first too, as links. Asked
// without opening a file. 0: there is no such folder.
std::uint64_t links_of_threads() {
  struct stat threads;
  if (raw_syscall(SYS_newfstatat, AT_FDCWD, reinterpret_cast<long>("/proc/self/task"),
                  reinterpret_cast<long>(&threads), 0) != 0)
    return 0;
  return threads.st_nlink;
}

}  // namespace

bool can_count_threads() {
  return links_of_threads() != 0;
}

std::int64_t threads_left_beside(std::uint32_t ours) {
  // The link of a process whose first thread has ended leads nowhere: that one had the memory.
  char name[1];
  if (raw_syscall(SYS_readlinkat, AT_FDCWD, reinterpret_cast<long>("/proc/self/exe"),
                  reinterpret_cast<long>(name), sizeof name) != -ENOENT)
    return -1;
  constexpr std::int64_t kLinksOfAFolder = 2;
  return static_cast<std::int64_t>(links_of_threads()) - kLinksOfAFolder - 1 - ours;
}

}  // namespace rdmalloc::os
