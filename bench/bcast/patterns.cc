#include "bench/bcast/patterns.h"

#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>

#include "bench/bcast/payload.h"
#include "bench/support/registrations.h"
#include "bench/support/resident.h"

namespace rdmalloc::bench {
namespace {

double now_us() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// What is counted and not timed, of this rank so far.
struct Counts {
  long page_faults, registrations;
  double kernel_us;
};
Counts counts_so_far() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {usage.ru_minflt + usage.ru_majflt, watched_registrations_so_far(),
          static_cast<double>(usage.ru_stime.tv_sec) * 1e6 +
              static_cast<double>(usage.ru_stime.tv_usec)};
}

// Adds to the series what was counted since `start`.
void add_counts(Series& series, const Counts& start) {
  const Counts now = counts_so_far();
  series.page_faults += now.page_faults - start.page_faults;
  series.registrations += now.registrations - start.registrations;
  series.kernel_us += now.kernel_us - start.kernel_us;
  series.huge_pages = static_cast<long>(huge_bytes() >> 21);
}

// The compiler must not see that what was allocated is never read.
void keep(void* memory) {
  asm volatile("" : : "r"(memory) : "memory");
}

// The same numbers on every rank and under every allocator.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return payload_seed(state_++); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace

void* Patterns::allocate(std::size_t bytes, Times& times) {
  const double start = now_us();
  void* memory = std::malloc(bytes);
  keep(memory);
  times.malloc_us = now_us() - start;
  if (memory == nullptr) {
    std::fprintf(stderr, "bcast_worker: rank %d: malloc(%zu) failed\n", rank_, bytes);
    MPI_Abort(MPI_COMM_WORLD, 4);
  }
  return memory;
}

void Patterns::release(void* memory, Times& times) {
  const double start = now_us();
  std::free(memory);
  times.free_us = now_us() - start;
}

void Patterns::verify(const void* memory, std::size_t bytes, std::uint64_t seed, Series& series) {
  if (payload_is_right(memory, bytes, seed)) return;
  const PayloadErrors errors = payload_errors(memory, bytes, seed);
  if (series.wrong_bytes == 0) series.wrong_offset = errors.first_offset;
  series.wrong_bytes += errors.wrong_bytes;
}

void Patterns::inject_fault(void* memory, std::size_t bytes) {
  if (options_.fault == Fault::none || rank_ != ranks_ - 1 || broadcasts_ % 4 != 3) return;
  if (options_.fault == Fault::corrupt_byte) static_cast<unsigned char*>(memory)[bytes / 2] ^= 0x10;
  if (options_.fault == Fault::crash) std::raise(SIGSEGV);
  while (options_.fault == Fault::hang) sleep(1);
}

// The barrier is outside the timed section: without it a receiver's MPI_Bcast would hold the time
// that the root needs for writing. The check is outside as well. Returns the payload's seed.
std::uint64_t Patterns::broadcast(void* memory, std::size_t bytes, Times& times, Series& series) {
  const std::uint64_t seed = payload_seed(broadcasts_);
  if (rank_ == 0) {
    const double start = now_us();
    payload_write(memory, bytes, seed);
    times.write_us = now_us() - start;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  watch_registrations(memory, bytes);
  const double start = now_us();
  MPI_Bcast(memory, static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD);
  times.bcast_us = now_us() - start;
  watch_registrations(nullptr, 0);
  inject_fault(memory, bytes);
  ++broadcasts_;
  verify(memory, bytes, seed, series);
  return seed;
}

void Patterns::one_fresh(std::size_t bytes, Series& series, bool record) {
  Times times;
  void* memory = allocate(bytes, times);
  broadcast(memory, bytes, times, series);
  release(memory, times);
  if (!record) return;
  series.bcast_us.push_back(times.bcast_us);
  series.cycle_us.push_back(times.cycle_us());
}

int Patterns::count_for(std::size_t bytes, std::size_t total_bytes, int least, int most) const {
  const double wanted = options_.scale * static_cast<double>(total_bytes / bytes);
  const double cap = std::max<double>(least, options_.scale * most);
  return static_cast<int>(std::clamp<double>(wanted, least, cap));
}

// Both in one process, block by block in turn, so that their ratio holds neither the differences
// between two processes nor the drift of the machine. The reused buffer lives throughout.
void Patterns::fresh_and_reused(std::size_t bytes, bool fresh, bool reused, Emit emit,
                                void* argument) {
  constexpr int kBlocks = 4;
  constexpr int kWarmUps = 2;  // connections, the first touch of the pools of MPI
  const int per_block =
      std::max(1, count_for(bytes, std::size_t{320} << 20, kBlocks * 2, 240) / kBlocks);
  Series fresh_series{.pattern = "fresh", .bytes = bytes};
  Series reused_series{.pattern = "reused", .bytes = bytes};
  Times times;
  void* buffer = reused ? allocate(bytes, times) : nullptr;
  for (int i = 0; i < kWarmUps; ++i) {
    if (reused) broadcast(buffer, bytes, times, reused_series);
    if (fresh) one_fresh(bytes, fresh_series, false);
  }
  for (int block = 0; block < kBlocks; ++block) {
    const Counts fresh_start = counts_so_far();
    for (int i = 0; fresh && i < per_block; ++i) one_fresh(bytes, fresh_series, true);
    add_counts(fresh_series, fresh_start);
    const Counts reused_start = counts_so_far();
    for (int i = 0; reused && i < per_block; ++i) {
      Times again;
      broadcast(buffer, bytes, again, reused_series);
      reused_series.bcast_us.push_back(again.bcast_us);
      reused_series.cycle_us.push_back(again.cycle_us());
    }
    add_counts(reused_series, reused_start);
  }
  std::free(buffer);
  if (fresh) emit(fresh_series, argument);
  if (reused) emit(reused_series, argument);
}

// Many live buffers, each broadcast once; all checked again before they are freed.
void Patterns::growing(std::size_t bytes, Emit emit, void* argument) {
  const int count = count_for(bytes, std::size_t{256} << 20, 4, 256);
  Series series{.pattern = "growing", .bytes = bytes};
  std::vector<LiveBuffer> live;
  live.reserve(static_cast<std::size_t>(count));
  const Counts start = counts_so_far();
  for (int i = 0; i < count; ++i) {
    LiveBuffer buffer{};
    buffer.memory = allocate(bytes, buffer.times);
    buffer.seed = broadcast(buffer.memory, bytes, buffer.times, series);
    live.push_back(buffer);
  }
  add_counts(series, start);
  if (options_.fault != Fault::corrupt_byte)  // reported at the broadcast already
    for (const LiveBuffer& buffer : live) verify(buffer.memory, bytes, buffer.seed, series);
  for (LiveBuffer& buffer : live) {
    release(buffer.memory, buffer.times);
    series.bcast_us.push_back(buffer.times.bcast_us);
    series.cycle_us.push_back(buffer.times.cycle_us());
  }
  emit(series, argument);
}

// Sizes from 64 KiB to 32 MiB, each doubling equally likely, any number of bytes.
void Patterns::mixed(Emit emit, void* argument) {
  constexpr double kSmallest = 64 << 10;
  constexpr double kDoublings = 9;
  const int count = std::max(8, static_cast<int>(64 * options_.scale));
  Random random(2025);
  Series series{.pattern = "mixed"};
  one_fresh(1 << 20, series, false);
  const Counts start = counts_so_far();
  for (int i = 0; i < count; ++i)
    one_fresh(static_cast<std::size_t>(kSmallest * std::exp2(kDoublings * random.uniform())),
              series, true);
  add_counts(series, start);
  emit(series, argument);
}

// What a program does between its broadcasts: bursts of small and middle blocks, with rests in
// which a purge thread has its turn. Not timed.
void Patterns::allocate_other_things(int milliseconds) {
  constexpr int kBurst = 500;
  Random random(77);
  std::array<void*, 1024> slots{};
  const double end = now_us() + milliseconds * 1e3;
  while (now_us() < end) {
    for (int i = 0; i < kBurst; ++i) {
      void*& slot = slots[random.next() % slots.size()];
      std::free(slot);
      const std::size_t bytes = 16 + random.next() % (std::size_t{1} << (5 + random.next() % 12));
      slot = std::malloc(bytes);
      if (slot != nullptr) *static_cast<char*>(slot) = 1;
      keep(slot);
    }
    usleep(5000);
  }
  for (void* slot : slots) std::free(slot);
}

// Groups of fresh broadcasts of every size, a long pause before each but the first. What is
// recorded comes after a pause.
void Patterns::phases(Emit emit, void* argument) {
  const int groups = options_.scale < 1 ? 2 : 3;
  constexpr int kBroadcasts = 4;
  std::map<std::size_t, Series> all;
  for (int group = 0; group < groups; ++group) {
    if (group > 0) allocate_other_things(options_.pause_ms);
    for (std::size_t bytes : options_.sizes) {
      Series& series = all[bytes];
      series.pattern = "phases";
      series.bytes = bytes;
      const Counts start = counts_so_far();
      for (int i = 0; i < kBroadcasts; ++i) {
        one_fresh(bytes, series, group > 0);
        if (group > 0 && i == 0) series.after_pause_us.push_back(series.bcast_us.back());
      }
      if (group > 0) add_counts(series, start);
    }
  }
  for (const auto& [bytes, series] : all) emit(series, argument);
}

void Patterns::run(Emit emit, void* argument) {
  const auto wanted = [&](const char* name) {
    return std::find(options_.patterns.begin(), options_.patterns.end(), name) !=
           options_.patterns.end();
  };
  if (wanted("fresh") || wanted("reused"))
    for (std::size_t bytes : options_.sizes)
      fresh_and_reused(bytes, wanted("fresh"), wanted("reused"), emit, argument);
  if (wanted("growing"))
    for (std::size_t bytes : options_.sizes) growing(bytes, emit, argument);
  if (wanted("mixed")) mixed(emit, argument);
  if (wanted("phases")) phases(emit, argument);
}

}  // namespace rdmalloc::bench
