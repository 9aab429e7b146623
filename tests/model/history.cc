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
    {"allocate", 60},      {"free", 40},
    {"reallocate", 8},     {"get", 60},
    {"get-and-put", 60},   {"put", 60},
    {"key", 50},           {"shared", 60},
    {"invalidate", 24},    {"invalidate-shared", 16},
    {"invalidate-all", 4}, {"flush", 4},
    {"purge", 16},         {"pause", 3},
    {"lose", 1},           {"close", 6},
    {"abandon", 2},        {"open", 12},
    {"quiesce", 3},        {"heap-create", 8},
    {"heap-destroy", 6},   {"heap-abandon", 2},
    {"heap-grow", 3},      {"heap-block", 10},
    {"heap-key", 12},      {"heap-get", 12},
    {"pool-create", 3},    {"pool-use", 8},
    {"pool-destroy", 3},   {"prefault", 3},
    {"adopt", 6},          {"disown", 5},
    {"foreign", 16},       {"stats", 4},
    {"fork", 1},
};
static_assert(std::size(kNames) == static_cast<std::size_t>(Kind::kCount));

}  // namespace

const char* name_of(Kind kind) {
  return kNames[static_cast<std::size_t>(kind)].name;
}

History History::of_seed(std::uint64_t seed) {
  History made;
  made.seed = seed;
  std::mt19937_64 random(seed);
  std::vector<unsigned> weights;
  for (const Name& name : kNames) weights.push_back(name.weight);
  // Some histories are of few kinds, so that what is rare in all of them is frequent in some.
  if (random() % 2 == 0)
    for (unsigned& weight : weights) weight = random() % 3 == 0 ? weight * 4 + 2 : weight / 4;
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
