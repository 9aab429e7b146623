// How often to look where nothing was found: the next look is left out, after another vain one the
// next three, and so on up to kMost. Not for threads: its owner's, or under a lock.
#pragma once

#include <cstdint>

namespace rdmalloc {

// All zero at first: each look is made until one was vain.
struct VainLooks {
  static constexpr std::uint8_t kMost = 31, kMostOfAll = 128;

  std::uint8_t left_out;       // of the next ones
  std::uint8_t left_out_next;  // after the next one, if that is in vain

  // Whether this one is left out; else the caller looks, and notes whether it has found something.
  bool leave_out() {
    if (left_out == 0) return false;
    --left_out;
    return true;
  }
  // `most`, kMostOfAll or less: from so many on it is not doubled again, so it stays below twice as
  // many.
  void note(bool has_found, std::uint8_t most = kMost) {
    if (has_found)
      left_out_next = 0;
    else if (left_out_next < most)
      left_out_next = static_cast<std::uint8_t>(left_out_next * 2 + 1);
    left_out = left_out_next;
  }
};

}  // namespace rdmalloc
