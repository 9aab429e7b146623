#include <array>
#include <new>

#include "bench/programs/programs.h"
#include "bench/programs/threads.h"

namespace rdmalloc::bench {
namespace {

// Writes to one block for a while, as a counter of a thread: two in one cache line cost dearly.
void work_on(volatile char* block, std::size_t bytes) {
  for (int turn = 0; turn < 200; ++turn)
    for (std::size_t at = 0; at < bytes; ++at) block[at] = static_cast<char>(block[at] + 1);
}

// Blocks of 8 bytes that each thread gets, works on and frees: cache-thrash. Does an allocator put
// blocks of two threads into one line?
void cache_thrash(unsigned threads, double scale) {
  const auto rounds = static_cast<std::size_t>(100'000 * scale / threads + 1);
  in_threads(threads, [=](unsigned) {
    for (std::size_t i = 0; i < rounds; ++i) {
      char* block = allocate(8);
      work_on(block, 8);
      std::free(block);
    }
  });
}

// The same, but each thread begins by freeing a block that another has allocated beside the
// others': cache-scratch. Does an allocator go on with what it was handed?
void cache_scratch(unsigned threads, double scale) {
  const auto rounds = static_cast<std::size_t>(100'000 * scale / threads + 1);
  std::vector<char*> handed_over(threads);
  for (char*& block : handed_over) block = allocate(8);
  in_threads(threads, [=](unsigned number) {
    char* block = handed_over[number];
    for (std::size_t i = 0; i < rounds; ++i) {
      work_on(block, 8);
      std::free(block);
      block = allocate(8);
    }
    std::free(block);
  });
}

// Waves of threads that leave blocks behind; what they left is freed three waves later: mleak, with
// an end to what leaks.
void leaks(unsigned threads, double scale) {
  const auto waves = static_cast<unsigned>(1500 * scale / threads + 3);
  std::array<std::vector<std::vector<char*>>, 3> left;
  for (unsigned wave = 0; wave < waves; ++wave) {
    auto& oldest = left[wave % left.size()];
    for (auto& blocks : oldest)
      for (char* block : blocks) std::free(block);
    oldest.assign(threads, {});
    in_threads(threads, [&](unsigned number) {
      Random random(wave * 131 + number + 1);
      for (int i = 0; i < 500; ++i) {
        char* block = allocate(random.between(8, 3000));
        if (i % 10 == 0)
          oldest[number].push_back(block);
        else
          std::free(block);
      }
    });
  }
  for (auto& wave : left)
    for (auto& blocks : wave)
      for (char* block : blocks) std::free(block);
}

// A small working set of small blocks in each thread, nothing shared: glibc's bench-malloc-thread.
void own_sets(unsigned threads, double scale) {
  const auto count = static_cast<std::size_t>(20e6 * scale / threads);
  in_threads(threads, [=](unsigned number) {
    Random random(number + 17);
    std::array<char*, 4096> slots{};
    for (std::size_t i = 0; i < count; ++i) {
      char*& slot = slots[random.below(slots.size())];
      std::free(slot);
      slot = allocate(random.between(4, 1024));
    }
    for (char* slot : slots) std::free(slot);
  });
}

// larson with what C++ compilers emit: operator new, and delete with the size.
void larson_sized(unsigned threads, double scale) {
  struct Object {
    char* memory = nullptr;
    std::size_t bytes = 0;
  };
  const auto drop = [](const Object& object) {
    if (object.memory != nullptr) ::operator delete(object.memory, object.bytes);
  };
  const auto generations = static_cast<unsigned>(60 * scale + 1);
  in_threads(threads, [=](unsigned number) {
    std::vector<Object> objects(4000);
    for (unsigned generation = 0; generation < generations; ++generation)
      in_threads(1, [&](unsigned) {
        Random random(number * 1000 + generation + 1);
        for (int i = 0; i < 100'000; ++i) {
          Object& object = objects[random.below(objects.size())];
          drop(object);
          object.bytes = random.between(8, 1000);
          object.memory = static_cast<char*>(::operator new(object.bytes));
          object.memory[0] = object.memory[object.bytes - 1] = 1;
        }
      });
    for (const Object& object : objects) drop(object);
  });
}

}  // namespace

const std::vector<Program>& sharing_programs() {
  static const std::vector<Program> programs = {
      {"cache-thrash", "cache-thrash: 8 bytes for each thread, written all the time", cache_thrash},
      {"cache-scratch", "cache-scratch: the same, begun with another thread's block",
       cache_scratch},
      {"leaks", "mleak: threads that end and leave blocks behind", leaks},
      {"own-sets", "glibc-thread: each thread its own small working set", own_sets},
      {"larson-sized", "larson with operator new and sized delete", larson_sized},
  };
  return programs;
}

}  // namespace rdmalloc::bench
