// micro_malloc: what single operations of malloc cost, on Google Benchmark, under whatever
// allocator is preloaded. micro_compare runs it under each; by hand:
//
//   LD_PRELOAD=/path/librdmalloc.so micro_malloc --benchmark_filter=pair
//
// Each benchmark counts items: a malloc with its free, or one growth to 16 MiB. What an item costs
// is 1 / items_per_second; of processor time where one thread works, of real time where two do.
#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <rdmalloc/rdmalloc.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bench/micro/threads.h"
#include "bench/support/blocks.h"
#include "bench/support/server_of_malloc.h"

namespace {

using rdmalloc::bench::touch_pages;

// malloc and free of one size, at once: the shortest way through an allocator.
void pair(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    void* memory = std::malloc(bytes);
    benchmark::DoNotOptimize(memory);
    std::free(memory);
  }
  state.SetItemsProcessed(state.iterations());
}

// A run of blocks, freed in the order of their birth.
void fifo(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  std::vector<void*> blocks(count);
  for (auto _ : state) {
    for (void*& block : blocks) block = std::malloc(bytes);
    benchmark::DoNotOptimize(blocks.data());
    for (void* block : blocks) std::free(block);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(count));
}

// A working set in which random blocks are replaced, 16 to 527 bytes each. With `touch` the program
// writes to what it gets, as real ones do: the block's cache line is then fetched anyway.
template <typename Malloc>
void random_set(benchmark::State& state, bool touch, Malloc allocate) {
  const auto count = static_cast<std::size_t>(state.range(0));
  constexpr int kBatch = 1024;
  std::vector<void*> blocks(count);
  rdmalloc::bench::Random random(1);
  const auto replace = [&](std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) {
      const std::uint64_t number = random.next();
      void*& block = blocks[static_cast<std::uint32_t>(number) % count];
      std::free(block);
      block = allocate(16 + (number >> 40) % 512);
      if (touch) *static_cast<volatile char*>(block) = 1;
    }
    benchmark::ClobberMemory();
  };
  replace(8 * count);  // filled, and every page touched once
  for (auto _ : state) replace(kBatch);
  state.SetItemsProcessed(state.iterations() * kBatch);
  for (void* block : blocks) std::free(block);
}

// A function that the allocator has, or has not.
template <typename Function>
Function* in_allocator(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// A heap of the user, under an allocator that has them. Never destroyed: a few for each benchmark.
struct Heap {
  decltype(rdmalloc_heap_malloc)* malloc_in =
      in_allocator<decltype(rdmalloc_heap_malloc)>("rdmalloc_heap_malloc");
  rdmalloc_heap* heap = nullptr;

  Heap() {
    auto* create = in_allocator<decltype(rdmalloc_heap_create)>("rdmalloc_heap_create");
    if (create != nullptr) create(nullptr, &heap);
  }
  void* malloc(std::size_t bytes) const { return malloc_in(heap, bytes); }
};

// pair() and random_set() in a heap; free() takes its blocks.
void heap_pair(benchmark::State& state) {
  const Heap heap;
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    void* memory = heap.malloc(bytes);
    benchmark::DoNotOptimize(memory);
    std::free(memory);
  }
  state.SetItemsProcessed(state.iterations());
}
void heap_random(benchmark::State& state) {
  const Heap heap;
  random_set(state, false, [&](std::size_t bytes) { return heap.malloc(bytes); });
}

// One thread allocates, another frees; the time is that of both together.
void producer_consumer(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  constexpr std::size_t kBlocks = 16384;
  rdmalloc::bench::Ring ring;
  std::thread consumer([&] {
    while (void* block = ring.pop()) std::free(block);
  });
  for (auto _ : state) {
    for (std::size_t i = 0; i < kBlocks; ++i) ring.push(std::malloc(bytes));
    ring.wait_until_empty();
  }
  ring.push(nullptr);
  consumer.join();
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBlocks));
}

