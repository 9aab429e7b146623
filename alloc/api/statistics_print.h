// Statistics as text, JSON and Prometheus lines.
#pragma once

#include <rdmalloc/rdmalloc.h>

#include <cstddef>
#include <cstdint>

namespace rdmalloc {

// Text to a file descriptor through a buffer of the caller's, one write(2) for each time it is
// full, and without stdio: the program may be inside malloc's caller. A write ends with a line
// where there is one, so that processes with one standard error do not mix within lines: up to
// PIPE_BUF bytes go into a pipe in one piece.
class Writer {
 public:
  Writer(int fd, char* buffer, std::size_t size) : fd_(fd), size_(size), buffer_(buffer) {}
  Writer& text(const char* words);
  Writer& number(std::uint64_t value);
  // In quotation marks, as JSON and Prometheus have them; `most` bytes at most, and no byte that
  // is not ASCII: such text comes from outside, and may be cut inside a character.
  Writer& quoted(const char* words, std::size_t most);
  // The first error of a write, or 0.
  int flush();

 private:
  void put(char c);
  void write_out(std::size_t bytes);
  int fd_;
  int error_ = 0;
  std::size_t length_ = 0, size_;
  char* buffer_;
};

// Writes all counters, those of registrations too; -EINVAL for no format.
int statistics_print(Writer& out, rdmalloc_stats_format format);

// What no JSON object of statistics exceeds: 65 groups of 32 counters of 48 bytes, and the rest.
inline constexpr std::size_t kMostStatisticsBytes = std::size_t{128} << 10;

}  // namespace rdmalloc
