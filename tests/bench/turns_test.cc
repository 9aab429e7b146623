// Seen to fail: with a plain rotation (place = i), and without the reversal of odd numbers.
#include "bench/support/turns.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

namespace rdmalloc::bench {
namespace {

TEST(Turns, each_has_one_turn_in_each_repetition) {
  for (std::size_t count = 0; count <= 9; ++count)
    for (int repetition = 0; repetition < 20; ++repetition) {
      const std::vector<std::size_t> turns = turns_of(count, repetition);
      const std::set<std::size_t> all(turns.begin(), turns.end());
      EXPECT_EQ(turns.size(), count);
      EXPECT_EQ(all.size(), count);
      if (count != 0) {
        EXPECT_EQ(*all.rbegin(), count - 1);
      }
    }
}

TEST(Turns, each_follows_each_other_equally_often) {
  for (std::size_t count = 2; count <= 9; ++count) {
    const bool is_odd = count % 2 == 1;
    const int repetitions = static_cast<int>(is_odd ? 2 * count : count);
    std::map<std::pair<std::size_t, std::size_t>, int> times;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      const std::vector<std::size_t> turns = turns_of(count, repetition);
      for (std::size_t i = 1; i < count; ++i) ++times[{turns[i - 1], turns[i]}];
    }
    EXPECT_EQ(times.size(), count * (count - 1)) << count;
    for (const auto& [pair, often] : times)
      EXPECT_EQ(often, is_odd ? 2 : 1) << pair.first << " before " << pair.second;
  }
}

}  // namespace
}  // namespace rdmalloc::bench
