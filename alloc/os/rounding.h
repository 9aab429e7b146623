// Bytes and addresses to whole units.
#pragma once

#include <cstdint>

namespace rdmalloc {

// `unit` is a power of two. round_up() of what is less than a unit below 2^64 is 0.
constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) {
  return value & ~(unit - 1);
}
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return round_down(value + unit - 1, unit);
}

}  // namespace rdmalloc
