// micro_keys: what a look-up in the registration cache costs, on Google Benchmark. The registrar is
// a stub that registers at once: measured is our side alone, hits only. With 1, 1,000 and 100,000
// live registrations, each over a large block of its own; of them `hot` asks for always the same
// one, `random` for any: the difference is what the processor's caches cost.
//
// For the uncounted key of owned memory, rdmalloc_reg_key, and for a counted registration,
// rdmalloc_reg_get with its rdmalloc_reg_put.
#include <benchmark/benchmark.h>
#include <rdmalloc/regcache.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "bench/regcache/stub_domain.h"

namespace {

constexpr std::size_t kBlockBytes = 128 << 10;  // more than a slice: a span for each

// A domain with `count` blocks registered in it, in random order of their addresses.
class Registered {
 public:
  explicit Registered(std::size_t count) : error_(domain_.error()) {
    while (error_ == 0 && blocks_.size() < count) {
      void* block = rdmalloc_malloc(kBlockBytes);
      if (block == nullptr) error_ = -ENOMEM;
      if (error_ != 0) break;
      blocks_.push_back(block);
      rdmalloc_key key{};
      error_ = rdmalloc_reg_key(domain_.get(), block, kBlockBytes, RDMALLOC_ACCESS_LOCAL, &key);
    }
    std::shuffle(blocks_.begin(), blocks_.end(), std::mt19937_64(1));
  }
  ~Registered() {
    for (void* block : blocks_) rdmalloc_free(block);
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  int error() const { return error_; }
  rdmalloc_domain* domain() const { return domain_.get(); }
  std::uint64_t registrations() const { return domain_.counters().registrations; }
  const std::vector<void*>& blocks() const { return blocks_; }

 private:
  rdmalloc::bench::StubDomain domain_;
  int error_ = 0;
  std::vector<void*> blocks_;
};

// Google Benchmark calls a benchmark several times to find its length: one set for all of them.
const Registered* registered(benchmark::State& state) {
  static std::unique_ptr<Registered> current;
  const auto count = static_cast<std::size_t>(state.range(0));
  if (current == nullptr || current->blocks().size() != count) {
    current.reset();
    current = std::make_unique<Registered>(count);
  }
  if (current->error() == 0) return current.get();
  state.SkipWithError(rdmalloc_strerror(current->error()));
  return nullptr;
}

// Runs `look_up(block)` over hot or random blocks; an error, or a call of the registrar, fails it.
template <typename LookUp>
void measure(benchmark::State& state, bool random, LookUp look_up) {
  constexpr std::size_t kBatch = 256;
  const Registered* set = registered(state);
  if (set == nullptr) return;
  const std::vector<void*>& blocks = set->blocks();
  const std::uint64_t before = set->registrations();
  std::size_t next = 0;
  int error = 0;
  for (auto _ : state)
    for (std::size_t i = 0; i < kBatch; ++i) {
      error |= look_up(set->domain(), blocks[next]);
      if (random && ++next == blocks.size()) next = 0;
    }
  if (error != 0) state.SkipWithError("a look-up failed");
  if (set->registrations() != before) state.SkipWithError("a look-up was no hit");
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

void key(benchmark::State& state, bool random) {
  measure(state, random, [](rdmalloc_domain* domain, void* block) {
    rdmalloc_key found;
    const int error = rdmalloc_reg_key(domain, block, 4096, RDMALLOC_ACCESS_LOCAL, &found);
    benchmark::DoNotOptimize(found);
    return error;
  });
}

void get_put(benchmark::State& state, bool random) {
  measure(state, random, [](rdmalloc_domain* domain, void* block) {
    rdmalloc_reg* registration = nullptr;
    const int error = rdmalloc_reg_get(domain, block, 4096, RDMALLOC_ACCESS_LOCAL, &registration);
    benchmark::DoNotOptimize(registration);
    rdmalloc_reg_put(registration);
    return error;
  });
}

}  // namespace

int main(int argc, char** argv) {
  // Set by set, since making the largest takes longest.
  for (int count : {1, 1'000, 100'000}) {
    benchmark::RegisterBenchmark("key_hot", key, false)->Arg(count);
    benchmark::RegisterBenchmark("key_random", key, true)->Arg(count);
    benchmark::RegisterBenchmark("get_put_hot", get_put, false)->Arg(count);
    benchmark::RegisterBenchmark("get_put_random", get_put, true)->Arg(count);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
