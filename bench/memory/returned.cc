// Patterns that free a peak at once, and are watched while memory goes back.
#include <utility>

#include "bench/memory/patterns.h"
#include "bench/support/resident.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kMiB = 1 << 20;

// 512 MiB of any size from 16 B to 1 MiB, each doubling equally likely, of which all but one in a
// hundred are freed, in the order of their birth. Then work() every 10 ms.
void peak(const Watch& watch, double scale, const std::function<void()>& work) {
  Random random(6);
  const auto most = static_cast<std::uint64_t>(512 * kMiB * scale);
  const std::size_t enough = most / 16'384 + 16;  // the mean is 96 KiB
  Mapped<char*> blocks(enough);
  Mapped<std::uint32_t> bytes_of(enough);
  std::size_t count = 0;
  for (std::uint64_t bytes = 0; bytes < most && count < enough; ++count) {
    bytes_of[count] = static_cast<std::uint32_t>(any_size(random, 16, 16));
    blocks[count] = full(bytes_of[count]);
    bytes += bytes_of[count];
  }
  const std::uint64_t at_peak = resident_bytes();
  std::uint64_t freed = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (random.below(100) == 0) continue;
    freed += bytes_of[i];
    std::free(std::exchange(blocks[i], nullptr));
  }
  watch.after_peak(at_peak, freed, work);
}

void peak_idle(const Watch& watch, double scale) {
  peak(watch, scale, [] {});
}

// A server between its loads: 20 of 200 blocks of up to 4 KiB replaced every 10 ms, and one of up
// to 1 MiB that comes and goes.
void peak_trickle(const Watch& watch, double scale) {
  Mapped<char*> few(200);
  Random random(7);
  peak(watch, scale, [&] {
    for (int i = 0; i < 20; ++i) {
      char*& block = few[random.below(200)];
      std::free(block);
      block = full(any_size(random, 16, 8));
    }
    std::free(full(any_size(random, 16, 16)));
  });
}

}  // namespace

const std::vector<MemoryPattern>& returned_patterns() {
  static const std::vector<MemoryPattern> patterns = {
      {"peak-idle", "512 MiB of 16 B to 1 MiB, 99 of 100 freed, then nothing", peak_idle},
      {"peak-trickle", "the same, then 2,100 blocks a second replaced", peak_trickle},
  };
  return patterns;
}

}  // namespace rdmalloc::bench
