// latency_worker: every call of malloc, free, calloc and realloc timed alone, under whatever
// allocator is preloaded. latency_compare runs it under each; by hand:
//
//   LD_PRELOAD=/path/librdmalloc.so latency_worker --sizes 64,4096 --scale 0.1
//
// Prints who serves malloc, then a JSON object for each row. A thread's round is
//
//   birth          malloc or calloc, a batch of blocks, each written
//   hand-over      where there are several threads: each goes on with its neighbour's batch
//   growth         where realloc is timed, by an eighth and to the double in turn
//   end            free
//
// and nothing but the call stands between two readings of the clock. What the clock itself takes,
// the median of intervals with no call in them, is subtracted from each.
#include <getopt.h>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "bench/latency/clock.h"
#include "bench/latency/histogram.h"
#include "bench/latency/working_set.h"
#include "bench/micro/threads.h"
#include "bench/support/server_of_malloc.h"

namespace rdmalloc::bench {
namespace {

constexpr std::size_t kBatch = 64;
// A batch of large blocks is shorter: what lives at once is to fit any machine.
constexpr std::size_t kBatchBytes = std::size_t{16} << 20;
constexpr std::size_t kShortestBatch = 4;

// A thousand of each, since fewer have no p99.9; beyond that, up to so many, as long as they come
// to a GiB.
constexpr double kSamplesLeast = 1000;
constexpr double kSamplesMost = 100'000;
constexpr double kSampledBytes = 1 << 30;

struct Options {
  unsigned threads = 2;
  double scale = 1;
  std::vector<std::size_t> sizes = {16, 64, 1024, 16 << 10, 256 << 10, 4 << 20};
};

// What a run times.
enum class Timed { nothing, malloc_and_free, calloc, realloc };

struct Run {
  Timed timed;
  std::size_t bytes;
  bool is_mixed;
  unsigned threads;
  std::size_t batch;
  std::size_t rounds;
};

struct Timer {
  Ticks cost = 0;
  Ticks step = 1;  // intervals that differ do so by this at least: some counters go on by 26
  double ns_per_tick = 1;
};

// A thread's own; its neighbour reads the batches.
struct alignas(64) Seat {
  Histogram birth;
  Histogram end;
  Histogram stayed;  // growth that gave the same address
  Histogram moved;
  MixedSet set;
  // Two in turn: a thread may fill the one while its neighbour frees the other.
  std::array<std::array<void*, kBatch>, 2> batches;
};

// Where all threads meet. Spins: a thread that slept would find its caches cold.
class Meeting {
 public:
  explicit Meeting(unsigned threads) : threads_(threads) {}
  // `round` counts the caller's meetings, from 1.
  void meet(std::size_t round) {
    arrived_.fetch_add(1, std::memory_order_acq_rel);  // the batch goes over with it
    // Pairs with the others' fetch_add.
    spin_until([&] { return arrived_.load(std::memory_order_acquire) >= round * threads_; });
  }

 private:
  const unsigned threads_;
  std::atomic<std::size_t> arrived_{0};
};

Timer timer;  // set before the first thread starts

// The time of `call` alone. Two clocks that disagree, or a call quicker than the clock, count as 0.
template <typename Call>
Ticks time_of(Call call) {
  const Ticks before = ticks_before();
  call();
  const Ticks after = ticks_after();
  return after > before + timer.cost ? after - before - timer.cost : 0;
}

class Worker {
 public:
  Worker(const Run& run, Mapped<Seat>& seats, Meeting& meeting, unsigned number)
      : run_(run),
        meeting_(meeting),
        seat_(seats[number]),
        neighbour_(seats[(number + 1) % run.threads]),
        random_(number) {}

  void work() {
    if (run_.is_mixed) seat_.set.fill(random_);
    const std::size_t warm_up = 2 + run_.rounds / 10;
    for (std::size_t round = 0; round < warm_up + run_.rounds; ++round) {
      if (round == warm_up) forget();
      if (run_.timed == Timed::nothing)
        idle();
      else
        live(round);
    }
    seat_.set.empty();
  }

