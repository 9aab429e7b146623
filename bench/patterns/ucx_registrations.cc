// ucx_patterns PATTERN [OPTION...]: as reg_patterns, with UCX's cache in place of ours. What it is
// told to register is never registered, as there.
#include <cstdio>
#include <cstdlib>

#include "bench/patterns/cli.h"
#include "bench/regcache/ucx_cache.h"
#include "bench/support/mapped.h"

namespace rdmalloc::bench {
namespace {

// _Exit: the other threads wait for this one.
[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "ucx_patterns: %s\n", what);
  std::_Exit(1);
}

void get_and_put(UcxCache& cache, void* block, std::size_t length) {
  ucs_rcache_region_t* region = cache.get(block, length);
  if (region == nullptr) fail("ucs_rcache_get");
  cache.put(region);
}

// A miss each time: what it registers is closed and deregistered at once.
void miss(UcxCache& cache, void* block, std::size_t length) {
  ucs_rcache_region_t* region = cache.get(block, length);
  if (region == nullptr) fail("ucs_rcache_get");
  cache.invalidate(region);
  cache.put(region);
}

enum class What { kHit, kOneForAll, kMiss, kHitBesideMiss };

template <What kWhat>
void live_blocks(Team& team) {
  const Shape& shape = team.shape();
  UcxCache cache(false);
  if (!cache.problem().empty()) fail(cache.problem().c_str());
  Mapped<char*> of_all(1);
  team.run([&](Member& me) {
    Mapped<char*> blocks(shape.live);
    for (char*& block : blocks) block = must_have(std::malloc(shape.least));
    if (me.number == 0) of_all[0] = blocks[0];
    me.meet_unmeasured();
    const bool does_miss =
        kWhat == What::kMiss || (kWhat == What::kHitBesideMiss && me.number == 0);
    const auto ask_some = [&](std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) {
        char* block = kWhat == What::kOneForAll ? of_all[0] : blocks[me.random.below(shape.live)];
        does_miss ? miss(cache, block, shape.least) : get_and_put(cache, block, shape.least);
      }
    };
    if (!does_miss)
      for (char* block : blocks) get_and_put(cache, block, shape.least);
    ask_some(shape.warm_up);
    me.begin(does_miss ? shape.warm_up : shape.live + shape.warm_up);
    ask_some(shape.operations);
    me.end(shape.operations);
    me.meet_unmeasured();  // the block of all is the first thread's to free
    for (char* block : blocks) std::free(block);
  });
}

const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {"ucx-get-put", "ucs_rcache_get and _put of own blocks", live_blocks<What::kHit>},
      {"ucx-one-for-all", "the same of one block, all threads", live_blocks<What::kOneForAll>},
      {"ucx-miss", "ucs_rcache_get, _invalidate and _put of own blocks", live_blocks<What::kMiss>},
      {"ucx-hit-beside-miss", "the same on the first thread, the others get and put own blocks",
       live_blocks<What::kHitBesideMiss>},
  };
  return all;
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::run_pattern(argc, argv, "ucx_patterns", rdmalloc::bench::patterns());
}
