// The caches of a machine whose cores have one each, of unlimited size, kept coherent line by line
// by MESI. A line is known by which cores have it and by whether one of them has modified it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace rdmalloc::bench {

class Caches {
 public:
  static constexpr unsigned kLineShift = 6;

  // What an access took besides the core's own cache. Memory is free: only lines that another core
  // has are waited for.
  enum class Moved { nothing, by_load, by_store };

  explicit Caches(unsigned cores);

  // A load moves a line that another core has modified. A store moves a line that any other core
  // has.
  Moved load(unsigned core, std::uint64_t line);
  Moved store(unsigned core, std::uint64_t line);

  // Lines that found no place in the table; what moved of them is unknown.
  std::uint64_t lost_lines() const { return lost_; }

 private:
  static constexpr unsigned kPlacesLog2 = 23;
  static constexpr std::size_t kPlaces = std::size_t{1} << kPlacesLog2;
  static constexpr std::size_t kProbes = 64;
  static constexpr std::size_t kNowhere = kPlaces;
  static constexpr unsigned kBits = 64;
  static constexpr std::uint16_t kClean = 0;

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  template <typename T>
  using Zeroed = std::unique_ptr<T[], Free>;  // its pages are backed once they are used

  std::size_t place_of(std::uint64_t line);
  std::uint64_t* holders_at(std::size_t place) { return &holders_[place * words_]; }
  bool do_others_hold(std::size_t place, unsigned core);

  const unsigned words_;  // of each line's set of cores
  Zeroed<std::uint64_t> lines_;
  Zeroed<std::uint64_t> holders_;
  Zeroed<std::uint16_t> modified_by_;  // core + 1, or kClean
  std::uint64_t lost_ = 0;
};

}  // namespace rdmalloc::bench
