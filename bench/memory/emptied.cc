// Patterns at whose end most or all is freed.
#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "bench/memory/patterns.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kKiB = 1 << 10;
constexpr std::size_t kMiB = 1 << 20;

std::size_t scaled(std::size_t count, double scale) {
  return std::max<std::size_t>(static_cast<std::size_t>(static_cast<double>(count) * scale), 16);
}

void free_all(Mapped<char*>& blocks) {
  for (char*& block : blocks) std::free(std::exchange(block, nullptr));
}

// Of `count` blocks all but each tenth are freed.
void mostly_freed(const Watch& watch, std::size_t bytes, std::size_t count) {
  Mapped<char*> blocks(count);
  for (char*& block : blocks) block = full(bytes);
  for (std::size_t i = 0; i < count; ++i)
    if (i % 10 != 0) std::free(std::exchange(blocks[i], nullptr));
  watch.at_end();
  free_all(blocks);
}
void mostly_freed_33k(const Watch& watch, double scale) {
  mostly_freed(watch, 33 * kKiB, scaled(20'000, scale));
}
void mostly_freed_66k(const Watch& watch, double scale) {
  mostly_freed(watch, 66 * kKiB, scaled(10'000, scale));
}

char* aligned(std::size_t alignment, std::size_t bytes) {
  void* block = nullptr;
  if (posix_memalign(&block, alignment, bytes) != 0) block = nullptr;
  std::memset(must_have(block), 1, bytes);
  return static_cast<char*>(block);
}

// Pages at their own alignment, and small blocks at one of 64 KiB.
void aligned_mix(const Watch& watch, double scale) {
  Mapped<char*> blocks(2 * scaled(50'000, scale));
  bool is_page = false;
  for (char*& block : blocks) {
    is_page = !is_page;
    block = is_page ? aligned(4 * kKiB, 4 * kKiB) : aligned(64 * kKiB, 100);
  }
  free_all(blocks);
  watch.at_end();
}

// 64 MiB of blocks of one size, of which one in 16 stays; then the next size.
void next_sizes(const Watch& watch, double scale) {
  constexpr int kSizes = 27;  // 64 B to 21 KiB
  const std::size_t bytes_of_each = scaled(64 * kMiB, scale);
  Mapped<char*> kept(static_cast<std::size_t>(kSizes) * (bytes_of_each / 64 / 16 + 1));
  std::size_t kept_count = 0;
  double size = 64;
  for (int i = 0; i < kSizes; ++i, size *= 1.25) {
    const auto bytes = static_cast<std::size_t>(size);
    Mapped<char*> blocks(bytes_of_each / bytes);
    for (char*& block : blocks) block = full(bytes);
    std::size_t number = 0;
    for (char* block : blocks) {
      if (number++ % 16 == 0)
        kept[kept_count++] = block;
      else
        std::free(block);
    }
  }
  watch.at_end();
  free_all(kept);
}

// 64 vectors, none larger than 8 MiB, grow in turn: a new buffer, a copy, the old one freed.
void vectors(const Watch& watch, double scale) {
  constexpr std::size_t kVectors = 64;
  const std::size_t most = scaled(8 * kMiB, scale);
  Random random(1);
  {
    std::vector<std::vector<char>> all(kVectors);
    for (std::size_t grown = 0; grown < kVectors;) {
      std::vector<char>& vector = all[random.below(kVectors)];
      if (vector.size() == most) continue;
      const std::size_t step = std::min(random.between(1, 64 * kKiB), most - vector.size());
      vector.insert(vector.end(), step, 1);
      grown += vector.size() == most ? 1 : 0;
    }
  }
  watch.at_end();
}

// 300 large blocks come, and go in another order, again and again.
void sawtooth(const Watch& watch, double scale) {
  constexpr int kTeeth = 10;
  Mapped<char*> blocks(300);
  Random random(2);
  for (int tooth = 0; tooth < kTeeth; ++tooth) {
    for (char*& block : blocks)
      block = full(random.between(scaled(64 * kKiB, scale), scaled(2 * kMiB, scale)));
    std::size_t left = 300;
    for (; left != 0; --left) {
      std::swap(blocks[random.below(left)], blocks[left - 1]);
      std::free(std::exchange(blocks[left - 1], nullptr));
    }
  }
  watch.at_end();
}

// A program of three phases, each with sizes of its own, each of which leaves one block in twenty.
void phases(const Watch& watch, double scale) {
  constexpr std::pair<std::size_t, std::size_t> kSizes[] = {
      {16, 256}, {32 * kKiB, 256 * kKiB}, {1 * kKiB, 8 * kKiB}};
  const std::size_t bytes_of_each = scaled(200 * kMiB, scale);
  Random random(3);
  std::vector<char*> kept;
  for (const auto& [least, most] : kSizes) {
    std::vector<char*> blocks;
    for (std::size_t bytes = 0; bytes < bytes_of_each;) {
      const std::size_t size = random.between(least, most);
      blocks.push_back(full(size));
      bytes += size;
    }
    for (char* block : blocks) {
      if (random.below(20) == 0)
        kept.push_back(block);
      else
        std::free(block);
    }
  }
  watch.at_end();
  for (char* block : kept) std::free(block);
}

// A queue of requests that swells and shrinks, first in, first out.
void queue(const Watch& watch, double scale) {
  const std::size_t most = scaled(200'000, scale);
  Mapped<char*> ring(most);
  Random random(4);
  std::size_t first = 0;
  std::size_t last = 0;
  const auto shrink_to = [&](std::size_t length) {
    for (; last - first > length; ++first) std::free(std::exchange(ring[first % most], nullptr));
  };
  for (int swing = 0; swing < 5; ++swing) {
    for (; last - first < most; ++last) ring[last % most] = full(random.between(200, 2000));
    shrink_to(most / 100);
  }
  watch.at_end();
  shrink_to(0);
}

// A hash table that doubles: the new one beside the old one, then that one goes.
void tables(const Watch& watch, double scale) {
  char* table = full(kMiB);
  for (std::size_t bytes = 2 * kMiB; bytes <= scaled(256 * kMiB, scale); bytes *= 2) {
    auto* next = must_have(std::calloc(1, bytes));
    std::memset(next, 1, bytes);
    std::free(table);
    table = next;
  }
  std::free(table);
  watch.at_end();
}

// Message buffers of any length up to 1 MiB, 100 at once, each in place of the oldest.
void messages(const Watch& watch, double scale) {
  Mapped<char*> ring(100);
  Random random(5);
  for (std::size_t i = 0; i < scaled(5'000, scale); ++i) {
    char*& block = ring[i % 100];
    std::free(block);
    block = full(any_size(random, 4 * kKiB, 8));
  }
  free_all(ring);
  watch.at_end();
}

// The processors that this program may run on.
std::vector<int> processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return {0};
  std::vector<int> found;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &allowed)) found.push_back(processor);
  return found;
}

// Four threads that each replace random ones of 8 blocks of 1 to 4 MiB, and go to the next
// processor now and then.
void moving_buffers(const Watch& watch, double scale) {
  constexpr std::size_t kThreads = 4, kBlocks = 8, kStay = 250;
  const std::vector<int> places = processors();
  const std::size_t replacements = scaled(10'000, scale);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([=, &places] {
      Random random(thread);
      Mapped<char*> blocks(kBlocks);
      for (std::size_t i = 0; i < replacements; ++i) {
        if (i % kStay == 0) {
          cpu_set_t next;
          CPU_ZERO(&next);
          CPU_SET(places[(i / kStay + thread) % places.size()], &next);
          sched_setaffinity(0, sizeof next, &next);
        }
        char*& block = blocks[random.below(kBlocks)];
        std::free(block);
        block = full(random.between(kMiB, 4 * kMiB));
      }
      free_all(blocks);
    });
  for (std::thread& thread : threads) thread.join();
  watch.at_end();
}

// 16 blocks that realloc makes longer and shorter, small and large.
void resized(const Watch& watch, double scale) {
  Mapped<char*> blocks(16);
  Random random(9);
  for (char*& block : blocks) block = full(kKiB);
  for (std::size_t i = 0; i < scaled(500'000, scale); ++i) {
    char*& block = blocks[random.below(16)];
    block = must_have(std::realloc(block, random.between(kKiB, 256 * kKiB)));
    *block = 1;
  }
  free_all(blocks);
  watch.at_end();
}

}  // namespace

const std::vector<MemoryPattern>& emptied_patterns() {
  static const std::vector<MemoryPattern> patterns = {
      {"mostly-freed-33K", "33 KiB x 20,000, nine of ten freed", mostly_freed_33k},
      {"mostly-freed-66K", "66 KiB x 10,000, nine of ten freed", mostly_freed_66k},
      {"aligned-mix", "4 KiB at 4 KiB and 100 B at 64 KiB alignment, 50,000 of each, all freed",
       aligned_mix},
      {"next-sizes", "64 MiB of one size, 15 of 16 freed, then the next size, 27 times",
       next_sizes},
      {"vectors", "64 vectors that grow in turn to 8 MiB, all freed", vectors},
      {"sawtooth", "300 blocks of 64 KiB to 2 MiB come and go, ten times", sawtooth},
      {"phases", "three phases with sizes of their own, each leaves a twentieth", phases},
      {"queue", "200 to 2,000 B, first in, first out, 2,000 to 200,000 at once", queue},
      {"tables", "a table that doubles to 256 MiB, freed", tables},
      {"messages", "4 KiB to 1 MiB, the oldest of 100 replaced 5,000 times, all freed", messages},
      {"moving-buffers", "four threads replace 8 of 1 to 4 MiB each and change processors",
       moving_buffers},
      {"resized", "16 that realloc makes 1 to 256 KiB, 500,000 times", resized},
  };
  return patterns;
}

}  // namespace rdmalloc::bench
