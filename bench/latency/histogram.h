// How often each duration was seen, in fixed memory: adding one is an increment, and the buckets
// are fine enough for any percentile. The idea is HdrHistogram's.
//
//   value    0  1 …  255 | 256 258 … 510 | 512 516 … 1020 | …      < 2^40
//   bucket   0  1 …  255 | 256 257 … 383 | 384 385 …  511 | …
//            1 wide      | 2 wide        | 4 wide         |
//
// All zero is empty: memory from mmap is a histogram.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace rdmalloc::bench {

class Histogram {
 public:
  void add(std::uint64_t value) {
    ++counts_[bucket_of(value)];
    ++count_;
    largest_ = std::max(largest_, value);
  }
  void add(const Histogram& other) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    largest_ = std::max(largest_, other.largest_);
  }

  std::uint64_t count() const { return count_; }
  std::uint64_t largest() const { return largest_; }  // exact

  // What so many of a thousand are not above; too large by 1/128 at most, 0 when empty.
  std::uint64_t percentile(unsigned per_mille) const {
    const std::uint64_t rank = (count_ * per_mille + 999) / 1000;
    std::uint64_t seen = 0;
    for (std::size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      seen += counts_[bucket];
      if (seen >= rank && seen > 0) return std::min(last_of(bucket), largest_);
    }
    return 0;
  }

 private:
  static constexpr unsigned kExactBits = 8;
  static constexpr unsigned kLargestBits =
      40;  // six minutes and more; what is longer counts as that
  static constexpr std::size_t kExact = std::size_t{1} << kExactBits;
  static constexpr std::size_t kForDoubling = kExact / 2;
  static constexpr std::size_t kBuckets = kExact + (kLargestBits - kExactBits) * kForDoubling;

  static std::size_t bucket_of(std::uint64_t value) {
    if (value < kExact) return value;
    value = std::min(value, (std::uint64_t{1} << kLargestBits) - 1);
    const auto shift = static_cast<unsigned>(std::bit_width(value)) - kExactBits;
    return shift * kForDoubling + (value >> shift);
  }
  static std::uint64_t last_of(std::size_t bucket) {
    if (bucket < kExact) return bucket;
    const std::size_t shift = bucket / kForDoubling - 1;
    return ((bucket - shift * kForDoubling + 1) << shift) - 1;
  }

  std::array<std::uint32_t, kBuckets> counts_{};
  std::uint64_t count_ = 0;
  std::uint64_t largest_ = 0;
};

}  // namespace rdmalloc::bench
