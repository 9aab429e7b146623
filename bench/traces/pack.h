// Makes a trace of a recording.
#pragma once

#include <cstdint>
#include <string>

namespace rdmalloc::bench {

struct Packed {
  std::string error;  // why there is no trace, or nothing
  std::uint64_t operations = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::uint64_t threads = 0;
  std::uint64_t slots = 0;           // blocks live at once, about: a thread's own are reused by it
  std::uint64_t unknown_blocks = 0;  // freed, but born before the recording: left out
  bool is_forked = false;
  bool was_full = false;
  std::string program;
};

// Head only: the program that a recording is of, or empty when the file is none.
std::string program_of_recording(const std::string& path);
Packed pack(const std::string& recording, const std::string& trace);

}  // namespace rdmalloc::bench
