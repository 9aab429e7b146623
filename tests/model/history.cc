#include "tests/model/history.h"

#include <stdio.h>
#include <stdlib.h>

#include <random>

namespace model {
namespace {

struct Name {
  const char* name;
  unsigned weight;
};
constexpr Name kNames[] = {
    {"allocate", 60},
    {"free", 40},
    {"reallocate", 8},
    {"get", 60},
    {"get-and-put", 60},
    {"put", 60},
    {"key", 50},
    {"shared", 60},
    {"invalidate", 24},
    {"invalidate-shared", 16},
    {"invalidate-all", 4},
    {"flush", 4},
    {"purge", 16},
    {"pause", 3},
    {"lose", 1},
    {"close", 6},
    {"abandon", 2},
    {"open", 12},
    {"quiesce", 3},
    {"heap-create", 8},
    {"heap-destroy", 6},
    {"heap-abandon", 2},
    {"heap-grow", 3},
    {"heap-block", 10},
    {"heap-key", 12},
    {"heap-get", 12},
    {"pool-create", 3},
    {"pool-use", 8},
    {"pool-destroy", 3},
    {"prefault", 3},
    {"adopt", 6},
    {"disown", 5},
    {"foreign", 16},
    {"stats", 4},
    {"row", 8},
    {"burst", 4},
    {"hand", 12},
    {"thread", 3},
    {"decay", 4},
    {"fork", 1},
};
static_assert(std::size(kNames) == static_cast<std::size_t>(Kind::kCount));

}  // namespace

const char* name_of(Kind kind) {
  return kNames[static_cast<std::size_t>(kind)].name;
}

namespace {

// Whether it has a part in an aimed history.
bool is_aimed_at(Kind kind) {
  switch (kind) {
    case Kind::kAllocate:
    case Kind::kFree:
    case Kind::kGet:
    case Kind::kGetAndPut:
    case Kind::kPut:
    case Kind::kKey:
    case Kind::kShared:
    case Kind::kInvalidate:
    case Kind::kInvalidateShared:
    case Kind::kInvalidateAll:
    case Kind::kFlush:
    case Kind::kPurge:
    case Kind::kOpen:
    case Kind::kHeapCreate:
    case Kind::kHeapDestroy:
    case Kind::kHeapGrow:
    case Kind::kHeapBlock:
    case Kind::kHeapGet:
    case Kind::kStats:
    case Kind::kRow:
    case Kind::kBurst:
    case Kind::kHand:
    case Kind::kDecay:
      return true;
    default:
      return false;
  }
}

}  // namespace

History History::of_seed(std::uint64_t seed, bool is_aimed) {
  History made;
  made.seed = seed;
  made.is_aimed = is_aimed;
  std::mt19937_64 random(seed);
  std::vector<unsigned> weights;
  for (const Name& name : kNames) {
    bool has_part = !is_aimed || is_aimed_at(static_cast<Kind>(weights.size()));
    weights.push_back(has_part ? name.weight : 0);
  }
  if (is_aimed) weights[static_cast<std::size_t>(Kind::kInvalidateAll)] = 30;
  // Some histories are of few kinds, so that what is rare in all of them is frequent in some.
  if (random() % 2 == 0)
    for (unsigned& weight : weights)
      if (weight != 0) weight = random() % 3 == 0 ? weight * 4 + 2 : weight / 4;
  std::discrete_distribution<unsigned> kinds(weights.begin(), weights.end());
  made.threads.resize(2 + random() % 3);
  std::size_t length = 40 + random() % 300;
  for (auto& thread : made.threads)
    for (std::size_t i = 0; i < length; ++i)
      thread.push_back({static_cast<Kind>(kinds(random)), static_cast<std::uint32_t>(random()),
                        static_cast<std::uint32_t>(random()),
                        static_cast<std::uint32_t>(random())});
  return made;
}

std::size_t History::operations() const {
  std::size_t sum = 0;
  for (auto& thread : threads) sum += thread.size();
  return sum;
}

std::string History::text() const {
  std::string all;
  char line[120];
  for (std::size_t i = 0; i < threads.size(); ++i) {
    for (const Operation& one : threads[i]) {
      snprintf(line, sizeof line, "  thread %zu: %s %u %u %u\n", i, name_of(one.kind), one.a, one.b,
               one.c);
      all += line;
    }
  }
  return all;
}

}  // namespace model