 private:
  void forget() {
    for (Histogram* histogram : {&seat_.birth, &seat_.end, &seat_.stayed, &seat_.moved})
      *histogram = Histogram();
  }

  void idle() {
    for (std::size_t i = 0; i < run_.batch; ++i) {
      unsettle();
      seat_.birth.add(time_of([] {}));
    }
  }

  void live(std::size_t round) {
    bear(seat_.batches[round % 2].data());
    if (run_.threads > 1) meeting_.meet(round + 1);
    void** batch = neighbour_.batches[round % 2].data();
    if (run_.timed == Timed::realloc) grow(batch);
    end(batch);
  }

  // What else a program does between two calls.
  void unsettle() {
    if (run_.is_mixed) seat_.set.replace_one(random_);
  }

  void bear(void** batch) {
    for (std::size_t i = 0; i < run_.batch; ++i) {
      unsettle();
      void* block = nullptr;
      const Ticks taken = run_.timed == Timed::calloc
                              ? time_of([&] { block = std::calloc(1, run_.bytes); })
                              : time_of([&] { block = std::malloc(run_.bytes); });
      seat_.birth.add(taken);
      batch[i] = must_have(block, run_.bytes);
      touch_pages(block, run_.bytes);
    }
  }

  // No call asks for growth in place: it happened, or it did not.
  void grow(void** batch) {
    for (std::size_t i = 0; i < run_.batch; ++i) {
      unsettle();
      const std::size_t bytes = run_.bytes + (i % 2 == 0 ? (run_.bytes + 7) / 8 : run_.bytes);
      const auto old = reinterpret_cast<std::uintptr_t>(batch[i]);
      void* block = batch[i];
      const Ticks taken = time_of([&] { block = std::realloc(block, bytes); });
      batch[i] = must_have(block, bytes);
      (reinterpret_cast<std::uintptr_t>(block) == old ? seat_.stayed : seat_.moved).add(taken);
      touch_pages(block, bytes);
    }
  }

  void end(void** batch) {
    for (std::size_t i = 0; i < run_.batch; ++i) {
      unsettle();
      seat_.end.add(time_of([&] { std::free(batch[i]); }));
    }
  }

