// Patterns at whose end memory is in use.
#include "bench/memory/patterns.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kKiB = 1 << 10;
constexpr std::size_t kMiB = 1 << 20;

// A program that only ever allocates: 1,573 MiB of 1.1 MB each.
void only_allocates(const Watch& watch, double scale) {
  for (int i = 0; i < static_cast<int>(1500 * scale) + 1; ++i) full(1'100'000);
  watch.at_end();
}

// A heap of so many bytes, sizes from 16 B to 32 KiB, each doubling equally likely.
void small_heap(const Watch& watch, std::size_t bytes) {
  Random random(1);
  for (std::size_t asked = 0; asked < bytes;) {
    const std::size_t size = any_size(random, 16, 11);
    full(size);
    asked += size;
  }
  watch.at_end();
}
void heap_1m(const Watch& watch, double) {
  small_heap(watch, kMiB);
}
void heap_3m(const Watch& watch, double) {
  small_heap(watch, 3 * kMiB);
}
void heap_10m(const Watch& watch, double) {
  small_heap(watch, 10 * kMiB);
}
void heap_30m(const Watch& watch, double) {
  small_heap(watch, 30 * kMiB);
}

void small_blocks(const Watch& watch, double) {
  Random random(2);
  for (int i = 0; i < 20'000; ++i) full(random.between(16, 1039));
  watch.at_end();
}

// A cache of a server: 60,000 objects of any size up to 64 KiB, of which random ones are replaced.
void object_cache(const Watch& watch, double scale) {
  Mapped<char*> objects(static_cast<std::size_t>(60'000 * scale) + 1);
  const std::size_t count = static_cast<std::size_t>(objects.end() - objects.begin());
  Random random(3);
  for (char*& object : objects) object = full(any_size(random, 16, 12));
  for (std::size_t i = 0; i < 5 * count; ++i) {
    char*& object = objects[random.below(count)];
    std::free(object);
    object = full(any_size(random, 16, 12));
  }
  watch.at_end();
}

// 256 MiB of any size up to 1 MiB, of which a random half is freed.
void half_freed(const Watch& watch, double scale) {
  Random random(4);
  std::vector<char*> blocks;
  for (std::size_t bytes = 0; bytes < static_cast<std::size_t>(256 * kMiB * scale);) {
    const std::size_t size = any_size(random, 16, 16);
    blocks.push_back(full(size));
    bytes += size;
  }
  for (char* block : blocks)
    if (random.below(2) == 0) std::free(block);
  watch.at_end();
}

// Buffers that are appended to, each to a length of its own of up to 64 KiB.
void appended(const Watch& watch, double scale) {
  const auto count = static_cast<std::size_t>(5'000 * scale) + 1;
  struct Buffer {
    char* memory;
    std::size_t bytes;
    std::size_t most;
  };
  Mapped<Buffer> buffers(count);
  Random random(5);
  for (Buffer& buffer : buffers) buffer.most = any_size(random, kKiB, 6);
  for (std::size_t at_end = 0; at_end < count;) {
    Buffer& buffer = buffers[random.below(count)];
    if (buffer.bytes == buffer.most) continue;
    const std::size_t bytes = std::min(buffer.bytes + random.between(1, 4 * kKiB), buffer.most);
    buffer.memory = must_have(std::realloc(buffer.memory, bytes));
    std::memset(buffer.memory + buffer.bytes, 1, bytes - buffer.bytes);
    buffer.bytes = bytes;
    at_end += bytes == buffer.most ? 1 : 0;
  }
  watch.at_end();
}

// Large tables of zeros in which a page of 16 is ever written.
void sparse(const Watch& watch, double scale) {
  constexpr std::size_t kPage = 4 * kKiB;
  const auto bytes = static_cast<std::size_t>(64 * kMiB * scale);
  for (int table = 0; table < 16; ++table) {
    char* zeros = must_have(std::calloc(1, bytes));
    for (std::size_t at = 0; at < bytes; at += 16 * kPage) zeros[at] = 1;
  }
  watch.at_end();
}

}  // namespace

const std::vector<MemoryPattern>& kept_patterns() {
  static const std::vector<MemoryPattern> patterns = {
      {"only-allocates", "1,573 MiB of 1.1 MB, nothing freed", only_allocates},
      {"object-cache", "60,000 of 16 B to 64 KiB, random ones replaced", object_cache},
      {"half-freed", "256 MiB of 16 B to 1 MiB, a random half freed", half_freed},
      {"appended", "5,000 buffers that grow to 1 to 64 KiB by realloc", appended},
      {"sparse", "16 callocs of 64 MiB, one page of 16 written", sparse},
      {"heap-1M", "1 MiB of 16 B to 32 KiB", heap_1m},
      {"heap-3M", "3 MiB of 16 B to 32 KiB", heap_3m},
      {"heap-10M", "10 MiB of 16 B to 32 KiB", heap_10m},
      {"heap-30M", "30 MiB of 16 B to 32 KiB", heap_30m},
      {"small-blocks", "20,000 of 16 to 1,039 B, 10 MiB", small_blocks},
  };
  return patterns;
}

}  // namespace rdmalloc::bench
