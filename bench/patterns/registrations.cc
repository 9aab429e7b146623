// reg_patterns PATTERN [OPTION...]: as thread_patterns, with a registration cache in each
// operation. Registrars do nothing: what is measured is the cache's side alone.
#include <rdmalloc/regcache.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "bench/patterns/cli.h"
#include "bench/regcache/stub_domain.h"
#include "bench/support/mapped.h"

namespace rdmalloc::bench {
namespace {

// _Exit: the other threads wait for this one.
void must_be_0(int status, const char* what) {
  if (status == 0) return;
  std::fprintf(stderr, "reg_patterns: %s: error %d\n", what, -status);
  std::_Exit(1);
}

char* born(const Shape& shape, Random& random) {
  return must_have(std::malloc(random.between(shape.least, shape.most)));
}

// What is asked of the cache for a block; where nothing else is said its first byte stands for all.
void key_of(rdmalloc_domain* domain, void* block, std::size_t length = 1) {
  rdmalloc_key key;
  must_be_0(rdmalloc_reg_key(domain, block, length, RDMALLOC_ACCESS_LOCAL, &key),
            "rdmalloc_reg_key");
}

void get_and_put(rdmalloc_domain* domain, void* block, std::size_t length = 1) {
  rdmalloc_reg* registration = nullptr;
  must_be_0(rdmalloc_reg_get(domain, block, length, RDMALLOC_ACCESS_LOCAL, &registration),
            "rdmalloc_reg_get");
  rdmalloc_reg_put(registration);
}

// A miss each time: what it registers is closed and deregistered at once.
void miss(rdmalloc_domain* domain, void* block, std::size_t length) {
  get_and_put(domain, block);
  if (rdmalloc_invalidate(domain, block, length, nullptr, nullptr) != 1)
    must_be_0(-1, "rdmalloc_invalidate");
}

using Ask = void (*)(rdmalloc_domain*, void*, std::size_t);

// Random ones of the thread's own live blocks, or of the first thread's alone.
template <Ask kAsk, bool kIsOneForAll>
void live_blocks(Team& team) {
  const Shape& shape = team.shape();
  const StubDomain domain;
  must_be_0(domain.error(), "rdmalloc_domain_open");
  Mapped<char*> of_all(1);
  team.run([&](Member& me) {
    Mapped<char*> blocks(shape.live);
    for (char*& block : blocks) block = born(shape, me.random);
    if (me.number == 0) of_all[0] = blocks[0];
    me.meet_unmeasured();
    const auto ask_some = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i)
        kAsk(domain.get(), kIsOneForAll ? of_all[0] : blocks[me.random.below(shape.live)], 1);
    };
    for (char* block : blocks) kAsk(domain.get(), block, 1);
    ask_some(shape.warm_up);
    me.begin(shape.live + shape.warm_up);
    ask_some(shape.operations);
    me.end(shape.operations);
    me.meet_unmeasured();  // the block of all is the first thread's to free
    for (char* block : blocks) std::free(block);
  });
}

// malloc, what is asked, free; among other live blocks. Of whole ones it tells how many were
// registered: that goes by where they come to lie.
template <Ask kAsk, bool kAreWhole = false>
void fresh_blocks(Team& team) {
  const Shape& shape = team.shape();
  const StubDomain domain;
  must_be_0(domain.error(), "rdmalloc_domain_open");
  team.run([&](Member& me) {
    Mapped<char*> blocks(shape.live);
    const auto replace_some = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        char*& block = blocks[me.random.below(shape.live)];
        std::free(block);
        const std::size_t bytes = me.random.between(shape.least, shape.most);
        block = must_have(std::malloc(bytes));
        kAsk(domain.get(), block, kAreWhole ? bytes : 1);
      }
    };
    replace_some(shape.warm_up);
    me.begin(shape.warm_up);
    replace_some(shape.operations);
    me.end(shape.operations);
    for (char* block : blocks) std::free(block);
  });
  if (kAreWhole)
    std::printf("{\"registrations\":%llu}\n",
                static_cast<unsigned long long>(domain.counters().registrations));
}

// A miss each time, in a domain at its limit: half as many are registered as one thread has blocks,
// of all threads together, so what is asked for in turn was evicted since.
void evictions(Team& team) {
  const Shape& shape = team.shape();
  const StubDomain domain(0, std::max<std::size_t>(shape.live / 2, shape.threads));
  must_be_0(domain.error(), "rdmalloc_domain_open");
  team.run([&](Member& me) {
    Mapped<char*> blocks(shape.live);
    for (char*& block : blocks) block = born(shape, me.random);
    const auto ask_some = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) get_and_put(domain.get(), blocks[i % shape.live]);
    };
    ask_some(shape.warm_up);
    me.begin(shape.warm_up);
    ask_some(shape.operations);
    me.end(shape.operations);
    for (char* block : blocks) std::free(block);
  });
}

// The first `kMissing` threads miss on blocks of their own, the others hit on theirs.
template <unsigned kMissing>
void misses(Team& team) {
  const Shape& shape = team.shape();
  const StubDomain domain;
  must_be_0(domain.error(), "rdmalloc_domain_open");
  team.run([&](Member& me) {
    Mapped<char*> blocks(shape.live);
    for (char*& block : blocks) block = born(shape, me.random);
    const bool does_miss = me.number < kMissing;
    const auto ask_some = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        char* block = blocks[me.random.below(shape.live)];
        does_miss ? miss(domain.get(), block, shape.least) : get_and_put(domain.get(), block);
      }
    };
    if (!does_miss)
      for (char* block : blocks) get_and_put(domain.get(), block);
    ask_some(shape.warm_up);
    me.begin(does_miss ? shape.warm_up : shape.live + shape.warm_up);
    ask_some(shape.operations);
    me.end(shape.operations);
    for (char* block : blocks) std::free(block);
  });
}

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {"reg-key", "rdmalloc_reg_key of own blocks", live_blocks<key_of, false>},
      {"reg-get-put", "rdmalloc_reg_get and _put of own blocks", live_blocks<get_and_put, false>},
      {"reg-one-for-all", "rdmalloc_reg_get and _put of one block, all threads",
       live_blocks<get_and_put, true>},
      {"reg-miss", "rdmalloc_reg_get, _put and _invalidate of own blocks", misses<UINT_MAX>},
      {"reg-hit-beside-miss", "the same on the first thread, the others get and put own blocks",
       misses<1>},
      {"reg-evict", "rdmalloc_reg_get and _put of own blocks, each evicting one", evictions},
      {"reg-fresh", "free, malloc, rdmalloc_reg_get and _put", fresh_blocks<get_and_put>},
      {"reg-fresh-key", "free, malloc, rdmalloc_reg_key", fresh_blocks<key_of>},
      {"reg-fresh-whole", "free, malloc, rdmalloc_reg_get and _put of all of it; registrations",
       fresh_blocks<get_and_put, true>},
  };
  return all;
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::run_pattern(argc, argv, "reg_patterns", rdmalloc::bench::patterns());
}
