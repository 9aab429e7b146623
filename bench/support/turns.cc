#include "bench/support/turns.h"

#include <algorithm>

namespace rdmalloc::bench {

std::vector<std::size_t> turns_of(std::size_t count, int repetition) {
  std::vector<std::size_t> turns;
  // 0, 1, n-1, 2, n-2 …: neighbours at all distances, each moved on by one a repetition.
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t place = i % 2 == 1 ? (i + 1) / 2 : count - i / 2;
    turns.push_back((place + static_cast<std::size_t>(repetition)) % count);
  }
  // An odd number has all distances only with the same read backwards.
  if (count % 2 == 1 && static_cast<std::size_t>(repetition) / count % 2 == 1)
    std::reverse(turns.begin(), turns.end());
  return turns;
}

}  // namespace rdmalloc::bench
