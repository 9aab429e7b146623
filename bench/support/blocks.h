// What the measured programs allocate: sizes by chance, and blocks that are there or end the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace rdmalloc::bench {

// xorshift64 (Marsaglia): cheap beside an allocation.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  std::size_t below(std::size_t limit) { return (next() >> 16) % limit; }
  std::size_t between(std::size_t least, std::size_t most) {
    return least + below(most - least + 1);
  }

 private:
  std::uint64_t state_;
};

// The exit status says that there was no memory.
inline char* must_have(void* block) {
  if (block == nullptr) std::_Exit(4);
  return static_cast<char*>(block);
}

// malloc that writes both ends and does not come back without memory. Volatile: of a block that is
// freed at once GCC drops the writes, and Clang malloc and free as well.
inline char* allocate(std::size_t bytes) {
  char* memory = must_have(std::malloc(bytes));
  volatile char* written = memory;
  written[0] = static_cast<char>(bytes);
  written[bytes - 1] = 1;
  return memory;
}

// Writes to each page, as a program does to what it gets.
inline void touch_pages(void* memory, std::size_t bytes, std::size_t from = 0) {
  constexpr std::size_t kPageBytes = 4096;
  for (std::size_t at = from; at < bytes; at += kPageBytes)
    static_cast<volatile char*>(memory)[at] = 1;
}

// A block whose every byte is written; the compiler must not see that it may never be read.
inline char* full(std::size_t bytes) {
  char* block = must_have(std::malloc(bytes));
  std::memset(block, 1, bytes);
  asm volatile("" : : "r"(block) : "memory");
  return block;
}

}  // namespace rdmalloc::bench
