// What is registered: blocks of ours, foreign pages, and the tables of the floors. None
// of it is ever touched but the tables: only addresses are looked up.
#pragma once

#include <rdmalloc/rdmalloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

namespace rdmalloc::bench {

constexpr std::size_t kBlockBytes = 128 << 10;  // more than a slice: a span for each
constexpr std::size_t kAskedBytes = 4096;       // of each look-up

[[noreturn]] inline void give_up(const char* what) {
  std::fprintf(stderr, "regcache_worker: %s\n", what);
  std::exit(1);
}

using Addresses = std::vector<void*>;

// Large blocks of ours, by rising address.
class Blocks {
 public:
  Blocks(std::size_t count, std::size_t bytes) {
    while (addresses_.size() < count) {
      addresses_.push_back(rdmalloc_malloc(bytes));
      if (addresses_.back() == nullptr) give_up("no memory for the blocks");
    }
    std::sort(addresses_.begin(), addresses_.end());
  }
  ~Blocks() {
    for (void* block : addresses_) rdmalloc_free(block);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;
  const Addresses& addresses() const { return addresses_; }

 private:
  Addresses addresses_;
};

// One mapping that is not rdmalloc's, and an address in it each `stride` bytes.
class Mapping {
 public:
  Mapping(std::size_t count, std::size_t stride, bool is_backed) : bytes_(count * stride) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (is_backed ? MAP_POPULATE : MAP_NORESERVE);
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (base_ == MAP_FAILED) give_up("no mapping");
    for (std::size_t i = 0; i < count; ++i)
      addresses_.push_back(static_cast<char*>(base_) + i * stride);
  }
  ~Mapping() { munmap(base_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  void* base() const { return base_; }
  std::size_t bytes() const { return bytes_; }
  const Addresses& addresses() const { return addresses_; }

 private:
  std::size_t bytes_;
  void* base_;
  Addresses addresses_;
};

// A line of the floors' tables: what is left of a registration when nothing is checked.
struct alignas(64) Line {
  std::atomic<std::uint64_t> word;
};

// What one thread asks for: the same addresses, in one order or in several.
using Share = std::vector<Addresses>;

// What each of `threads` asks for: a part of its own. Where there are fewer addresses than threads,
// several ask for the same. Random: in orders that have nothing to do with each other, so that
// neither how a cache laid out its records nor its list of the latest used is the order of the next
// pass.
constexpr std::size_t kRandomOrders = 3;
inline std::vector<Share> shares_of(const Addresses& all, int threads, bool is_random) {
  std::vector<Share> shares;
  const auto count = static_cast<std::size_t>(threads);
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = [&](std::size_t part) {
      return all.begin() + static_cast<std::ptrdiff_t>(all.size() * part / count);
    };
    Addresses part(at(i), at(i + 1));
    if (part.empty()) part.push_back(all[i % all.size()]);
    Share share(is_random ? kRandomOrders : 1, part);
    std::mt19937_64 random(i + 1);
    if (is_random)
      for (Addresses& order : share) std::shuffle(order.begin(), order.end(), random);
    shares.push_back(std::move(share));
  }
  return shares;
}

}  // namespace rdmalloc::bench
