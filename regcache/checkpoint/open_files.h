// Open files that no checkpoint can take.
#pragma once

#include <rdmalloc/regcache.h>

#include <cstddef>

namespace rdmalloc::regcache {

inline constexpr std::size_t kMostOpenFiles = 16;

struct OpenFiles {
  rdmalloc_open_file files[kMostOpenFiles];
  std::size_t count;
};
// Looks through /proc/self/fd. Where it can't be read nothing is found.
void find_undumpable_files(OpenFiles* found);

}  // namespace rdmalloc::regcache
