// One history: what several threads do with the registration cache, as lists of operations, and the
// process that lives through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace model {

// What an operation means of its three numbers, history.cc says.
enum class Kind : std::uint8_t {
  kAllocate,
  kFree,
  kReallocate,
  kGet,
  kGetAndPut,
  kPut,
  kKey,
  kShared,
  kInvalidate,
  kInvalidateShared,
  kInvalidateAll,
  kFlush,
  kPurge,
  kPause,
  kLose,
  kClose,
  kAbandon,
  kOpen,
  kQuiesce,
  kHeapCreate,
  kHeapDestroy,
  kHeapAbandon,
  kHeapGrow,
  kHeapBlock,
  kHeapKey,
  kHeapGet,
  kPoolCreate,
  kPoolUse,
  kPoolDestroy,
  kPrefault,
  kAdopt,
  kDisown,
  kForeign,
  kStats,
  kRow,
  kBurst,
  kHand,
  kThread,
  kDecay,
  kFork,
  kCount,
};
const char* name_of(Kind kind);

struct Operation {
  Kind kind;
  std::uint32_t a, b, c;
};

struct History {
  std::uint64_t seed = 0;
  // Of invalidations of wide ranges beside gets, keys and registered heaps, with a registrar that
  // fails often.
  bool is_aimed = false;
  std::vector<std::vector<Operation>> threads;

  static History of_seed(std::uint64_t seed, bool is_aimed);
  std::size_t operations() const;
  std::string text() const;
};

// Lives through it and ends the process: 0, or kFailed after a line that says what was wrong.
[[noreturn]] void live(const History& history);

}  // namespace model
