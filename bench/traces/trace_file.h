// A trace as a file: its head in memory, its events read by each thread for itself, so that
// replaying one takes little memory of its own.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/traces/format.h"

namespace rdmalloc::bench {

class TraceFile {
 public:
  TraceFile() = default;
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // What is wrong with it, or nothing.
  std::string open(const char* path);
  // Plays the trace through without allocating: an operation that waits for ever, a block that is
  // freed twice, a thread that no event starts. What is wrong, or nothing.
  std::string check() const;

  std::uint32_t slots() const { return head_.slots; }
  const std::vector<TraceThread>& threads() const { return threads_; }
  std::uint64_t operations() const;

 private:
  friend class TraceReader;
  int file_ = -1;
  TraceHead head_{};
  std::vector<TraceThread> threads_;
};

// The events of one thread in their order.
class TraceReader {
 public:
  TraceReader(const TraceFile& file, std::size_t thread)
      : file_(file.file_),
        offset_(file.threads_[thread].offset),
        left_(file.threads_[thread].events) {}
  // False at the end.
  bool next(TraceEvent& event);

 private:
  int file_;
  std::uint64_t offset_;
  std::uint64_t left_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  std::array<TraceEvent, 512> buffer_;
};

}  // namespace rdmalloc::bench
