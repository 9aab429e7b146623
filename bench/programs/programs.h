// Small programs, each the manner of allocating of a well-known benchmark or kind of application in
// code of our own. Fixed work: what is measured is the whole process, from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

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

// malloc that writes both ends and does not come back without memory.
inline char* allocate(std::size_t bytes) {
  auto* memory = static_cast<char*>(std::malloc(bytes));
  if (memory == nullptr) std::_Exit(4);
  memory[0] = static_cast<char>(bytes);
  memory[bytes - 1] = 1;
  return memory;
}

struct Program {
  const char* name;
  const char* manner;  // whose, and what is typical of it
  void (*run)(unsigned threads, double scale);
};

const std::vector<Program>& single_programs();    // one thread
const std::vector<Program>& threaded_programs();  // many
const std::vector<Program>& sharing_programs();   // many, about lines, leftovers and own sets

}  // namespace rdmalloc::bench
