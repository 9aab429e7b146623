// For the functions that a registrar's library exports: rdmalloc.h promises of all of ours that
// they touch no errno, and a fabric's functions, open() and usleep() do.
#pragma once

#include <errno.h>

namespace rdmalloc::registrars {

class KeepErrno {
 public:
  KeepErrno() = default;
  ~KeepErrno() { errno = saved_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int saved_ = errno;
};

}  // namespace rdmalloc::registrars
