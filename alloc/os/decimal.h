// A number as text, for code that may not allocate, and text as a number. Here, and not in core/,
// since the files that are read in this room have numbers in them, and so have their paths.
#pragma once

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

// The number that the text begins with; false, and 0, where it begins with none.
inline bool parse_number(const char* text, std::uint64_t* value) {
  const char* c = text;
  for (*value = 0; *c >= '0' && *c <= '9'; ++c)
    *value = *value * 10 + static_cast<unsigned>(*c - '0');
  return c != text;
}

}  // namespace rdmalloc::os
