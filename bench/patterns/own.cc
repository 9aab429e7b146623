// Patterns in which each thread keeps to its own blocks.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "bench/patterns/patterns.h"
#include "bench/support/mapped.h"

namespace rdmalloc::bench {
namespace {

char* written(void* block) {
  *static_cast<volatile char*>(must_have(block)) = 1;
  return static_cast<char*>(block);
}

// How a block is replaced by another, and how it ends at last. A block of size 0 is none yet.
struct Block {
  char* memory;
  std::size_t bytes;
};

struct Malloc {
  static void replace(Block& block, std::size_t bytes, Random&) {
    std::free(block.memory);
    block.memory = written(std::malloc(bytes));
  }
  static void end(const Block& block) { std::free(block.memory); }
};

struct Filled : Malloc {
  static void replace(Block& block, std::size_t bytes, Random&) {
    std::free(block.memory);
    block.memory = full(bytes);
  }
};

struct Calloc : Malloc {
  static void replace(Block& block, std::size_t bytes, Random&) {
    std::free(block.memory);
    block.memory = written(std::calloc(1, bytes));
  }
};

struct Realloc : Malloc {
  static void replace(Block& block, std::size_t bytes, Random&) {
    block.memory = written(std::realloc(block.memory, bytes));
  }
};

// Alignments of a cache line up to a page.
struct Aligned : Malloc {
  static void replace(Block& block, std::size_t bytes, Random& random) {
    std::free(block.memory);
    const std::size_t alignment = std::size_t{64} << random.below(7);
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes) != 0) memory = nullptr;
    block.memory = written(memory);
  }
};

struct SizedDelete {
  static void replace(Block& block, std::size_t bytes, Random&) {
    end(block);
    block.memory = written(::operator new(bytes));
  }
  static void end(const Block& block) {
    if (block.memory != nullptr) ::operator delete(block.memory, block.bytes);
  }
};

// Random ones of `blocks` are replaced, by random sizes.
template <typename How>
void replace_some(const Shape& shape, Mapped<Block>& blocks, std::size_t count, Random& random) {
  for (std::size_t i = 0; i < count; ++i) {
    Block& block = blocks[random.below(shape.live)];
    const std::size_t bytes = random.between(shape.least, shape.most);
    How::replace(block, bytes, random);
    block.bytes = bytes;
  }
}

template <typename How>
void replace(Team& team) {
  const Shape& shape = team.shape();
  team.run([&](Member& me) {
    Mapped<Block> blocks(shape.live);
    for (Block& block : blocks) {
      block.bytes = me.random.between(shape.least, shape.most);
      How::replace(block, block.bytes, me.random);
    }
    replace_some<How>(shape, blocks, shape.warm_up, me.random);
    me.begin(shape.live + shape.warm_up);
    replace_some<How>(shape, blocks, shape.operations, me.random);
    me.end(shape.operations);
    for (const Block& block : blocks) How::end(block);
  });
}

// Frees some of the live blocks, up to half of them, and then allocates as many again.
void bursts(Team& team) {
  const Shape& shape = team.shape();
  team.run([&](Member& me) {
    Mapped<char*> blocks(shape.live);
    const auto do_some = [&](std::size_t operations) {
      for (std::size_t left = operations; left != 0;) {
        const std::size_t most = shape.live / 2 < left ? shape.live / 2 : left;
        const std::size_t count = most == 0 ? 1 : me.random.between(1, most);
        const std::size_t first = me.random.below(shape.live);
        const auto at = [&](std::size_t i) -> char*& { return blocks[(first + i) % shape.live]; };
        for (std::size_t i = 0; i < count; ++i) std::free(at(i));
        for (std::size_t i = 0; i < count; ++i)
          at(i) = written(std::malloc(me.random.between(shape.least, shape.most)));
        left -= count;
      }
    };
    for (char*& block : blocks)
      block = written(std::malloc(me.random.between(shape.least, shape.most)));
    do_some(shape.warm_up);
    me.begin(shape.live + shape.warm_up);
    do_some(shape.operations);
    me.end(shape.operations);
    for (char* block : blocks) std::free(block);
  });
}

// Threads that live for a few hundred operations, one after the other on each of so many places.
void come_and_go(Team& team) {
  constexpr std::size_t kOperationsOfALife = 300;
  const Shape& shape = team.shape();
  const auto live_once = [&](unsigned seed, std::size_t operations, bool is_measured) {
    Member me(team, seed);
    if (is_measured) me.begin_alone();
    Mapped<Block> blocks(shape.live);
    replace_some<Malloc>(shape, blocks, operations, me.random);
    for (const Block& block : blocks) Malloc::end(block);
    if (is_measured) me.end_alone(operations);
  };
  team.run([&](Member& me) {
    const auto live = [&](std::size_t operations, bool is_measured) {
      for (std::size_t left = operations; left != 0;) {
        const std::size_t now = std::min(left, kOperationsOfALife);
        std::thread(live_once, static_cast<unsigned>(me.random.next()), now, is_measured).join();
        left -= now;
      }
    };
    live(shape.warm_up, false);
    me.begin(shape.warm_up);
    live(shape.operations, true);
    me.end(0);
  });
}

// Threads that have allocated a little, and do nothing more.
void rest(Team& team) {
  team.run([](Member& me) {
    for (int i = 0; i < 10; ++i) std::free(written(std::malloc(me.random.between(16, 1024))));
  });
}

// The two controls of a count of cache lines: what each thread adds to is a line of all, or its
// own. Beside it twenty accesses to memory of its own.
struct alignas(64) Counter {
  std::atomic<std::size_t> value;
};

void add_up(Team& team, bool is_shared) {
  constexpr std::size_t kOwnAccesses = 20;
  const Shape& shape = team.shape();
  Mapped<Counter> counters(shape.threads);
  team.run([&](Member& me) {
    volatile std::size_t own[kOwnAccesses] = {};
    std::atomic<std::size_t>& counter = counters[is_shared ? 0 : me.number].value;
    me.begin(0);
    for (std::size_t i = 0; i < shape.operations; ++i) {
      for (volatile std::size_t& word : own) word = i;
      counter.fetch_add(1, std::memory_order_relaxed);  // nothing is read of it
    }
    me.end(shape.operations);
  });
}
void shared_counter(Team& team) {
  add_up(team, true);
}
void own_counters(Team& team) {
  add_up(team, false);
}

}  // namespace

const std::vector<Pattern>& own_patterns() {
  static const std::vector<Pattern> patterns = {
      {"replace", "free, and malloc of another size", replace<Malloc>},
      {"bursts", "free of up to half of the blocks, and malloc of as many", bursts},
      {"filled", "free, and malloc of another size, all of it written", replace<Filled>},
      {"calloc", "free, and calloc", replace<Calloc>},
      {"realloc", "realloc to another size", replace<Realloc>},
      {"aligned", "free, and posix_memalign to 64 up to 4,096 bytes", replace<Aligned>},
      {"sized-delete", "operator delete with the size, and operator new", replace<SizedDelete>},
      {"come-and-go", "threads that live for 300 replacements, one after the other", come_and_go},
      {"rest", "ten blocks, then nothing", rest},
      {"shared-counter", "no malloc: additions to one counter of all", shared_counter},
      {"own-counters", "no malloc: additions to a counter of its own", own_counters},
  };
  return patterns;
}

}  // namespace rdmalloc::bench
