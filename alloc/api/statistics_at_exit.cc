#include "alloc/api/statistics_at_exit.h"

#include <rdmalloc/rdmalloc.h>

#include "alloc/api/options.h"
#include "alloc/api/statistics_path.h"
#include "alloc/api/statistics_print.h"
#include "alloc/core/standard_error.h"
#include "alloc/os/file.h"

namespace rdmalloc {
namespace {

// Backed by no page before it is used, at exit.
constinit char line[kMostStatisticsBytes] = {};

void write_file() {
  const char* path = statistics_file_path();
  if (path == nullptr) return;
  int fd = os::open_to_append(path);
  int error = fd;
  if (fd >= 0) {
    Writer out(fd, line, sizeof line);
    error = statistics_print(out, RDMALLOC_STATS_JSON);
    os::close_file(fd);
  }
  if (error < 0) statistics_file_warn(error);
}

}  // namespace

void statistics_at_exit() {
  switch (options().stats_at_exit) {
    case StatsAtExit::kNone:
      break;
    case StatsAtExit::kStandardError:
      if (has_standard_error()) rdmalloc_stats_print(2, RDMALLOC_STATS_TEXT);
      break;
    case StatsAtExit::kFile:
      write_file();
  }
}

}  // namespace rdmalloc
