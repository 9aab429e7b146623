#include <rdmalloc/rdmalloc.h>

#include "alloc/api/statistics_print.h"
#include "alloc/core/options.h"
#include "alloc/core/standard_error.h"
#include "alloc/core/statistics_path.h"
#include "alloc/os/file.h"
#include "alloc/process/exit.h"

namespace rdmalloc {
namespace {

// Backed by no page before it is used, at exit.
constinit char line[kMostStatisticsBytes] = {};

void write_file() {
  const char* path = statistics_file_path();
  if (path == nullptr) return;
  int fd = os::open_to_append(path, statistics_file_may_be_link());
  int error = fd;
  if (fd >= 0) {
    Writer out(fd, line, sizeof line);
    error = statistics_print(out, RDMALLOC_STATS_JSON);
    os::close_file(fd);
  }
  if (error < 0) statistics_file_warn(error);
}

// In pieces that a pipe takes as one, so that ranks do not mix within lines.
void write_to_standard_error() {
  static_assert(PIPE_BUF <= sizeof line);
  Writer out(2, line, PIPE_BUF);
  statistics_print(out, RDMALLOC_STATS_TEXT);
}

}  // namespace

void statistics_at_exit() {
  switch (options().stats_at_exit) {
    case StatsAtExit::kNone:
      break;
    case StatsAtExit::kStandardError:
      if (has_standard_error()) write_to_standard_error();
      break;
    case StatsAtExit::kFile:
      write_file();
  }
}

}  // namespace rdmalloc
