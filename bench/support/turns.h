// In which order allocators are run within one repetition.
#pragma once

#include <cstddef>
#include <vector>

namespace rdmalloc::bench {

// A permutation of 0 … count-1 for each repetition, so that none always comes after the same one:
// what a program leaves behind (free pages that the host has taken back or not, warm caches) costs
// or saves its successor more than allocators differ by. Over `count` repetitions each comes after
// each other once where `count` is even; over twice as many, twice where it is odd (E. J. Williams,
// 1949, designs balanced for residual effects).
std::vector<std::size_t> turns_of(std::size_t count, int repetition);

}  // namespace rdmalloc::bench
