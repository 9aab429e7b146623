// Open files that no checkpoint can take.
#pragma once

#include <cstddef>

namespace rdmalloc::regcache {

struct OpenFile {
  int fd;
  char name[60];  // what /proc/self/fd says of it, cut, zero-terminated
};
struct OpenFiles {
  static constexpr std::size_t kMost = 16;
  OpenFile files[kMost];
  std::size_t count;
  std::size_t left_out;  // beyond kMost
};

// Looks through /proc/self/fd. Where it can't be read nothing is found.
void find_undumpable_files(OpenFiles* found);

}  // namespace rdmalloc::regcache
