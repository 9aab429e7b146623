// rss_return: whether memory comes back to the system by itself. A storm of allocations in several
// threads, everything freed, and then the resident memory over time while the program makes no
// further call of malloc or free.
//
//   LD_PRELOAD=/path/librdmalloc.so rss_return --bytes 4294967296 --decay-ms 5000
//
// Prints a JSON object a line: who serves malloc, "start", "peak", "freed", one "rss" for each
// sample, "verdict". Exit status 0 when it came back to within 64 MiB + 5 % of the start within 3
// decay times, 1 when not, 2 for wrong arguments, 4 when memory ran out.
#include <dlfcn.h>
#include <getopt.h>
#include <unistd.h>

#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "bench/support/blocks.h"
#include "bench/support/resident.h"
#include "bench/support/server_of_malloc.h"

namespace {

using rdmalloc::bench::mib;
using rdmalloc::bench::peak_resident_bytes;
using rdmalloc::bench::resident_bytes;

struct Options {
  std::uint64_t bytes = std::uint64_t{4} << 30;
  std::uint64_t threads = 4;
  std::uint64_t decay_ms = 0;  // 0: what the allocator says, or 5000
};

double now_ms() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

// Everything below main's last free must not allocate: read(2), write(2) and the stack only.
void say(const char* type, double ms, std::uint64_t bytes) {
  char line[160];
  const int length = std::snprintf(
      line, sizeof(line), "{\"type\":\"%s\",\"ms\":%.0f,\"mib\":%.1f}\n", type, ms, mib(bytes));
  if (write(STDOUT_FILENO, line, static_cast<std::size_t>(length)) < 0) std::_Exit(2);
}

// Sizes as programs have them: nine in ten below 1 KiB, of the rest most below 64 KiB, a few up to
// 4 MiB. By bytes the large ones dominate, as they do in programs.
std::size_t random_size(std::uint64_t state) {
  const std::uint64_t kind = state % 1000;
  const std::uint64_t number = state >> 20;
  if (kind < 900) return 16 + number % 1008;
  if (kind < 995) return 1024 + number % (63 << 10);
  return (64 << 10) + number % (4032 << 10);
}

// Until `bytes` are live, all touched; then, when all threads are there, all of it is freed. False
// when malloc failed.
bool storm(std::uint64_t bytes, std::uint64_t seed, std::barrier<>& all_live) {
  struct Block {
    char* memory;
    std::size_t size;
  };
  std::vector<Block> blocks;
  rdmalloc::bench::Random random(seed);
  bool enough = true;
  for (std::uint64_t live = 0; live < bytes;) {
    const std::uint64_t state = random.next();
    const std::size_t size = random_size(state);
    auto* memory = static_cast<char*>(std::malloc(size));
    enough = memory != nullptr;
    if (!enough) break;
    rdmalloc::bench::touch_pages(memory, size);
    memory[size - 1] = 1;
    blocks.push_back({memory, size});
    live += size;
    if (state % 8 == 0) {  // some die young
      Block& victim = blocks[(state >> 8) % blocks.size()];
      std::free(victim.memory);
      live -= victim.size;
      victim = {nullptr, 0};
    }
  }
  all_live.arrive_and_wait();
  for (const Block& block : blocks) std::free(block.memory);
  return enough;
}

bool parse(int argc, char** argv, Options& options) {
  static const option kOptions[] = {{"bytes", required_argument, nullptr, 'b'},
                                    {"threads", required_argument, nullptr, 't'},
                                    {"decay-ms", required_argument, nullptr, 'd'},
                                    {nullptr, 0, nullptr, 0}};
  for (int letter; (letter = getopt_long(argc, argv, "", kOptions, nullptr)) != -1;) {
    if (letter == '?') return false;
    char* end = nullptr;
    const std::uint64_t number = std::strtoull(optarg, &end, 10);
    if (end == optarg || *end != '\0' || number == 0) {
      std::fprintf(stderr, "rss_return: '%s' is no positive number\n", optarg);
      return false;
    }
    if (letter == 'b') options.bytes = number;
    if (letter == 't') options.threads = number;
    if (letter == 'd') options.decay_ms = number;
  }
  return optind == argc && options.threads <= 256;
}

std::uint64_t decay_of_the_allocator() {
  using Ctl = int (*)(const char*, void*, std::size_t*, const void*, std::size_t);
  auto ctl = reinterpret_cast<Ctl>(dlsym(RTLD_DEFAULT, "rdmalloc_ctl"));
  std::uint64_t decay_ms = 0;
  std::size_t size = sizeof(decay_ms);
  if (ctl != nullptr && ctl("purge.decay_ms", &decay_ms, &size, nullptr, 0) == 0 && decay_ms != 0)
    return decay_ms;
  return 5000;
}

bool storm_in_threads(const Options& options) {
  std::vector<std::thread> threads;
  std::vector<char> enough(options.threads, 1);
  std::barrier<> all_live(static_cast<std::ptrdiff_t>(options.threads));
  for (std::uint64_t i = 0; i < options.threads; ++i)
    threads.emplace_back(
        [&, i] { enough[i] = storm(options.bytes / options.threads, i + 1, all_live) ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  for (char good : enough)
    if (good == 0) return false;
  return true;
}

// Ten samples a decay time, for three decay times; the last one is the result.
std::uint64_t watch(std::uint64_t decay_ms) {
  const double freed_at = now_ms();
  say("freed", 0, resident_bytes());
  const double wait_ms = static_cast<double>(decay_ms) / 10;
  const timespec rest{static_cast<time_t>(wait_ms / 1000),
                      static_cast<long>(wait_ms * 1e6) % 1'000'000'000};
  std::uint64_t now = 0;
  for (int sample = 0; sample < 30; ++sample) {
    nanosleep(&rest, nullptr);
    now = resident_bytes();
    say("rss", now_ms() - freed_at, now);
  }
  return now;
}

bool verdict(std::uint64_t start, std::uint64_t now, std::uint64_t decay_ms) {
  const std::uint64_t allowed = start + start / 20 + (std::uint64_t{64} << 20);
  char line[200];
  const int length = std::snprintf(
      line, sizeof(line),
      "{\"type\":\"verdict\",\"returned\":%s,\"start_mib\":%.1f,\"end_mib\":%.1f,"
      "\"allowed_mib\":%.1f,\"decay_ms\":%lu}\n",
      now <= allowed ? "true" : "false", mib(start), mib(now), mib(allowed), decay_ms);
  return write(STDOUT_FILENO, line, static_cast<std::size_t>(length)) == length && now <= allowed;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fputs("usage: rss_return [--bytes N] [--threads N, at most 256] [--decay-ms N]\n", stderr);
    return 2;
  }
  if (options.decay_ms == 0) options.decay_ms = decay_of_the_allocator();
  rdmalloc::bench::say_server_of_malloc();
  const std::uint64_t start = resident_bytes();
  say("start", 0, start);
  if (!storm_in_threads(options)) {
    std::fputs("rss_return: malloc failed in the storm\n", stderr);
    return 4;
  }
  say("peak", 0, peak_resident_bytes());
  const std::uint64_t now = watch(options.decay_ms);
  return verdict(start, now, options.decay_ms) ? 0 : 1;
}
