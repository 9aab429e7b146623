// How programs fill memory and leave it again: what stays resident is what counts, not time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "bench/support/blocks.h"
#include "bench/support/mapped.h"

namespace rdmalloc::bench {

// When resident memory is looked at. The largest is the kernel's own account.
class Watch {
 public:
  Watch(double settle_s, double until_s) : settle_s_(settle_s), until_s_(until_s) {}
  // The work is done; and again after the time to settle, during which nothing is called.
  void at_end() const;
  // `freed` bytes were freed at once, 1, 5, 10 and 60 s ago, as far as that is watched: how many of
  // them are resident no more, in percent. Between the looks work() is called every 10 ms.
  void after_peak(std::uint64_t peak, std::uint64_t freed, const std::function<void()>& work) const;

 private:
  const double settle_s_;
  const double until_s_;
};

struct MemoryPattern {
  const char* name;
  const char* what;
  void (*run)(const Watch& watch, double scale);
};

const std::vector<MemoryPattern>& emptied_patterns();   // most is freed at the end
const std::vector<MemoryPattern>& kept_patterns();      // it is still there
const std::vector<MemoryPattern>& returned_patterns();  // freed at once, and watched for a while

// Any size from `least` to `most`, each doubling equally likely.
inline std::size_t any_size(Random& random, std::size_t least, std::size_t doublings) {
  const std::size_t from = least << random.below(doublings);
  return random.between(from, 2 * from - 1);
}

}  // namespace rdmalloc::bench
