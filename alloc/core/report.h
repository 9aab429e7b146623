// Messages from inside malloc: no allocation, no stdio, one write(2) to standard error each.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc {

// Text built in a fixed buffer; what does not fit is cut.
class Message {
 public:
  // Control characters as \x1b: they may come from the environment, and go to a terminal.
  Message& text(const char* words);
  Message& number(std::uint64_t value);
  Message& signed_number(std::int64_t value);
  Message& address(const void* pointer);
  // Writes "rdmalloc: ...\n" to standard error, if there is one (standard_error.h).
  void print() const;
  // To descriptor 2 whatever it is: for a process that ends here, and must not end without a word.
  void print_anyhow() const;
  const char* c_str() const { return buffer_; }
  std::size_t length() const { return length_; }

 private:
  void put(char c);
  char buffer_[512] = {0};
  std::size_t length_ = 0;
};

// Prints "rdmalloc: <what>: <detail>" and aborts. For corruption of the heap itself only (I14).
[[noreturn]] void report_fatal(const char* what, const char* detail);
[[noreturn]] void report_fatal_address(const char* what, const void* address);
// Prints a warning, unless RDMALLOC_LOG=quiet.
void report_warning(const char* what, const char* detail);

}  // namespace rdmalloc
