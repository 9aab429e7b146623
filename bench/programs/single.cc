#include <algorithm>
#include <cstring>

#include "bench/programs/programs.h"

namespace rdmalloc::bench {
namespace {

// Bignums of cfrac: digits in a block of the heap behind their count, every operation makes a new
// one and drops the operands; blocks of 16 to 64 bytes that live for a few operations.
struct Number {
  std::size_t count;
};

std::uint32_t* digits_of(Number* number) {
  return reinterpret_cast<std::uint32_t*>(number + 1);
}

Number* make_number(std::size_t count) {
  auto* number = reinterpret_cast<Number*>(allocate(sizeof(Number) + count * 4));
  number->count = count;
  return number;
}

Number* multiplied(Number* number, std::uint32_t factor) {
  Number* product = make_number(number->count + 1);
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < number->count; ++i) {
    carry += std::uint64_t{digits_of(number)[i]} * factor;
    digits_of(product)[i] = static_cast<std::uint32_t>(carry);
    carry >>= 32;
  }
  digits_of(product)[number->count] = static_cast<std::uint32_t>(carry);
  return product;
}

Number* remainder(Number* number, std::size_t count) {
  Number* rest = make_number(std::min(count, number->count));
  std::memcpy(digits_of(rest), digits_of(number), rest->count * 4);
  return rest;
}

void cfrac(unsigned, double scale) {
  Random random(1);
  Number* number = make_number(2);
  digits_of(number)[0] = 3;
  digits_of(number)[1] = 5;
  for (auto left = static_cast<std::size_t>(15e6 * scale); left > 0; --left) {
    Number* product = multiplied(number, static_cast<std::uint32_t>(random.next() | 1));
    Number* rest = remainder(product, random.between(1, 10));
    std::free(number);
    std::free(product);
    number = rest;
  }
  std::free(number);
}

// Sizes by a power law over a working set, every byte written: alloc-test.
void alloc_test(unsigned, double scale) {
  constexpr std::size_t kSlots = 20'000;
  Random random(2);
  std::vector<char*> slots(kSlots);
  for (auto left = static_cast<std::size_t>(4e6 * scale); left > 0; --left) {
    char*& slot = slots[random.below(kSlots)];
    std::free(slot);
    const std::size_t bytes = random.between(8, std::size_t{16} << random.below(8));
    slot = allocate(bytes);
    std::memset(slot, 7, bytes);
  }
  for (char* slot : slots) std::free(slot);
}

// Batches freed partly from the front, partly from the back, a few kept for long: sh6bench.
void sh6(unsigned, double scale) {
  constexpr std::size_t kBatch = 4000;
  Random random(3);
  std::vector<char*> kept;
  std::vector<char*> batch(kBatch);
  for (auto round = static_cast<std::size_t>(2500 * scale); round > 0; --round) {
    for (std::size_t i = 0; i < kBatch; ++i) batch[i] = allocate(1 + (i * 7 + round) % 1000);
    for (std::size_t i = 0; i < kBatch / 2; ++i) {
      std::free(batch[i]);
      if (random.below(100) == 0)
        kept.push_back(batch[kBatch - 1 - i]);
      else
        std::free(batch[kBatch - 1 - i]);
    }
    while (kept.size() > 2000) {
      std::swap(kept[random.below(kept.size())], kept.back());
      std::free(kept.back());
      kept.pop_back();
    }
  }
  for (char* block : kept) std::free(block);
}

// A few blocks of 5 to 25 MiB, replaced at random, all pages written: malloc-large.
void malloc_large(unsigned, double scale) {
  Random random(4);
  std::vector<char*> slots(12);
  for (auto left = static_cast<std::size_t>(400 * scale); left > 0; --left) {
    char*& slot = slots[random.below(slots.size())];
    std::free(slot);
    const std::size_t bytes = random.between(5u << 20, 25u << 20);
    slot = allocate(bytes);
    touch_pages(slot, bytes);
  }
  for (char* slot : slots) std::free(slot);
}

// Many arrays that grow beside each other, as std::vector and string builders make them.
void realloc_growth(unsigned, double scale) {
  struct Growing {
    char* memory = nullptr;
    std::size_t bytes = 0;
  };
  Random random(5);
  std::vector<Growing> arrays(200);
  for (auto left = static_cast<std::size_t>(60'000 * scale); left > 0; --left) {
    Growing& array = arrays[random.below(arrays.size())];
    const std::size_t bytes = array.bytes + 64 + array.bytes / 8;
    if (array.bytes > (std::size_t{2} << 20)) {
      std::free(array.memory);
      array = {};
      continue;
    }
    array.memory = static_cast<char*>(std::realloc(array.memory, bytes));
    if (array.memory == nullptr) std::_Exit(4);
    std::memset(array.memory + array.bytes, 1, bytes - array.bytes);
    array.bytes = bytes;
  }
  for (Growing& array : arrays) std::free(array.memory);
}

// A tree of nodes that is built, searched and pruned: compilers and interpreters.
struct Node {
  Node* left = nullptr;
  Node* right = nullptr;
  std::uint64_t key = 0;
  char* text = nullptr;
};

void drop(Node* node) {
  if (node == nullptr) return;
  drop(node->left);
  drop(node->right);
  std::free(node->text);
  std::free(node);
}

void trees(unsigned, double scale) {
  for (auto round = static_cast<std::size_t>(12 * scale + 1); round > 0; --round) {
    Random random(round);
    Node* root = nullptr;
    for (int i = 0; i < 60'000; ++i) {
      const std::uint64_t key = random.next();
      Node** place = &root;
      while (*place != nullptr) place = key < (*place)->key ? &(*place)->left : &(*place)->right;
      auto* node = reinterpret_cast<Node*>(allocate(sizeof(Node)));
      *node = {nullptr, nullptr, key, allocate(random.between(4, 40))};
      *place = node;
      if (i % 1000 == 999) {  // a branch dies
        Node** branch = &root;
        for (int depth = 0; depth < 6 && *branch != nullptr; ++depth)
          branch = random.below(2) == 0 ? &(*branch)->left : &(*branch)->right;
        drop(*branch);
        *branch = nullptr;
      }
    }
    drop(root);
  }
}

}  // namespace

const std::vector<Program>& single_programs() {
  static const std::vector<Program> programs = {
      {"cfrac", "cfrac: bignums of 16 to 64 bytes that live shortly", cfrac},
      {"alloc-test", "alloc-test: power-law sizes, every byte written", alloc_test},
      {"sh6", "sh6bench: batches freed from both ends, some kept", sh6},
      {"malloc-large", "malloc-large: 5 to 25 MiB, touched", malloc_large},
      {"realloc", "200 arrays growing beside each other", realloc_growth},
      {"trees", "search trees built and pruned, as compilers do", trees},
  };
  return programs;
}

}  // namespace rdmalloc::bench
