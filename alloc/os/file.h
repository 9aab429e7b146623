// Small files of /proc and /sys, and the one of statistics, by raw system calls: no allocation,
// errno left alone, no thread cancelled.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc::os {

// A descriptor, or a negative errno.
int open_to_read(const char* path);
// To write behind what is there, made if it is not there; never waits for the reader of a pipe.
// -ELOOP for a symbolic link that it should not follow.
int open_to_append(const char* path, bool follows_link);
// Makes an empty file; -EEXIST, with nothing done to it, where there is one.
int make_file(const char* path);
// Where relative paths begin, zero-terminated: bytes without the zero, or a negative errno.
int current_folder(char* buffer, std::size_t size);
// Bytes read, 0 at the end, or a negative errno.
long try_read(int fd, char* buffer, std::size_t size);
// Bytes read, 0 at the end and after an error.
std::size_t read_some(int fd, char* buffer, std::size_t size);
// The same from `offset` on.
std::size_t read_some_at(int fd, char* buffer, std::size_t size, std::size_t offset);
void close_file(int fd);
// The same file at a number that the program's own files don't reach; `fd` itself where there is
// none such. For what stays open: a program that closes all its descriptors, as daemons do, and
// opens others, should not find us reading from those.
int moved_away(int fd);

// Which file a descriptor is.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0;
  bool is_open = false;
  bool operator==(const FileIdentity&) const = default;
};
FileIdentity identity_of(int fd);

// Gives the calling thread a table of descriptors of its own, which is empty. 0, or a negative
// errno where the kernel or a sandbox refuses; then the thread must end.
int own_descriptors();

// Calls `fn` for each descriptor that this process has open, with what /proc/self/fd says of it.
// 0 or a negative errno.
int each_open_file(void (*fn)(int fd, const char* name, void* arg), void* arg);

// How many threads of this process have a name that begins so; 0 where that can't be told.
int threads_named(const char* prefix);
// How many but the first have one that is not `known`; -1 where one could not be asked, as it ends.
int threads_but_those(bool (*known)(const char* name));

// The first bytes of a file, zero-terminated; 0 length when it can't be read.
template <std::size_t size>
std::size_t read_file(const char* path, char (&buffer)[size]) {
  buffer[0] = 0;
  int fd = open_to_read(path);
  if (fd < 0) return 0;
  std::size_t got = read_some(fd, buffer, size - 1);
  close_file(fd);
  buffer[got] = 0;
  return got;
}

}  // namespace rdmalloc::os
