// Seen to fail: with rdmalloc taken for a peer of its own; with mean() leaving out what failed.
#include "bench/support/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace rdmalloc::bench {
namespace {

// Two programs: a is better in p, b in q; rdmalloc is at 0.5 in both.
Ratios example() {
  return {{"p", "q"},
          {"glibc", "a", "b", "rdmalloc"},
          {{{"p", "glibc"}, 1.0},
           {{"q", "glibc"}, 1.0},
           {{"p", "a"}, 0.4},
           {{"q", "a"}, 0.9},
           {{"p", "b"}, 1.6},
           {{"q", "b"}, 0.25},
           {{"p", "rdmalloc"}, 0.5},
           {{"q", "rdmalloc"}, 0.5}}};
}

TEST(Verdict, the_best_peer_is_the_one_with_the_least_mean) {
  const Verdict verdict = judge(example(), "a");
  EXPECT_EQ(verdict.best_peer.name, "a");
  EXPECT_NEAR(verdict.best_peer.ratio, 0.5 / 0.6, 1e-9);
}

TEST(Verdict, the_best_of_each_program_is_better_than_any_one_peer) {
  // 0.5 / 0.4 and 0.5 / 0.25
  EXPECT_NEAR(judge(example(), "a").to_best_of_each, std::sqrt(1.25 * 2), 1e-9);
}

TEST(Verdict, the_worst_program_is_sought_against_the_rival) {
  const Verdict verdict = judge(example(), "b");
  EXPECT_EQ(verdict.worst_program.name, "q");
  EXPECT_NEAR(verdict.worst_program.ratio, 2, 1e-9);
  EXPECT_EQ(judge(example(), "").worst_program.ratio, 0);
  EXPECT_THAT(verdict_text(verdict), testing::HasSubstr("against b: q, 2.000"));
}

TEST(Verdict, there_is_no_mean_without_a_program_that_failed) {
  Ratios ratios = example();
  ratios.to_glibc.erase({"p", "a"});
  EXPECT_EQ(ratios.mean("a"), 0);
  EXPECT_EQ(judge(ratios, "").best_peer.name, "b");
  ratios.to_glibc.erase({"q", "rdmalloc"});
  EXPECT_EQ(judge(ratios, "").to_best_of_each, 0);
}

}  // namespace
}  // namespace rdmalloc::bench
