// Messages from inside malloc: no allocation, no stdio, one write(2) to standard error each.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdmalloc {

// Text built in a fixed buffer. What does not fit is cut, and an ellipsis stands for it: so what to
// do about it comes early, or behind words of a bounded length.
class Message {
 public:
  // Control characters as \x1b: they may come from the environment, and go to a terminal.
  Message& text(const char* words);
  // Words of any length, such as a setting: beyond kLongestValue bytes an ellipsis, and there is
  // room for what comes behind them.
  Message& value(const char* words);
  Message& number(std::uint64_t value);
  Message& signed_number(std::int64_t value);
  Message& address(const void* pointer);
  // Writes "rdmalloc: ...\n" to standard error, if there is one (standard_error.h).
  void print() const;
  // The same, unless RDMALLOC_LOG=quiet.
  void warn() const;
  // To descriptor 2 whatever it is: for a process that ends here, and must not end without a word.
  void print_anyhow() const;
  const char* c_str() const { return buffer_; }
  std::size_t length() const { return length_; }

  static constexpr std::size_t kLongestValue = 100;

 private:
  void add(const char* words, std::size_t end);
  void cut();
  static constexpr std::size_t kBytes = 512;
  static constexpr std::size_t kEllipsisBytes = 3;
  static constexpr std::size_t kMost = kBytes - kEllipsisBytes - 2;  // and '\n', the zero
  char buffer_[kBytes] = {0};
  std::size_t length_ = 0;
  bool is_cut_ = false;
};

// Prints "rdmalloc: <what>: <detail>" and aborts. For corruption of the heap itself only (I14).
[[noreturn]] void report_fatal(const char* what, const char* detail);
[[noreturn]] void report_fatal_address(const char* what, const void* address);
// Prints a warning, unless RDMALLOC_LOG=quiet.
void report_warning(const char* what, const char* detail);

}  // namespace rdmalloc
