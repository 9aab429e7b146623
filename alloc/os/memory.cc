#include "alloc/os/memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <cstddef>
#include <cstring>

#include "alloc/os/os.h"
#include "alloc/os/syscall.h"

namespace rdmalloc::os {
namespace {

// The first bytes of a file, zero-terminated; 0 length when it can't be read.
template <std::size_t size>
std::size_t read_file(const char* path, char (&buffer)[size]) {
  buffer[0] = 0;
  long fd = raw_syscall(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  long got = raw_syscall(SYS_read, fd, reinterpret_cast<long>(buffer), size - 1);
  raw_syscall(SYS_close, fd);
  if (got < 0) got = 0;
  buffer[got] = 0;
  return static_cast<std::size_t>(got);
}

bool parse_number(const char* text, std::uint64_t* value) {
  std::uint64_t number = 0;
  const char* c = text;
  for (; *c >= '0' && *c <= '9'; ++c) number = number * 10 + static_cast<unsigned>(*c - '0');
  *value = number;
  return c != text;
}

// memory.max of the process's own cgroup (v2: the line "0::/path"), UINT64_MAX when it has none.
// Limits of cgroups above it are usually repeated below; a container sees its own as the root.
std::uint64_t cgroup_limit_bytes() {
  char line[512];
  if (read_file("/proc/self/cgroup", line) == 0) return UINT64_MAX;
  const char* path = std::strstr(line, "0::");
  if (path == nullptr) return UINT64_MAX;
  path += 3;
  char file[640] = "/sys/fs/cgroup";
  std::size_t used = std::strlen(file);
  for (; *path != 0 && *path != '\n' && used < sizeof file - 16; ++path) file[used++] = *path;
  std::memcpy(file + used, "/memory.max", 12);
  char value[64];
  std::uint64_t limit = 0;
  if (read_file(file, value) == 0 || !parse_number(value, &limit)) return UINT64_MAX;  // "max"
  return limit;
}

}  // namespace

std::uint64_t memory_limit_bytes() {
  struct sysinfo info;
  std::uint64_t bytes = std::uint64_t{1} << 30;
  if (raw_syscall(SYS_sysinfo, reinterpret_cast<long>(&info)) == 0)
    bytes = static_cast<std::uint64_t>(info.totalram) * info.mem_unit;
  std::uint64_t limit = cgroup_limit_bytes();
  return limit < bytes ? limit : bytes;
}

std::uint64_t address_space_left_bytes() {
  rlimit limit;
  if (raw_syscall(SYS_prlimit64, 0, RLIMIT_AS, 0, reinterpret_cast<long>(&limit)) != 0 ||
      limit.rlim_cur == RLIM_INFINITY)
    return UINT64_MAX;
  char statm[128];
  std::uint64_t pages = 0;
  if (read_file("/proc/self/statm", statm) != 0) parse_number(statm, &pages);
  std::uint64_t mapped = pages * page_bytes();
  return mapped < limit.rlim_cur ? limit.rlim_cur - mapped : 0;
}

bool is_only_thread_left() {
  char stat[512];
  if (read_file("/proc/self/stat", stat) == 0) return false;
  // "pid (name) state ppid ...": the name may hold anything, what follows its last bracket not.
  const char* field = std::strrchr(stat, ')');
  if (field == nullptr || std::strncmp(field, ") Z ", 4) != 0) return false;
  constexpr int kFieldsToThreads = 18;  // num_threads is field 20 of proc(5), the state is 3
  for (int i = 0; i < kFieldsToThreads && field != nullptr; ++i)
    field = std::strchr(field + 1, ' ');
  std::uint64_t threads = 0;
  return field != nullptr && parse_number(field + 1, &threads) && threads == 2;
}

}  // namespace rdmalloc::os