  const Run& run_;
  Meeting& meeting_;
  Seat& seat_;
  Seat& neighbour_;
  Random random_;
};

void print_row(const Run& run, const char* operation, const Histogram& histogram) {
  const auto ns = [](std::uint64_t ticks) {
    return static_cast<double>(ticks) * timer.ns_per_tick;
  };
  std::printf("{\"operation\":\"%s\",\"bytes\":%zu,\"set\":\"%s\",\"threads\":%u,\"samples\":%llu",
              operation, run.bytes, run.is_mixed ? "mixed" : "warm", run.threads,
              static_cast<unsigned long long>(histogram.count()));
  std::printf(",\"ns\":[%.2f,%.2f,%.2f,%.2f,%.2f]}\n", ns(histogram.percentile(500)),
              ns(histogram.percentile(900)), ns(histogram.percentile(990)),
              ns(histogram.percentile(999)), ns(histogram.largest()));
  std::fflush(stdout);
}

void measure(const Run& run) {
  Mapped<Seat> seats(run.threads);
  Meeting meeting(run.threads);
  std::vector<std::thread> threads;
  for (unsigned number = 1; number < run.threads; ++number)
    threads.emplace_back([&, number] { Worker(run, seats, meeting, number).work(); });
  // Here, so that one thread is the first and only one: glibc serves another from another arena.
  Worker(run, seats, meeting, 0).work();
  for (std::thread& thread : threads) thread.join();
  for (unsigned number = 1; number < run.threads; ++number)
    for (Histogram Seat::*histogram : {&Seat::birth, &Seat::end, &Seat::stayed, &Seat::moved})
      (seats[0].*histogram).add(seats[number].*histogram);
  switch (run.timed) {
    case Timed::nothing:
      return print_row(run, "nothing", seats[0].birth);
    case Timed::malloc_and_free:
      print_row(run, "malloc", seats[0].birth);
      return print_row(run, "free", seats[0].end);
    case Timed::calloc:
      return print_row(run, "calloc", seats[0].birth);
    case Timed::realloc:
      print_row(run, "realloc in place", seats[0].stayed);
      return print_row(run, "realloc moved", seats[0].moved);
  }
}

Run plan(const Options& options, Timed timed, std::size_t bytes, bool is_mixed, unsigned threads) {
  const auto whole = static_cast<double>(std::max<std::size_t>(bytes, 1));
  const double samples =
      std::clamp(kSampledBytes / whole, kSamplesLeast, kSamplesMost) * options.scale;
  const std::size_t batch =
      std::clamp(kBatchBytes / std::max<std::size_t>(bytes, 1), kShortestBatch, kBatch);
  const double rounds = std::ceil(samples / static_cast<double>(batch * threads));
  return {timed, bytes, is_mixed, threads, batch, static_cast<std::size_t>(rounds)};
}

void measure_all(const Options& options) {
  for (const unsigned threads : {1u, options.threads})
    for (const bool is_mixed : {false, true}) {
      measure(plan(options, Timed::nothing, 0, is_mixed, threads));
      for (const Timed timed : {Timed::malloc_and_free, Timed::calloc, Timed::realloc})
        for (const std::size_t bytes : options.sizes)
          measure(plan(options, timed, bytes, is_mixed, threads));
    }
}

// The median of intervals with nothing in them: half of those then read 0, and the others what the
// clock wavers by. Called while `timer` still subtracts nothing.
Timer measure_timer() {
  Mapped<Histogram> empty(1);
  Ticks step = ~Ticks{0};
  Ticks previous = time_of([] {});
  for (int i = 0; i < 100'000; ++i) {
    const Ticks taken = time_of([] {});
    empty[0].add(taken);
    if (taken != previous)
      step = std::min(step, std::max(taken, previous) - std::min(taken, previous));
    previous = taken;
  }
  return {empty[0].percentile(500), step, measure_ns_per_tick()};
}

// "16,64": whether each is a size that can be measured.
bool parse_sizes(const char* text, std::vector<std::size_t>& sizes) {
  sizes.clear();
  for (char* end = nullptr;; text = end + 1) {
    sizes.push_back(std::strtoull(text, &end, 10));
    if (end == text || sizes.back() == 0 || sizes.back() > std::size_t{1} << 30) return false;
    if (*end == '\0') return true;
    if (*end != ',') return false;
  }
}

bool parse_options(int argc, char** argv, Options& options) {
  static const option kOptions[] = {{"threads", required_argument, nullptr, 't'},
                                    {"scale", required_argument, nullptr, 's'},
                                    {"sizes", required_argument, nullptr, 'b'},
                                    {nullptr, 0, nullptr, 0}};
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    char* end = nullptr;
    if (letter == '?') return false;
    if (letter == 'b') {
      if (!parse_sizes(optarg, options.sizes)) return false;
      continue;
    }
    if (letter == 's')
      options.scale = std::strtod(optarg, &end);
    else
      options.threads = static_cast<unsigned>(std::strtoul(optarg, &end, 10));
    if (end == optarg || *end != '\0') return false;
  }
  return optind == argc && options.threads >= 2 && options.threads <= 256 &&
         options.scale >= 0.001 && options.scale <= 1000;
}

int run_worker(int argc, char** argv) {
  Options options;
  if (!parse_options(argc, argv, options)) {
    std::fputs(
        "usage: latency_worker [--threads 2…256] [--scale 0.001…1000] [--sizes BYTES,BYTES…]\n",
        stderr);
    return 2;
  }
  timer = measure_timer();
  std::printf(
      "{\"malloc\":\"%s\",\"timer\":\"%s\",\"timer_cost_ns\":%.2f,\"timer_step_ns\":%.2f}\n",
      server_of_malloc(), kTimerName, static_cast<double>(timer.cost) * timer.ns_per_tick,
      static_cast<double>(timer.step) * timer.ns_per_tick);
  measure_all(options);
  return 0;
}

}  // namespace
}  // namespace rdmalloc::bench

int main(int argc, char** argv) {
  return rdmalloc::bench::run_worker(argc, argv);
}
