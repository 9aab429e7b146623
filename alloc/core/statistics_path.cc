#include "alloc/core/statistics_path.h"

#include <errno.h>

#include "alloc/core/report.h"
#include "alloc/os/decimal.h"
#include "alloc/os/file.h"
#include "alloc/os/os.h"

namespace rdmalloc {
namespace {

constexpr std::size_t kMostPathBytes = 1024;

// The name, settled by the process that read it.
constinit char path[kMostPathBytes] = {};
constinit int writer = 0;
constinit bool is_made_by_pattern = false;
constinit bool has_warned = false;

class Name {
 public:
  Name& text(const char* words) {
    for (; *words != 0; ++words) put(*words);
    return *this;
  }
  Name& number(std::uint64_t value) { return text(os::Decimal(value).c_str()); }
  void put(char c) {
    if (length_ + 1 < kMostPathBytes)
      path[length_++] = c;
    else
      fits_ = false;
    path[length_] = 0;
  }
  bool fits() const { return fits_; }

 private:
  std::size_t length_ = 0;
  bool fits_ = true;
};

bool expand(char letter, const Rank& rank, Name& name) {
  char host[os::kMostHostBytes];
  switch (letter) {
    case '%':
      name.put('%');
      return true;
    case 'p':
      name.number(static_cast<std::uint64_t>(os::process_id()));
      return true;
    case 'h':
      os::host_name(host);
      name.text(host);
      return true;
    case 'r':
      if (rank.rank >= 0)
        name.number(static_cast<std::uint64_t>(rank.rank));
      else
        name.text("none");
      return true;
    default:
      return false;
  }
}

const char* remedy_for(int error) {
  switch (error) {
    case -ENOENT:
    case -ENOTDIR:
      return "its folder is not there; make it, on every machine of a job";
    case -EACCES:
    case -EPERM:
    case -EROFS:
      return "it may not be written; name a place that this user may write to";
    case -ELOOP:
      return "it is a symbolic link, which a name with a % may not be; name another folder";
    case -EISDIR:
      return "it is a folder; name a file in it, such as %h.%p.json";
    case -ENXIO:
      return "no process reads from it; start the reader first, or name a file";
    case -EAGAIN:
      return "its reader is too slow; name a file";
    case -ENOSPC:
    case -EDQUOT:
      return "there is no room; name a place that has some";
    case -EFBIG:
      return "it would be longer than RLIMIT_FSIZE allows (ulimit -f)";
    default:
      return nullptr;
  }
}

}  // namespace

void statistics_file_warn(int error) {
  if (has_warned) return;
  has_warned = true;
  Message message;
  message.text("warning: RDMALLOC_STATS: the file can't be written: ");
  if (const char* remedy = remedy_for(error))
    message.text(remedy);
  else
    message.text("error ").signed_number(-error).text("; name another");
  message.text(": ").text(path).warn();
}

bool statistics_file_name(const char* pattern, const Rank& rank) {
  Name name;
  char folder[kMostPathBytes];
  // Without a folder (it was deleted, or is out of reach) the name is tried as it is.
  if (*pattern != '/' && os::current_folder(folder, sizeof folder) > 0 && folder[0] == '/')
    name.text(folder).text("/");
  is_made_by_pattern = false;
  for (; *pattern != 0; ++pattern) {
    if (*pattern != '%') {
      name.put(*pattern);
      continue;
    }
    if (!expand(*++pattern, rank, name)) return false;
    is_made_by_pattern = is_made_by_pattern || *pattern != '%';
  }
  writer = os::process_id();
  return name.fits();
}

void statistics_file_begin() {
  int error = os::make_file(path);
  if (error != 0 && error != -EEXIST) statistics_file_warn(error);
}

bool statistics_file_may_be_link() {
  return !is_made_by_pattern;
}

const char* statistics_file_path() {
  return os::process_id() == writer ? path : nullptr;
}

}  // namespace rdmalloc
