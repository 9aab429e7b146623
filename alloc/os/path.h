// The path of a file in /proc or /sys, put together from words and numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "alloc/os/decimal.h"

namespace rdmalloc::os {

// What does not fit makes it empty, which no file is called.
class Path {
 public:
  explicit Path(const char* root) { text(root); }
  [[gnu::noinline]] Path& text(const char* words) {
    std::size_t length = std::strlen(words);
    if (length_ + length >= sizeof path_) {
      path_[0] = 0;
      length_ = sizeof path_;
      return *this;
    }
    std::memcpy(path_ + length_, words, length + 1);
    length_ += length;
    return *this;
  }
  Path& number(std::uint64_t value) { return text(Decimal(value).c_str()); }
  const char* c_str() const { return path_; }

 private:
  char path_[264] = {};  // the folder of RDMALLOC_TOPOLOGY, 200 at most, and a file below it
  std::size_t length_ = 0;
};

}  // namespace rdmalloc::os
