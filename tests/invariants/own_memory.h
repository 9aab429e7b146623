// SPDX-License-Identifier: BSD-3-Clause
//
// The memory of the running program that rdmalloc writes, for tests that write-protect it.
#pragma once
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <cstdint>
#include <vector>

namespace rdmalloc_test {

struct Range {
  uintptr_t begin, end;
  bool is_writable;
  bool is_data;  // this program's own, where rdmalloc's lie
};
inline int in_data;

// Anonymous mappings of this process, and the writable data of this program, which holds
// rdmalloc's.
inline std::vector<Range> own_memory() {
  std::vector<Range> ranges;
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[512], path[400];
  while (fgets(line, sizeof line, maps) != nullptr) {
    Range range = {};
    char rights[5] = {};
    path[0] = '\0';
    if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %399s", &range.begin, &range.end, rights, path) < 3)
      continue;
    range.is_writable = rights[1] == 'w';
    auto data = reinterpret_cast<uintptr_t>(&in_data);
    range.is_data = strstr(path, program_invocation_short_name) != nullptr ||
                    (range.begin <= data && data < range.end);
    if (path[0] == '\0' || range.is_data) ranges.push_back(range);
  }
  fclose(maps);
  return ranges;
}

// Which of its memory rdmalloc writes: what was mapped since `before`, and the program's data.
// Found anew for each history, for it grows.
class Metadata {
 public:
  explicit Metadata(const std::vector<Range>& before) : before_(before) {}
  void find() {
    ranges_.clear();
    for (const Range& range : own_memory()) {
      bool is_old = false;
      for (const Range& old : before_)
        if (range.begin >= old.begin && range.end <= old.end) is_old = true;
      if (range.is_writable && (!is_old || range.is_data)) ranges_.push_back(range);
    }
  }
  void protect(int rights) const {
    for (const Range& range : ranges_)
      mprotect(reinterpret_cast<void*>(range.begin), range.end - range.begin, rights);
  }
  bool holds(uintptr_t address) const {
    for (const Range& range : ranges_)
      if (address >= range.begin && address < range.end) return true;
    return false;
  }

 private:
  std::vector<Range> before_, ranges_;
};

}  // namespace rdmalloc_test
