// A number as text, for code that may not allocate. Here, and not in core/, since the paths of
// files that are read in this room have numbers in them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc::os {

class Decimal {
 public:
  explicit Decimal(std::uint64_t value) {
    do *--first_ = static_cast<char>('0' + value % 10);
    while ((value /= 10) != 0);
  }
  Decimal(const Decimal&) = delete;
  Decimal& operator=(const Decimal&) = delete;
  const char* c_str() const { return first_; }

 private:
  char digits_[21] = {};  // the 20 of UINT64_MAX, and the zero
  char* first_ = digits_ + sizeof digits_ - 1;
};

}  // namespace rdmalloc::os
