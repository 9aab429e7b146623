// Small files of /proc and /sys, by raw system calls: no allocation, errno left alone.
#pragma once

#include <cstddef>

namespace rdmalloc::os {

// A descriptor, or a negative errno.
int open_to_read(const char* path);
// Bytes read, 0 at the end and after an error.
std::size_t read_some(int fd, char* buffer, std::size_t size);
// The same from `offset` on.
std::size_t read_some_at(int fd, char* buffer, std::size_t size, std::size_t offset);
void close_file(int fd);
// The same file at a number that the program's own files don't reach; `fd` itself where there is
// none such. For what stays open: a program that closes all its descriptors, as daemons do, and
// opens others, should not find us reading from those.
int moved_away(int fd);

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
