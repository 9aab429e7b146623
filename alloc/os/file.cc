#include "alloc/os/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>

#include "alloc/os/fault.h"
#include "alloc/os/path.h"
#include "alloc/os/syscall.h"

namespace rdmalloc::os {

int open_to_read(const char* path) {
  if (should_fail(Site::kOpenFile)) return -EMFILE;
  return static_cast<int>(
      raw_syscall(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path), O_RDONLY | O_CLOEXEC));
}

namespace {
// Everybody's, less what the umask takes.
constexpr long kMode = 0666;
}  // namespace

int open_to_append(const char* path, bool follows_link) {
  if (should_fail(Site::kMakeFile)) return -EACCES;
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;
  return static_cast<int>(raw_syscall(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path),
                                      follows_link ? flags : flags | O_NOFOLLOW, kMode));
}

int make_file(const char* path) {
  if (should_fail(Site::kMakeFile)) return -EACCES;
  long fd = raw_syscall(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path),
                        O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
  if (fd < 0) return static_cast<int>(fd);
  close_file(static_cast<int>(fd));
  return 0;
}

int current_folder(char* buffer, std::size_t size) {
  if (should_fail(Site::kCurrentFolder)) return -ENOENT;
  long length = raw_syscall(SYS_getcwd, reinterpret_cast<long>(buffer), static_cast<long>(size));
  return static_cast<int>(length > 0 ? length - 1 : length);
}

long try_read(int fd, char* buffer, std::size_t size) {
  if (should_fail(Site::kReadFile)) return -EIO;
  return raw_syscall(SYS_read, fd, reinterpret_cast<long>(buffer), static_cast<long>(size));
}

std::size_t read_some(int fd, char* buffer, std::size_t size) {
  long got = try_read(fd, buffer, size);
  return got < 0 ? 0 : static_cast<std::size_t>(got);
}

std::size_t read_some_at(int fd, char* buffer, std::size_t size, std::size_t offset) {
  if (should_fail(Site::kReadFile)) return 0;
  long got = raw_syscall(SYS_pread64, fd, reinterpret_cast<long>(buffer), static_cast<long>(size),
                         static_cast<long>(offset));
  return got < 0 ? 0 : static_cast<std::size_t>(got);
}

void close_file(int fd) {
  raw_syscall(SYS_close, fd);
}

int moved_away(int fd) {
  constexpr long kFrom = 768;  // of 1024, the usual limit
  if (fd < 0 || should_fail(Site::kMoveDescriptor)) return fd;
  long moved = raw_syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, kFrom);
  if (moved < 0) return fd;
  close_file(fd);
  return static_cast<int>(moved);
}

namespace {

// "123" as 123; -1 for what is no number.
int number_of(const char* name) {
  int number = 0;
  for (const char* digit = name; *digit != 0; ++digit) {
    if (*digit < '0' || *digit > '9') return -1;
    number = number * 10 + (*digit - '0');
  }
  return number;
}

// Calls fn(descriptor of the folder, name) for each entry. 0 or a negative errno.
template <class Fn>
int each_entry(const char* path, Fn fn) {
  if (should_fail(Site::kOpenFile)) return -EMFILE;
  long directory = raw_syscall(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path),
                               O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return static_cast<int>(directory);
  alignas(8) char entries[2048];
  long got = 0;
  while ((got = should_fail(Site::kListFiles)
                    ? -ENOMEM
                    : raw_syscall(SYS_getdents64, directory, reinterpret_cast<long>(entries),
                                  sizeof entries)) > 0) {
    // struct linux_dirent64 of getdents(2): inode, offset, length, type, name.
    constexpr long kLengthAt = 16, kNameAt = 19;
    std::uint16_t length = 0;
    for (long at = 0; at < got; at += length) {
      std::memcpy(&length, entries + at + kLengthAt, sizeof length);
      fn(directory, entries + at + kNameAt);
    }
  }
  raw_syscall(SYS_close, directory);
  return static_cast<int>(got);
}

}  // namespace

FileIdentity identity_of(int fd) {
  struct stat file;
  if (raw_syscall(SYS_fstat, fd, reinterpret_cast<long>(&file)) != 0) return {};
  return {file.st_dev, file.st_ino, true};
}

int own_descriptors() {
  if (should_fail(Site::kOwnDescriptors)) return -EPERM;
  constexpr long kAll = 0xffffffff, kUnshare = 1 << 1;  // CLOSE_RANGE_UNSHARE
  if (raw_syscall(SYS_close_range, 0, kAll, kUnshare) == 0) return 0;
  // Before Linux 5.9 the copy of the table has what the program has open.
  if (long error = raw_syscall(SYS_unshare, CLONE_FILES)) return static_cast<int>(error);
  return each_entry("/proc/thread-self/fd", [](long directory, const char* entry) {
    int fd = number_of(entry);
    if (fd >= 0 && fd != directory) close_file(fd);
  });
}

int each_open_file(void (*fn)(int fd, const char* name, void* arg), void* arg) {
  return each_entry("/proc/self/fd", [fn, arg](long directory, const char* entry) {
    int fd = number_of(entry);
    if (fd < 0 || fd == directory) return;
    char name[256];
    if (should_fail(Site::kReadLink)) return;
    long read = raw_syscall(SYS_readlinkat, directory, reinterpret_cast<long>(entry),
                            reinterpret_cast<long>(name), sizeof name - 1);
    if (read < 0) return;
    name[read] = 0;
    fn(fd, name, arg);
  });
}

namespace {

// Calls fn(name) for each thread of this process, the first one first; NULL for one whose name
// can't be read. 0 or a negative errno.
template <class Fn>
int each_thread(Fn fn) {
  return each_entry("/proc/self/task", [fn](long directory, const char* entry) {
    if (number_of(entry) < 0) return;
    Path path(entry);
    char name[32];
    long fd =
        should_fail(Site::kOpenFile)
            ? -EMFILE
            : raw_syscall(SYS_openat, directory, reinterpret_cast<long>(path.text("/comm").c_str()),
                          O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fn(nullptr);
    long got = try_read(static_cast<int>(fd), name, sizeof name - 1);
    raw_syscall(SYS_close, fd);
    if (got < 0) return fn(nullptr);
    name[got] = 0;
    fn(name);
  });
}

}  // namespace

int threads_named(const char* prefix) {
  int count = 0;
  each_thread([prefix, &count](const char* name) {
    if (name != nullptr && std::strncmp(name, prefix, std::strlen(prefix)) == 0) ++count;
  });
  return count;
}

int threads_but_those(bool (*known)(const char* name)) {
  int seen = 0, count = 0;
  bool is_sure = true;
  int error = each_thread([known, &seen, &count, &is_sure](const char* name) {
    if (seen++ == 0) return;
    if (name == nullptr)
      is_sure = false;
    else if (!known(name))
      ++count;
  });
  return error == 0 && is_sure ? count : -1;
}

}  // namespace rdmalloc::os