// Two threads swap batches: each frees what the other has allocated.
void ping_pong(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto count = static_cast<std::size_t>(state.range(1));
  rdmalloc::bench::Swap swap(count);
  std::thread other([&] {
    while (swap.meet(1)) swap.free_and_allocate(1, bytes);
  });
  swap.free_and_allocate(0, bytes);
  for (auto _ : state) {
    swap.meet(0);
    swap.free_and_allocate(0, bytes);
  }
  swap.stop();
  other.join();
  swap.free_all();
  // In each round both threads free and allocate a batch.
  state.SetItemsProcessed(state.iterations() * 2 * static_cast<std::int64_t>(count));
}

// A buffer is allocated, each of its pages written, and freed. Once before the clock runs: memory
// that a virtual machine has never used before costs its host 50 times what it costs later.
void large(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  if (void* memory = std::malloc(bytes)) {
    touch_pages(memory, bytes);
    std::free(memory);
  }
  for (auto _ : state) {
    void* memory = std::malloc(bytes);
    touch_pages(memory, bytes);
    benchmark::DoNotOptimize(memory);
    std::free(memory);
  }
  state.SetItemsProcessed(state.iterations());
}

// One block grows from 16 bytes (or one step) to 16 MiB; with `touch` each new page is written.
void grow_once(std::size_t step, bool touch) {
  constexpr std::size_t kTarget = std::size_t{16} << 20;
  void* memory = nullptr;
  std::size_t bytes = 0;
  while (bytes < kTarget) {
    const std::size_t next = step != 0 ? bytes + step : (bytes == 0 ? 16 : bytes * 2);
    memory = std::realloc(memory, next);
    if (touch) touch_pages(memory, next, bytes);
    bytes = next;
  }
  benchmark::DoNotOptimize(memory);
  std::free(memory);
}

void grow(benchmark::State& state, std::size_t step, bool touch) {
  // The first time costs the kernel's making of the pages, up to 40 ms in a virtual machine: enough
  // to be the only time that is measured.
  grow_once(step, touch);
  for (auto _ : state) grow_once(step, touch);
  state.SetItemsProcessed(state.iterations());
}

void register_all() {
  for (int bytes : {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 384, 512, 768, 1024, 16384})
    benchmark::RegisterBenchmark("pair", pair)->Arg(bytes);
  benchmark::RegisterBenchmark("fifo", fifo)->Args({100'000, 64});
  using Malloc = void* (*)(std::size_t);
  for (int count : {1'000, 100'000}) {
    benchmark::RegisterBenchmark("random", random_set<Malloc>, false, std::malloc)->Arg(count);
    benchmark::RegisterBenchmark("random_touch", random_set<Malloc>, true, std::malloc)->Arg(count);
  }
  if (Heap().heap != nullptr) {
    for (int bytes : {64, 512, 16384})
      benchmark::RegisterBenchmark("heap_pair", heap_pair)->Arg(bytes);
    for (int count : {1'000, 100'000})
      benchmark::RegisterBenchmark("heap_random", heap_random)->Arg(count);
  }
  benchmark::RegisterBenchmark("producer_consumer", producer_consumer)->Arg(64)->UseRealTime();
  benchmark::RegisterBenchmark("ping_pong", ping_pong)->Args({64, 1000})->UseRealTime();
  benchmark::RegisterBenchmark("ping_pong", ping_pong)->Args({16384, 100})->UseRealTime();
  for (int kib = 64; kib <= 65536; kib *= 4)
    benchmark::RegisterBenchmark("large", large)->Arg(std::int64_t{kib} << 10);
  for (bool touch : {false, true}) {
    const std::string suffix = touch ? "_touch" : "";
    benchmark::RegisterBenchmark(("grow_doubling" + suffix).c_str(), grow, std::size_t{0}, touch);
    benchmark::RegisterBenchmark(("grow_64K_steps" + suffix).c_str(), grow, std::size_t{64} << 10,
                                 touch);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::AddCustomContext("malloc", rdmalloc::bench::server_of_malloc());
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
